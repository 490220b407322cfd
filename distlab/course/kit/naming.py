"""Names a mistake: runs the patched solutions on the case that failed, and sees which gives exactly what came."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch

from distlab.course.checks import exercises
from distlab.course.kit.case import Job
from distlab.course.kit.outcome import Outcome, attempt, reached
from distlab.course.notebook import Notebook, execute_source
from distlab.course.patches import Patch, patches_of
from distlab.course.places import lab_file
from distlab.course.trial import RankFailed, Trial

if TYPE_CHECKING:
    from distlab.course.kit.experiment import Complaint, Experiment

_PATIENCE = 3.0  # seconds
_OTHERS = 3  # failing cases on which several explanations are tried further
_PLACE = re.compile(r" at [^;\n]*?, line \d+")
_Known = tuple[Patch, SimpleNamespace]


@dataclass(frozen=True)
class Finding:
    """A job that went wrong alone: what came of it and what is wrong with that, or how a rank failed."""

    job: Job
    outcome: Outcome | None = None
    complaints: Sequence[Complaint] = ()
    failed: RankFailed | None = None


def explain(experiment: Experiment, lab, finding: Finding, trial: Trial, others: Sequence[Finding] = ()) -> tuple:
    """The id of the only known mistake that gives what came, in a tuple; () if there is none, or more than one.

    ``others`` are further findings, which tell apart those that give the same in the first.
    """
    end = time.monotonic() + _PATIENCE
    known = _patched(lab, fails=finding.failed is not None)
    if finding.failed is not None:
        return _only(patch for patch, theirs in known if _fails_alike(experiment, theirs, finding, trial, end))
    found = _matches(experiment, known, finding, trial, end)
    for other in others[:_OTHERS]:
        if len({patch.id for patch, _ in found}) > 1 and time.monotonic() < end:
            found = _matches(experiment, found, other, trial, end) or found
    return _only(patch for patch, _ in found)


def _only(patches) -> tuple[str, ...]:
    ids = {patch.id for patch in patches}
    return tuple(ids) if len(ids) == 1 else ()


def _patched(lab: SimpleNamespace, fails: bool) -> list[_Known]:
    """The known mistakes of an exercise, each with a lab in which all else is the learner's."""
    name = exercises()[lab.name][0]
    path = lab_file("solutions", name)
    if path is None:
        return []
    solution = Notebook(path).exercises[lab.name]
    patches = [patch for patch in patches_of(name, lab.name) if patch.fails == fails]
    return [(patch, _with(lab, path, patch.applied(solution))) for patch in patches]


def _with(lab: SimpleNamespace, path: Path, source: str) -> SimpleNamespace:
    """The learner's lab with another text of the exercise, which calls the learner's own earlier exercises."""
    own = {name: value for name, value in vars(lab).items() if name != "name"}
    scope = dict(_definitions(path, path.stat().st_mtime_ns)) | own
    execute_source(source, f"a mistake in {lab.name}", scope)
    return SimpleNamespace(**vars(lab) | {lab.name: scope[lab.name]})


@lru_cache(maxsize=2)
def _definitions(path: Path, changed_ns: int) -> dict[str, object]:
    return Notebook(path).definitions()


# --- what fails ----------------------------------------------------------------------------------


def _fails_alike(experiment: Experiment, theirs, finding: Finding, trial: Trial, end: float) -> bool:
    if time.monotonic() > end:
        return False
    try:
        attempt(trial.silent(), experiment.drive, [theirs], [finding.job])
    except RankFailed as failed:
        return bool(_marks(failed) & _marks(finding.failed))
    return False


def _marks(failed: RankFailed) -> set[tuple]:
    """How ranks failed, without places: which of them raises first is chance, so one in common is enough."""
    raised = {
        (rank, failure.type, failure.message)
        for rank, failure in failed.error.failures.items()
        if failure.kind == "raised" and not failure.is_victim
    }
    return raised or {("verdict", _PLACE.sub("", failed.error.verdict))}


# --- what comes out wrong ------------------------------------------------------------------------


def _matches(experiment: Experiment, known: Sequence[_Known], finding: Finding, trial: Trial, end) -> list[_Known]:
    """Those that give what came, by the strictest measure by which any does."""
    outcomes = _outcomes(experiment, known, finding.job, trial, end)
    wrong = [(each, theirs, list(experiment.look(finding.job, theirs))) for each, theirs in outcomes]
    for alike in _MEASURES:
        if found := [each for each, theirs, complaints in wrong if complaints and alike(finding, theirs, complaints)]:
            return found
    return []


def _outcomes(experiment, known: Sequence[_Known], job: Job, trial: Trial, end) -> list[tuple[_Known, Outcome]]:
    known = list(known)
    while known and time.monotonic() < end:
        jobs = [job] * len(known)
        try:
            tried = attempt(trial.silent(), experiment.drive, [theirs for _, theirs in known], jobs)
        except RankFailed as failed:  # one of them fails here, and elsewhere does not
            del known[reached(failed, range(len(known)))]
            continue
        return list(zip(known, tried.outcomes, strict=True))
    return []


def _same(what: str, finding: Finding, theirs: Outcome) -> bool:
    pairs = zip(finding.outcome.values, theirs.values, strict=True)
    return all(_alike(got.get(what), of_patch.get(what), finding.job.tolerance) for got, of_patch in pairs)


def _alike(one, other, tolerance: float) -> bool:
    """Whether two nested values are the same; nan is like nan."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        return torch.allclose(one.double(), other.double(), rtol=tolerance, atol=tolerance, equal_nan=True)
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(_alike(one[key], other[key], tolerance) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(_alike(*pair, tolerance) for pair in zip(one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == other or abs(one - other) <= tolerance * max(1.0, abs(other)) or (one != one and other != other)
    return type(one) is type(other) and one == other


def _all_values(finding: Finding, theirs: Outcome, complaints) -> bool:
    names = dict.fromkeys(name for of_rank in finding.outcome.values for name in of_rank)
    return finding.outcome.changed == theirs.changed and all(_same(name, finding, theirs) for name in names)


def _everything(finding: Finding, theirs: Outcome, complaints) -> bool:
    return _all_values(finding, theirs, complaints) and finding.outcome.traffic == theirs.traffic


def _values_and_complaint(finding: Finding, theirs: Outcome, complaints) -> bool:
    """All values, and the same thing wrong: where that is a budget, other messages may break it in the same way."""
    return _all_values(finding, theirs, complaints) and complaints[0] == finding.complaints[0]


def _wrong_values(finding: Finding, theirs: Outcome, complaints) -> bool:
    wrong = [what for what, _ in finding.complaints]
    return wrong == [what for what, _ in complaints] and _are_values(finding, theirs, wrong)


def _first_wrong_value(finding: Finding, theirs: Outcome, complaints) -> bool:
    first = finding.complaints[0][0]
    return complaints[0][0] == first and _are_values(finding, theirs, [first])


def _are_values(finding: Finding, theirs: Outcome, names: Sequence[str]) -> bool:
    is_value = finding.outcome.values[0].__contains__
    return all(map(is_value, names)) and all(_same(name, finding, theirs) for name in names)


_Measure = Callable[[Finding, Outcome, list], bool]
_MEASURES: tuple[_Measure, ...] = (
    _everything,
    _values_and_complaint,
    _wrong_values,
    _first_wrong_value,
)
