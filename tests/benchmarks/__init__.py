"""Measures distlab against its peers: `python -m tests.benchmarks [name ...]`, or `make bench`."""
