"""A check as data: cases, a driver, what to expect. All cases of a world size are tried at once."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import chain
from types import FunctionType, SimpleNamespace

import torch

from distlab.course.checks import exercises
from distlab.course.compare import difference
from distlab.course.exercise import Wrong
from distlab.course.kit import remarks
from distlab.course.kit.budget import barriers
from distlab.course.kit.case import Case, Job, jobs_of
from distlab.course.kit.driving import HELD, REUSED, Driver
from distlab.course.kit.mistakes import UNCHANGED
from distlab.course.kit.naming import Finding, explain
from distlab.course.kit.outcome import Outcome, attempt, reached
from distlab.course.trial import RankFailed, Trial
from distlab.events import P2P

Complaint = tuple[str, str]  # what is wrong, and how: ("the gradients", "rank 1: expected 3, got 4")
_EARLIER = (
    "The course's own `{name}` gives the same beside your earlier exercises ({used}): look there, although their "
    "checks show ✓."
)
_ONE_DTYPE = "In {other} it is right: somewhere a dtype is written down, where that of what comes in is meant."
_FLOAT32 = (
    "In float32 it is right: somewhere numbers become float32, as torch.zeros(…), torch.tensor(0.5) and .float() make "
    "them, where the dtype of what comes in is meant."
)
_CAME = {
    REUSED: "expected it as it was, its memory is given out again",
    HELD: "expected that nobody holds it any more, it is still in memory",
}


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
    that the judge's first complaint does, whatever other code it came of. ``named`` has, by a part of what is wrong
    first, or of why ranks did not finish, the id of the mistake that is made then, also in other words than a patch's.
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
    named: Mapping[str, str] = field(default_factory=dict)

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
        for name in (name for name in outcome.changed if name != HELD):
            yield name, _CAME.get(name, "expected it as it was, it has changed")
        want = self.expect(job, outcome.values)
        for what in dict.fromkeys(name for of_rank in want for name in of_rank):
            if found := self._differ(job, outcome, want, what):
                yield what, found
        yield from self.judge(job, outcome)
        yield from barriers(outcome)
        if HELD in outcome.changed:
            yield HELD, _CAME[HELD]

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
            return self.tells(what, got, want) or remarks.of_values(got, want, job.tolerance)
        return remarks.of_costs(what) if any(wanted) else ""

    def _try(self, lab: SimpleNamespace, jobs: Sequence[Job], trial: Trial) -> None:
        """Raises Wrong unless all jobs come out right, done one after the other in the same processes."""
        try:
            tried = attempt(trial, self.drive, [lab] * len(jobs), jobs)
        except RankFailed as failed:
            if not _is_out_of_time(failed):
                self._try_alone(lab, jobs, trial)
            raise Wrong(reached(failed, jobs).words, failed.detail, plain=remarks.of_failure(failed)) from None
        complaints = {job: list(self.look(job, outcome)) for job, outcome in zip(jobs, tried.outcomes)}
        holding = [job for job in jobs if complaints[job]]
        wrong = [job for job in holding if complaints[job][0][0] != HELD]
        if not holding and not tried.loose_ends:
            return
        self._try_alone(lab, wrong or holding or jobs, trial, ignored=HELD if wrong else "")
        for job in wrong:  # each is right when it is the first
            what, detail = complaints[job][0]
            said = remarks.of_changes(what) if what == REUSED else remarks.CALLED_AGAIN
            raise Wrong(_where(job, what), detail, general=said)
        if tried.loose_ends:  # what was held alone may have been let go late
            raise Wrong(jobs[0].words, tried.loose_ends[0])

    def _try_alone(self, lab: SimpleNamespace, jobs: Sequence[Job], trial: Trial, ignored: str = "") -> None:
        """Raises Wrong for the first of the jobs that is not right when it is done alone, one complaint ignored."""
        for number, job in enumerate(jobs):
            if finding := self._find(lab, job, trial, ignored):
                further = (self._find(lab, other, trial.silent()) for other in jobs[number + 1 :])
                raise self._wrong(lab, finding, (other for other in further if other and other.outcome), trial)

    def _find(self, lab: SimpleNamespace, job: Job, trial: Trial, ignored: str = "") -> Finding | None:
        """What is wrong with a job that is done alone."""
        begun = time.monotonic()
        try:
            tried = attempt(trial, self.drive, [lab], [job])
        except RankFailed as failed:
            return Finding(job, failed=failed, seconds=time.monotonic() - begun)
        (outcome,) = tried.outcomes
        complaints = [complaint for complaint in self.look(job, outcome) if complaint[0] != ignored]
        if not complaints and not tried.loose_ends:
            return None
        return Finding(job, outcome, complaints, tried.loose_ends, seconds=time.monotonic() - begun)

    def _wrong(self, lab: SimpleNamespace, finding: Finding, others: Iterator[Finding], trial: Trial) -> Wrong:
        """What is said of a finding."""
        job, outcome, failed = finding.job, finding.outcome, finding.failed
        fields = {"ranks": job.ranks, **job.case.options, **self.fields(job, outcome)}
        if failed is not None:
            is_over = _is_out_of_time(failed)
            ids = () if is_over else explain(self, lab, finding, trial) or self._told_by(failed.detail)
            said = "" if ids or is_over or not _may_be_of_dtype(failed, job) else self._one_dtype(lab, job, trial)
            return Wrong(job.words, failed.detail, ids, said, remarks.of_failure(failed), **fields)
        if finding.loose_ends:  # numbers that depend on who was quicker explain nothing
            detail = finding.complaints[0][1] if finding.complaints else "the numbers came out right this time"
            return Wrong(job.words, detail, self.loose(outcome), **fields)
        what, detail = finding.complaints[0]
        of_all = (remarks.BARRIERS, HELD)  # what is looked at in every exercise, after the judge
        is_judged = [c for c in finding.complaints if c[0] not in of_all] == list(self.judge(job, outcome))
        is_judged = is_judged and what not in of_all
        ids = self.shown(job, outcome) if is_judged else ()
        ids = ids or explain(self, lab, finding, trial, others)
        if ids == (UNCHANGED.id,):
            used = ", ".join(exercises()[lab.name][1].uses)
            return Wrong(_where(job, what), detail, (), _EARLIER.format(name=lab.name, used=used), **fields)
        ids = ids or self._told_by(what)
        said = "" if ids else self._in_general(lab, job, finding, trial)
        plain = "" if ids or said else self._plain(job, outcome, what)
        return Wrong(_where(job, what), detail, ids, said, plain, **fields)

    def _told_by(self, what: str) -> tuple[str, ...]:
        """The id of the mistake that goes by what is wrong."""
        return next(((id,) for part, id in self.named.items() if part in what), ())

    def _in_general(self, lab: SimpleNamespace, job: Job, finding: Finding, trial: Trial) -> str:
        """What can be said whatever the exercise is."""
        (what, detail), outcome = finding.complaints[0], finding.outcome
        if what in outcome.changed:
            return remarks.of_changes(what)
        got, want = ([v.get(what) for v in by_rank] for by_rank in (outcome.values, self.expect(job, outcome.values)))
        return (
            self._one_dtype(lab, job, trial)
            or remarks.of_detail(what, detail)
            or (remarks.of_digits(got, want, job.dtype) if any(what in of_rank for of_rank in outcome.values) else "")
            or remarks.of_messages(chain(*(outcome.messages(rank, "call") for rank in range(job.ranks))))
            or self._too_early(lab, finding, trial)
        )

    def _too_early(self, lab: SimpleNamespace, finding: Finding, trial: Trial) -> str:
        """What is used before the wait for it; that it is read, only a full recording shows, which is slower."""
        job, messages = finding.job, chain(*map(finding.outcome.messages, range(finding.job.ranks)))
        if job.case.record is True or not any(m.is_async or m.kind in P2P for m in messages):
            return ""
        case = copy(job.case)
        case.record = True
        try:
            ends = attempt(trial.silent(), self.drive, [lab], [replace(job, case=case)]).loose_ends
        except RankFailed:
            return ""
        return next((f"{words[0].upper()}{words[1:]}." for words in ends), "")

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
