"""In the notebook: reads what ranks note, and says what went wrong, where, and what to do."""
