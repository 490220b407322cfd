"""What an exercise is, what people get wrong in it, and what a check says when something is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distlab.course.trial import Trial


@dataclass(frozen=True)
class Misconception:
    """A mistake that people make: ``says`` names it in a sentence whose ``{fields}`` the check fills in."""

    id: str
    says: str


@dataclass(frozen=True)
class Exercise:
    """One function or class that the learner writes.

    ``check(learners, trial)`` tries it and returns what it found to hold; it raises Wrong or NotStarted otherwise.
    ``hints`` are two; the third hint is the solution. ``uses`` names the earlier exercises that it calls. ``further``
    ones count for no ✓.
    """

    name: str
    check: Callable[[object, Trial], str]
    misconceptions: tuple[Misconception, ...]
    hints: tuple[str, str]
    uses: tuple[str, ...] = ()
    further: bool = False

    def explain(self, ids: tuple[str, ...], fields: dict) -> list[str]:
        """The sentences of the misconceptions ``ids``."""
        known = {misconception.id: misconception.says for misconception in self.misconceptions}
        return [known[id].format_map(_Fields(fields)) for id in ids]


class _Fields(dict):
    """What fills a sentence: a verdict with a gap in it is better than none."""

    def __missing__(self, name: str) -> str:
        return "…"


@dataclass(frozen=True)
class Prediction:
    """A number, list or word to guess before it is seen, and where it comes from."""

    answer: object
    because: str


class Wrong(Exception):
    """An exercise's result is not right.

    ``case`` says when ("with 3 ranks and 10 rows"), ``detail`` what was expected and what came, ``believed`` which
    misconceptions predict exactly what came, ``fields`` the values for their sentences; ``general`` is said where none
    does, and ``plain`` where the learner's own lines show nothing to suspect either.
    """

    def __init__(self, case: str, detail: str, believed: tuple[str, ...] = (), general: str = "",
                 plain: str = "", **fields):  # fmt: skip
        super().__init__(f"{case}: {detail}")
        self.case = case
        self.detail = detail
        self.believed = believed
        self.general = general
        self.plain = plain or "This is not yet right."
        self.fields = fields


class NotStarted(Exception):
    """An exercise still holds its stub; ``function`` is where the stub stands.

    ``why`` says so of one that stands in another lab.
    """

    def __init__(self, function: str, why: str = ""):
        super().__init__(function)
        self.function, self.why = function, why
