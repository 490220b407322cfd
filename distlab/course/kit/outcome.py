"""What came of a job: values, messages and memory by rank, or the failure; and how it is got."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace

from distlab.course.kit.case import Job
from distlab.course.kit.driving import JOB, Driver, drive_all
from distlab.course.trial import RankFailed, Trial
from distlab.events import Event, Memory, Message, Span, Wait
from distlab.ranks.outcome import Run
from distlab.ranks.shipping.packing import unpack_value
from distlab.ranks.verdicts.loose_ends import loose_ends
from distlab.recording import Group, Recording


@dataclass(frozen=True)
class Outcome:
    """What came of one job on ranks that all finished.

    ``values[r]`` are what the driver returned on rank r, by name; ``changed`` the arguments that a call changed and
    should not have; ``events[r]`` what happened on rank r meanwhile, in spans of the driver's and of ``call``.
    """

    values: list[dict]
    changed: list[str]
    events: list[list[Event]] = field(repr=False)
    groups: Sequence[Group] = field(repr=False)

    def messages(self, rank: int, within: str = "") -> list[Message]:
        """The messages that a rank issued in spans called ``within``, in any span of the job if it is empty."""
        return [event for event, names in self._in_spans[rank] if type(event) is Message and _is_in(within, names)]

    def memory(self, rank: int, within: str = "") -> list[Memory]:
        """What a rank held at each look in such spans, in a case that records it."""
        return [event for event, names in self._in_spans[rank] if type(event) is Memory and _is_in(within, names)]

    def waits(self, rank: int, within: str = "") -> list[Wait]:
        """The waits that a rank began in such spans."""
        return [event for event, names in self._in_spans[rank] if type(event) is Wait and _is_in(within, names)]

    def members(self, message: Message) -> list[int]:
        """The ranks of the group that a message went through."""
        return list(self.groups[message.group].members)

    @cached_property
    def traffic(self) -> list[list[tuple]]:
        """All messages by rank, as what two runs of the same thing have in common."""
        return [
            [
                (m.kind, m.elements, m.dtype, m.peer, m.root, m.reduce_op, tuple(self.members(m)))
                for m in self.messages(rank)
            ]
            for rank in range(len(self.events))
        ]

    @cached_property
    def _in_spans(self) -> list[list[tuple[Event, tuple[str, ...]]]]:
        return [list(_with_spans(history)) for history in self.events]


def _is_in(within: str, names: tuple[str, ...]) -> bool:
    return within in names if within else bool(names)


def _with_spans(history: Sequence[Event]) -> Iterator[tuple[Event, tuple[str, ...]]]:
    """Each event with the names of the spans that are open around it."""
    names: list[str] = []
    for event in history:
        if type(event) is Span and event.name:
            names.append(event.name)
        elif type(event) is Span and names:
            names.pop()
        yield event, tuple(names)


@dataclass(frozen=True)
class Attempt:
    """Jobs that were done in one start: what came of each, and what was begun and not waited for in any."""

    outcomes: list[Outcome]
    loose_ends: list[str]


def attempt(trial: Trial, drive: Driver, labs: Sequence[SimpleNamespace], jobs: Sequence[Job]) -> Attempt:
    """Does the jobs of one world size, in one start of ranks, each with the exercises of its lab.

    Raises NotStarted if a stub was met, RankFailed if a rank did not finish.
    """
    first = jobs[0]
    run = trial.watch(first.words, drive_all, drive, labs, jobs, ranks=first.ranks, record=first.case.record)
    return Attempt(list(_outcomes(run, len(jobs))), loose_ends(run.recording))


def reached(failed: RankFailed, jobs: Sequence[Job]) -> Job:
    """The last job that a rank had begun when a run failed."""
    marks = [line for text in failed.error.output for line in text.splitlines() if JOB in line]
    return jobs[max((int(mark.rpartition(JOB)[2]) for mark in marks), default=0)]


def _outcomes(run: Run, number: int) -> Iterator[Outcome]:
    for which in range(number):
        values, changed = zip(*(of_rank[which] for of_rank in run.values), strict=True)
        events = [_within(run.recording, rank, f"{JOB}{which}") for rank in range(len(values))]
        names = list(dict.fromkeys(name for of_rank in changed for name in of_rank))
        yield Outcome(list(map(unpack_value, values)), names, events, run.recording.groups)


def _within(recording: Recording, rank: int, name: str) -> list[Event]:
    """What a rank did in a span, without its bounds."""
    found = [event for event, names in _with_spans(recording.ranks[rank]) if name in names]
    return found[1:]
