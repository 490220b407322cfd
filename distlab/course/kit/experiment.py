"""A check as data: cases, a driver, what to expect. All cases of a world size are tried at once."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, SimpleNamespace

import torch

from distlab.course.checks import exercises
from distlab.course.compare import difference
from distlab.course.exercise import Wrong
from distlab.course.kit.case import Case, Job, jobs_of
from distlab.course.kit.driving import REUSED, Driver
from distlab.course.kit.mistakes import UNCHANGED
from distlab.course.kit.naming import Finding, explain
from distlab.course.kit.outcome import Outcome, attempt, reached
from distlab.course.kit.remarks import of_costs, of_failure, of_values
from distlab.course.trial import RankFailed, Trial

Complaint = tuple[str, str]  # what is wrong, and how: ("the gradients", "rank 1: expected 3, got 4")
_CALLED_AGAIN = (
    "The first call in a process is right, and a later one, with other numbers, is not: something is kept from call "
    "to call, in a global, a default argument or an attribute."
)
_CHANGED = "It changed `{name}`, which it was given to read: other code may still need it."
_REUSED = (
    "It returns the same memory at every call, so a later call overwrites what an earlier one gave: return a tensor of "
    "its own."
)
_EARLIER = (
    "The course's own `{name}` gives the same beside your earlier exercises ({used}): look there, although their "
    "checks show ✓."
)
_ONE_DTYPE = "In {other} it is right: somewhere a dtype is written down, where that of what comes in is meant."
_FLOAT32 = (
    "In float32 it is right: somewhere numbers become float32, as torch.zeros(…), torch.tensor(0.5) and .float() make "
    "them, where the dtype of what comes in is meant."
)


@dataclass(frozen=True, eq=False)
class Experiment:
    """How an exercise is tried.

    ``drive(lab, job)``, on a rank, uses the learner's ``lab.<exercise>`` through :func:`call` and returns values by
    name. ``expect(job, came)`` gives the values wanted, a dict for each rank; ``came`` are those that came, for where
    several answers are right. ``judge(job, outcome)`` yields what is wrong although the values are right: messages,
    memory. ``fields(job, outcome)`` fill the sentences, beside the case's options and ``ranks``. ``needs`` are other
    names of the lab that the driver uses. ``words(what, got, want)`` may say better than figures how values differ, and
    ``tells(what, got, want)`` what that means, in a sentence for where no known mistake gives them.
    ``loose(outcome)`` are the ids of the mistakes that loose ends show by themselves, ``shown(job, outcome)`` of those
    that the judge's first complaint does, whatever other code it came of.
    """

    cases: Sequence[Case]
    drive: Driver
    expect: Callable[[Job, list[dict]], Sequence[dict]]
    holds: str
    judge: Callable[[Job, Outcome], Iterator[Complaint]] = lambda job, outcome: iter(())
    fields: Callable[[Job, Outcome | None], Mapping] = lambda job, outcome: {}
    words: Callable[[str, Sequence, Sequence], str | None] = lambda what, got, want: None
    tells: Callable[[str, Sequence, Sequence], str | None] = lambda what, got, want: None
    needs: tuple[str, ...] = ()
    loose: Callable[[Outcome], tuple[str, ...]] = lambda outcome: ()
    shown: Callable[[Job, Outcome], tuple[str, ...]] = lambda job, outcome: ()

    def __call__(self, learners, trial: Trial) -> str:
        """Tries an exercise; returns what holds, raises Wrong or NotStarted otherwise."""
        lab = self.lab_of(learners)
        for jobs in jobs_of(self.cases, trial.seed):
            self._try(lab, jobs, trial)
        return self.holds

    def lab_of(self, learners) -> SimpleNamespace:
        """The exercise and what it and its driver use, by name, as the learner has them."""
        members = [learners, *vars(learners).values()] if isinstance(learners, type) else [learners]
        scope = next((member.__globals__ for member in members if isinstance(member, FunctionType)), {})
        name = learners.__name__
        used = (*exercises()[name][1].uses, *self.needs)
        return SimpleNamespace(name=name, **{name: learners}, **{other: scope[other] for other in used})

    def look(self, job: Job, outcome: Outcome) -> Iterator[Complaint]:
        """All that is wrong with an outcome, the first thing to say first.

        What was changed comes before values, which it may explain: a result may be a view of what was given.
        """
        for name in outcome.changed:
            came = "its memory is given out again" if name == REUSED else "it has changed"
            yield name, f"expected it as it was, {came}"
        want = self.expect(job, outcome.values)
        for what in dict.fromkeys(name for of_rank in want for name in of_rank):
            if found := self._differ(job, outcome, want, what):
                yield what, found
        yield from self.judge(job, outcome)

    def _differ(self, job: Job, outcome: Outcome, want: Sequence[dict], what: str) -> str | None:
        ranks, got, wanted = _by_rank(outcome, want, what)
        for rank, *pair in zip(ranks, got, wanted):
            if found := difference(*pair, job.tolerance):
                in_words = self.words(what, got, wanted)
                return in_words or (f"rank {rank}: {found}" if job.ranks > 1 else found)
        return None

    def _plain(self, job: Job, outcome: Outcome, what: str) -> str:
        """What can be said of something wrong that no known mistake gives."""
        wanted = self.expect(job, outcome.values)
        ranks, got, want = _by_rank(outcome, wanted, what)
        if ranks:
            return self.tells(what, got, want) or of_values(got, want, job.tolerance)
        return of_costs(what) if any(wanted) else ""

    def _try(self, lab: SimpleNamespace, jobs: Sequence[Job], trial: Trial) -> None:
        """Raises Wrong unless all jobs come out right, done one after the other in the same processes."""
        try:
            tried = attempt(trial, self.drive, [lab] * len(jobs), jobs)
        except RankFailed as failed:
            if not _is_out_of_time(failed):
                self._try_alone(lab, jobs, trial)
            raise Wrong(reached(failed, jobs).words, failed.detail, plain=of_failure(failed)) from None
        complaints = {job: list(self.look(job, outcome)) for job, outcome in zip(jobs, tried.outcomes)}
        wrong = [job for job in jobs if complaints[job]]
        if not wrong and not tried.loose_ends:
            return
        self._try_alone(lab, wrong or jobs, trial)
        for job in wrong:  # each is right when it is the first
            what, detail = complaints[job][0]
            raise Wrong(_where(job, what), detail, general=_REUSED if what == REUSED else _CALLED_AGAIN)
        raise Wrong(jobs[0].words, tried.loose_ends[0])

    def _try_alone(self, lab: SimpleNamespace, jobs: Sequence[Job], trial: Trial) -> None:
        """Raises Wrong for the first of the jobs that is not right when it is done alone."""
        for number, job in enumerate(jobs):
            if finding := self._find(lab, job, trial):
                further = (self._find(lab, other, trial.silent()) for other in jobs[number + 1 :])
                raise self._wrong(lab, finding, (other for other in further if other and other.outcome), trial)

    def _find(self, lab: SimpleNamespace, job: Job, trial: Trial) -> Finding | None:
        """What is wrong with a job that is done alone."""
        begun = time.monotonic()
        try:
            tried = attempt(trial, self.drive, [lab], [job])
        except RankFailed as failed:
            return Finding(job, failed=failed, seconds=time.monotonic() - begun)
        (outcome,) = tried.outcomes
        complaints = list(self.look(job, outcome))
        if not complaints and not tried.loose_ends:
            return None
        return Finding(job, outcome, complaints, tried.loose_ends, seconds=time.monotonic() - begun)

    def _wrong(self, lab: SimpleNamespace, finding: Finding, others: Iterator[Finding], trial: Trial) -> Wrong:
        """What is said of a finding."""
        job, outcome, failed = finding.job, finding.outcome, finding.failed
        fields = {"ranks": job.ranks, **job.case.options, **self.fields(job, outcome)}
        if failed is not None:
            is_over = _is_out_of_time(failed)
            ids = () if is_over else explain(self, lab, finding, trial)
            general = "" if ids or is_over or not _may_be_of_dtype(failed, job) else self._one_dtype(lab, job, trial)
            return Wrong(job.words, failed.detail, ids, general, of_failure(failed), **fields)
        if finding.loose_ends:  # numbers that depend on who was quicker explain nothing
            detail = finding.complaints[0][1] if finding.complaints else "the numbers came out right this time"
            return Wrong(job.words, detail, self.loose(outcome), **fields)
        what, detail = finding.complaints[0]
        ids = self.shown(job, outcome) if finding.complaints == list(self.judge(job, outcome)) else ()
        ids = ids or explain(self, lab, finding, trial, others)
        general = (_REUSED if what == REUSED else _CHANGED.format(name=what)) if what in outcome.changed else ""
        if ids == (UNCHANGED.id,):
            used = ", ".join(exercises()[lab.name][1].uses)
            return Wrong(_where(job, what), detail, (), _EARLIER.format(name=lab.name, used=used), **fields)
        if not ids and what in outcome.values[0]:
            general = self._one_dtype(lab, job, trial)
        plain = "" if ids or general else self._plain(job, outcome, what)
        return Wrong(_where(job, what), detail, ids, general, plain, **fields)

    def _one_dtype(self, lab, job: Job, trial: Trial) -> str:
        """What is said where something is wrong in this dtype, and all is right in another."""
        others = [dtype for dtype in job.case.dtypes if dtype != job.dtype]
        if not others:
            return ""
        twin = Job(job.case, others[0], job.seed)
        try:
            tried = attempt(trial.silent(), self.drive, [lab], [twin])
        except RankFailed:
            return ""
        says = _FLOAT32 if others[0] == torch.float32 else _ONE_DTYPE
        is_right = not tried.loose_ends and not any(self.look(twin, tried.outcomes[0]))
        return says.format(other=str(others[0]).removeprefix("torch.")) if is_right else ""


def _by_rank(outcome: Outcome, want: Sequence[dict], what: str) -> tuple[list[int], list, list]:
    """The ranks on which something is wanted, and what came and what is wanted there."""
    ranks = [rank for rank, of_rank in enumerate(want) if what in of_rank]
    return ranks, [outcome.values[rank].get(what) for rank in ranks], [want[rank][what] for rank in ranks]


def _where(job: Job, what: str) -> str:
    return f"{job.words}, {what}" if what else job.words


def _may_be_of_dtype(failed: RankFailed, job: Job) -> bool:
    """Whether it may be worth a start to see if ranks fail in another dtype, too."""
    return job.dtype != job.case.dtypes[0] or bool(re.search("dtype|[Ff]loat|[Dd]ouble", failed.error.verdict))


def _is_out_of_time(failed: RankFailed) -> bool:
    return failed.error.verdict.startswith("not finished after")
