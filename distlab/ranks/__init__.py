"""The only room that knows processes: starts ranks, and says what became of them."""
