"""Right answers in other styles than the solution's: what a check must accept, one module a lab."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Right:
    """The solution of ``exercise`` with ``old`` replaced by ``new``, which is right as well."""

    exercise: str
    old: str
    new: str
