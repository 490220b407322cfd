"""Runs a learner's code on ranks for a check, and turns what goes wrong into what the check says."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from distlab.course.exercise import NotStarted, Wrong
from distlab.course.from_lab import NotFinished
from distlab.ranks.launch import Settings, launch
from distlab.ranks.limits import WorkLimit
from distlab.ranks.outcome import RankError, Run
from distlab.ranks.output import by_rank
from distlab.ranks.verdicts.loose_ends import loose_ends
from distlab.ranks.verdicts.stuck_words import BEGUN_AT

_SECONDS = 10
_LINES, _COLUMNS = 20, 200  # of what is printed in a check, as much is shown


ASIDE = "\N{ZERO WIDTH SPACE}"  # a line of a check's own begins with it, and is not shown


def _learners(output: list[str]) -> str:
    """What the learner's code printed, by rank."""
    texts = [[line for line in text.splitlines(keepends=True) if not line.startswith(ASIDE)] for text in output]
    return by_rank(["".join(lines) for lines in texts])


class RankFailed(Wrong):
    """A rank did not finish: ``error`` is the RankError. A check may know the misconception behind it: see
    ``because``."""

    def __init__(self, case: str, error: RankError):
        cause = error.failures[error.rank]
        is_elsewhere = BEGUN_AT in error.verdict  # not where the rank stands that waits in vain
        code = f"\n  {cause.frames[-1].code}" if cause.frames and not is_elsewhere else ""
        super().__init__(case, f"{error.verdict}{code}")
        self.error = error

    def because(self, *ids: str, **fields) -> Wrong:
        """The same, named as a known misconception."""
        return Wrong(self.case, self.detail, ids, **fields)


class Trial:
    """One check's way to run things on ranks; ``seed`` is drawn afresh for each check.

    ``loose_ends`` says what the last run began and did not wait for, which comes before all that it may explain.
    ``instead`` maps the ``id`` of an unfinished exercise to the course's version, which runs in its place.
    """

    def __init__(self, seed: int | None = None, instead: Mapping[int, object] | None = None):
        self.seed = secrets.randbelow(2**31) if seed is None else seed
        self._instead = instead
        self.loose_ends: list[str] = []
        self._output, self._printed_in = "", ""

    def silent(self) -> Trial:
        """Another one of the same kind, whose runs leave no trace in this one's."""
        return Trial(self.seed, self._instead)

    def run(self, case: str, driver, *args, ranks: int) -> list:
        """Runs ``driver(*args)`` on ranks, silently, and returns the values by rank.

        Raises NotStarted if a stub was met and RankFailed if a rank did not finish; ``case`` says in words what was
        tried.
        """
        return self.watch(case, driver, *args, ranks=ranks).values

    def watch(self, case: str, driver, *args, ranks: int, record: bool | str = "messages") -> Run:
        """Does what :meth:`run` does and returns the Run, whose recording holds the messages (and compute, if
        asked)."""
        settings = Settings(ranks, seed=self.seed, record=record)
        self.loose_ends = []
        try:
            run = launch(driver, args, settings, WorkLimit(_SECONDS), quiet=True, instead=self._instead)
        except RankError as error:
            self._output, self._printed_in = _learners(error.output), case
            cause = error.failures[error.rank]
            is_bare = not cause.message and cause.raised_at is None  # a library's has a message, or a line of its own
            if cause.type == "NotImplementedError" and cause.frames and is_bare:
                raise NotStarted(cause.frames[-1].function) from None
            if cause.type == NotFinished.__name__:
                raise NotStarted("", why=cause.message) from None
            raise RankFailed(case, error) from None
        if run.recording is not None:
            self.loose_ends = loose_ends(run.recording)
        self._output, self._printed_in = _learners(run.output), case
        return run

    def printed(self) -> list[str]:
        """What the last run printed, capped, under a line that says which it was; [] if it printed nothing."""
        lines = self._output.splitlines()
        if not lines:
            return []
        more = [f"… {len(lines) - _LINES} lines more"] if len(lines) > _LINES else []
        return [f"Printed {self._printed_in}:", *(line[:_COLUMNS] for line in lines[:_LINES]), *more]
