"""Names a mistake: which of those known gives exactly what came on the case that failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch

from distlab.course.compare import close
from distlab.course.kit.case import Job
from distlab.course.kit.mistakes import EXACT, UNCHANGED, Failing, Given, Marks, Mistakes, marks, without_ranks
from distlab.course.kit.outcome import Outcome
from distlab.course.kit.stored import stored
from distlab.course.trial import RankFailed, Trial

if TYPE_CHECKING:
    from distlab.course.kit.experiment import Complaint, Experiment

_PATIENCE = 3.0  # seconds; or, on a busy machine, so many times as long as the case itself took
_TIMES = 8
_OTHERS = 3  # failing cases on which several explanations are tried further


@dataclass(frozen=True)
class Finding:
    """A job that went wrong: what came of it and what is wrong with that, or how a rank failed.

    ``loose_ends`` is what was begun and not waited for, ``seconds`` is how long it took.
    """

    job: Job
    outcome: Outcome | None = None
    complaints: Sequence[Complaint] = ()
    loose_ends: Sequence[str] = ()
    failed: RankFailed | None = None
    seconds: float = 0.0


def explain(experiment: Experiment, lab: SimpleNamespace, finding: Finding, trial: Trial,
            others: Iterable[Finding] = ()) -> tuple[str, ...]:  # fmt: skip
    """The id of the only known mistake that gives what came, in a tuple; () if there is none, or more than one.

    (UNCHANGED.id,) says that the solution gives the same, beside the learner's own earlier exercises. ``others`` are
    further findings, which tell apart those that give the same in the first.
    """
    patience = max(_PATIENCE, _TIMES * finding.seconds)
    known = stored(lab.name, experiment) or Mistakes(experiment, lab, trial, patience)
    if finding.failed is not None:
        found = _failing_alike(known.fail(finding.job, str(finding.failed.error)), marks(finding.failed))
    else:
        found = _matches(known.give(finding.job), finding)
        if UNCHANGED.id in found:
            return (UNCHANGED.id,)
        further = islice(others, _OTHERS)
        while len(found) > 1 and (other := next(further, None)):
            found = _matches((each for each in known.give(other.job) if each.id in found), other) or found
    return tuple(found) if len(found) == 1 else ()


def _failing_alike(known: Iterable[Failing], came: Marks) -> set[str]:
    """Those by which a rank fails as one did, of several those with the same sizes; or by which another rank does."""
    theirs = [(mistake.id, mistake.marks()) for mistake in known]
    shared = [(name, {kind for kind, *_ in marks_of & came}) for name, marks_of in theirs]
    same = {name for name, kinds in shared if kinds - {EXACT}}
    exact = {name for name, kinds in shared if EXACT in kinds and name in same}
    same = exact if len(same) > 1 and exact else same
    return same or {name for name, marks_of in theirs if without_ranks(marks_of) & without_ranks(came)}


def _matches(known: Iterable[Given], finding: Finding) -> set[str]:
    """Those that give what came, by the strictest measure by which any does."""
    wrong = [each for each in known if each.complaints]
    for is_alike in _MEASURES:
        if found := {each.id for each in wrong if is_alike(finding, each)}:
            return found
    return set()


def _all_values(finding: Finding, theirs: Given) -> bool:
    names = dict.fromkeys(name for of_rank in finding.outcome.values for name in of_rank)
    return finding.outcome.changed == theirs.changed and _are_same(names, finding, theirs)


def _everything(finding: Finding, theirs: Given) -> bool:
    """All that came, and the same things wrong: memory is looked at, and stands in neither."""
    wrong = [what for what, _ in finding.complaints] == [what for what, _ in theirs.complaints]
    return wrong and _all_values(finding, theirs) and finding.outcome.traffic == theirs.traffic


def _values_and_complaint(finding: Finding, theirs: Given) -> bool:
    """All values, and the same thing wrong: where that is a budget, other messages may break it in the same way."""
    return _all_values(finding, theirs) and theirs.complaints[0] == finding.complaints[0]


def _wrong_values(finding: Finding, theirs: Given) -> bool:
    wrong = [what for what, _ in finding.complaints]
    return wrong == [what for what, _ in theirs.complaints] and _are_same(wrong, finding, theirs)


def _first_wrong_value(finding: Finding, theirs: Given) -> bool:
    first = finding.complaints[0][0]
    return theirs.complaints[0][0] == first and _are_same([first], finding, theirs)


_Measure = Callable[[Finding, Given], bool]
_MEASURES: tuple[_Measure, ...] = (_everything, _values_and_complaint, _wrong_values, _first_wrong_value)


def _are_same(names: Iterable[str], finding: Finding, theirs: Given) -> bool:
    """Whether these are values, and the same on all ranks."""
    pairs = list(zip(finding.outcome.values, theirs.values, strict=True))
    return all(
        any(name in of_rank for of_rank in finding.outcome.values)
        and all(_alike(got.get(name), given.get(name), finding.job.tolerance) for got, given in pairs)
        for name in names
    )


def _alike(one, other, tolerance: float) -> bool:
    """Whether two nested values are the same; nan is like nan."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        return bool(close(one, other, tolerance).all())
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(_alike(one[key], other[key], tolerance) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(_alike(*pair, tolerance) for pair in zip(one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == other or abs(one - other) <= tolerance * max(1.0, abs(other)) or (one != one and other != other)
    return type(one) is type(other) and one == other
