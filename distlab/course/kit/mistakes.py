"""What known mistakes give on a case: run from the patched solutions, or read where a class's copy has none."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

from distlab.course.checks import exercises
from distlab.course.kit.case import Job
from distlab.course.kit.outcome import Outcome, attempt, reached
from distlab.course.notebook import Notebook, execute_source
from distlab.course.patches import Patch, patches_of
from distlab.course.places import lab_file
from distlab.course.trial import RankFailed, Trial

if TYPE_CHECKING:
    from distlab.course.kit.experiment import Complaint, Experiment

Marks = frozenset[tuple]
UNCHANGED = Patch("", "", "")  # the solution itself: what it gives too comes of something else, an earlier exercise
_PLACE = re.compile(r" at [^;\n]*?, line \d+")
# Of several ranks that send what others have made no room for, it is chance which are told of, and how much they send.
_PAIR = re.compile(r"rank \d+ sends (\w+)\[.*?\] to rank \d+, which receives (\w+)\[.*?\](?=: the)")
_RANKS = re.compile(r"\branks? \d+(, \d+)*( (and|or) \d+)*")
EXACT = "verdict with sizes"
_CHANCE = re.compile(r"\bInvoked with: .*|0x[0-9a-f]+|\[F\d+ [\d:.]+", re.DOTALL)  # arguments, addresses, times


@dataclass(frozen=True)
class Given:
    """What a mistake gives on one job: as an Outcome has it, and what is wrong with it."""

    id: str
    values: list[dict]
    changed: list[str]
    traffic: list[list[tuple]]
    complaints: list[Complaint]


class Failing(NamedTuple):
    """How ranks fail on one job by a mistake; see :func:`marks`."""

    id: str
    marks: Callable[[], Marks]


class Mistakes:
    """The known mistakes of an exercise, all else being as the learner has it.

    ``patience`` are the seconds after which, once the first have been tried, no others are.
    """

    def __init__(self, experiment: Experiment, lab: SimpleNamespace, trial: Trial, patience: float = float("inf")):
        self._experiment, self._lab, self._trial, self._patience = experiment, lab, trial, patience
        self._begun = 0.0

    def _may_go_on(self) -> bool:
        self._begun = self._begun or time.monotonic()
        return time.monotonic() - self._begun < self._patience

    def give(self, job: Job) -> list[Given]:
        """What comes of those that end well."""
        return self.give_all([job])[0]

    def give_all(self, jobs: Sequence[Job]) -> list[list[Given]]:
        """The same for each of some jobs of one world size, in one start of ranks."""
        came, _ = self.outcomes(jobs)
        return [[self._given(job, *pair) for pair in of_job] for job, of_job in zip(jobs, came, strict=True)]

    def outcomes(self, jobs: Sequence[Job]) -> tuple[list[list[tuple[Patch, Outcome]]], list[str]]:
        """What each does to each job, and what is left begun and not waited for by any."""
        known = self._patched(fails=False)
        while known and self._may_go_on():
            labs = [lab for _, lab in known] * len(jobs)
            try:
                tried = attempt(self._trial.silent(), self._experiment.drive, labs, [j for j in jobs for _ in known])
            except RankFailed as failed:  # one of them fails here, and elsewhere does not
                del known[reached(failed, range(len(labs))) % len(known)]
                continue
            came = iter(tried.outcomes)
            return [[(patch, next(came)) for patch, _ in known] for _ in jobs], tried.loose_ends
        return [[] for _ in jobs], []

    def fail(self, job: Job, report: str | None = None) -> Iterator[Failing]:
        """How the others fail, each when it is asked; those that may say this ``report``, if one is given."""
        for patch, lab in self._patched(fails=True):
            may_be = report is None or patch.fails is True or patch.fails in report
            if may_be and self._may_go_on():
                yield Failing(patch.id, lambda lab=lab: self._marks(job, lab))

    def _given(self, job: Job, patch: Patch, outcome: Outcome) -> Given:
        complaints = list(self._experiment.look(job, outcome))
        return Given(patch.id, outcome.values, outcome.changed, outcome.traffic, complaints)

    def _marks(self, job: Job, lab: SimpleNamespace) -> Marks:
        try:
            attempt(self._trial.silent(), self._experiment.drive, [lab], [job])
        except RankFailed as failed:
            return marks(failed)
        return frozenset()

    def _patched(self, fails: bool) -> list[tuple[Patch, SimpleNamespace]]:
        """The patches, each with a lab in which all but the exercise is the learner's."""
        lab = exercises()[self._lab.name][0]
        path = lab_file("solutions", lab)
        if path is None:
            return []
        solution = Notebook(path).exercises[self._lab.name]
        patches = [patch for patch in patches_of(lab, self._lab.name) if bool(patch.fails) == fails]
        unchanged = [] if fails or not patches else [(UNCHANGED, self._with(path, solution))]
        return unchanged + [(patch, self._with(path, patch.applied(solution))) for patch in patches]

    def _with(self, path: Path, source: str) -> SimpleNamespace:
        own = {name: value for name, value in vars(self._lab).items() if name != "name"}
        scope = dict(_definitions(path, path.stat().st_mtime_ns)) | own
        execute_source(source, f"a mistake in {self._lab.name}", scope)
        return SimpleNamespace(**vars(self._lab) | {self._lab.name: scope[self._lab.name]})


@lru_cache(maxsize=2)
def _definitions(path: Path, changed_ns: int) -> dict[str, object]:
    return Notebook(path).definitions()


def marks(failed: RankFailed) -> Marks:
    """How ranks failed, without places: which of them raises first is chance, so that one in common is enough."""
    raised = {
        (rank, failure.type, _CHANCE.sub("", failure.message or ""))
        for rank, failure in failed.error.failures.items()
        if failure.kind == "raised" and not failure.is_victim
    }
    verdict = _PLACE.sub("", failed.error.verdict)
    return frozenset(raised or {("verdict", _PAIR.sub(r"\1, \2", verdict)), (EXACT, _RANKS.sub("a rank", verdict))})


def without_ranks(found: Marks) -> Marks:
    """The same without saying which ranks they were: where ranks do alike, it is chance which are stopped first."""
    return frozenset(tuple(_RANKS.sub("a rank", part) for part in mark if isinstance(part, str)) for mark in found)
