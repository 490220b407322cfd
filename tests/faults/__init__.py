"""Wrong solutions: what a check must reject, one module a lab."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """The solution of ``exercise`` with ``old`` replaced by ``new``.

    ``misconception`` is the id whose sentence the check must say; None where it need only reject (✗).
    """

    exercise: str
    misconception: str | None
    old: str
    new: str
