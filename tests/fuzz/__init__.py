"""Random small programs of messages, what must become of each, and what the runner makes of them."""
