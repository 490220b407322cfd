"""Machines, costs and replay."""
