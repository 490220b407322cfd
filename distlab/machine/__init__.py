"""What a run costs on other computers: the only place that knows seconds."""
