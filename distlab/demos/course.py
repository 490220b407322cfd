"""What the labs have built, for demos to show: the course's own code, not a second version of it."""

from __future__ import annotations

import contextlib
import io
from functools import cache
from types import SimpleNamespace

from distlab.course.from_lab import from_lab
from distlab.course.places import lab_file


@cache
def built_in(lab: str) -> SimpleNamespace:
    """The definitions of a lab ("pipeline"): the solution's, or, in a copy without solutions, yours as far as they
    have passed."""
    with contextlib.redirect_stdout(io.StringIO()):
        return from_lab(lab, solution=lab_file("solutions", lab) is not None)
