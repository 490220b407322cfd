"""Scripts that each start four ranks their own way, once for each line that they are sent."""
