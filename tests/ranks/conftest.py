"""No test here leaves a process, a port or a file."""

from tests.nothing_left import nothing_is_left

__all__ = ["nothing_is_left"]
