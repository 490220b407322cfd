"""The only room that knows labs: exercises, their checks, hints and predictions, and the notebooks they stand in."""
