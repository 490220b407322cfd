"""Starts the processes that are ranks, tells them what to do, and ends them."""
