"""The notebook's ear: reads what the ranks write as they run, keeps it as a Recording, and asks for a diagnosis."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from distlab.events import Event, Exit, Fail, MakeGroup, Message, Span, Touch, Wait
from distlab.ranks import cells
from distlab.ranks.job import Job
from distlab.ranks.verdicts.diagnosis import Diagnosis, relies_on_buffering
from distlab.ranks.verdicts.failures import Failure
from distlab.ranks.verdicts.loose_ends import loose_ends
from distlab.ranks.verdicts.words import meeting_words, mixed_words, operation_words, reshaped_words
from distlab.ranks.watching.log import LogReader
from distlab.recording import Group, Recording

EVENT_LIMIT = 1_000_000
_QUIET = 0.3


class Listener:
    """Follows the logs of one run's ranks; ``ask(rank)`` has a rank say which of its threads could still act."""

    def __init__(self, job: Job, ask: Callable[[int], None]):
        self._job, self._ask = job, ask
        self._readers = [LogReader(job.log_file(rank)) for rank in range(job.num_ranks)]
        self._diagnosis = Diagnosis(job.num_ranks, lambda place: self._frames[place].place)
        self._histories: list[list] = [[] for _ in range(job.num_ranks)]
        self._groups: dict[Group, int] = {Group("world", tuple(range(job.num_ranks))): 0}
        self._group_numbers: list[dict[int, int]] = [{} for _ in range(job.num_ranks)]
        self._frames: list[cells.Frame] = [cells.Frame("", "", "")]
        self._frame_numbers: list[dict[int, int]] = [{0: 0} for _ in range(job.num_ranks)]
        self._num_events = 0
        self._stuck: tuple[tuple[int, ...], float] = (), 0.0
        self._unanswered: set[int] | None = None  # None if nobody was asked
        self._acting: dict[int, tuple[int, ...]] = {}
        self._given_up: dict[int, str] = {}
        self._misfit_since = 0.0
        self._notes: list[str] = []
        self._threads: list[set[int]] = [set() for _ in range(job.num_ranks)]

    def listen(self) -> None:
        """Takes in all that has been written since the last call."""
        written = [(rank, record) for rank, reader in enumerate(self._readers) for record in reader.read()]
        if any(record[0] == "event" and type(record[1]) is Fail for _, record in written):
            written = _in_order(written)
        for rank, (kind, *content) in written:
            getattr(self, f"_take_{kind}")(rank, *content)

    def _take_place(self, rank: int, number: int, filename: str, line: int, function: str) -> None:
        frame = cells.frame(filename, line, function, self._job.payload.sources)
        if frame not in self._frames:
            self._frames.append(frame)
        self._frame_numbers[rank][number] = self._frames.index(frame)

    def _take_group(self, rank: int, number: int, name: str, members: tuple[int, ...], world: int) -> None:
        numbers = self._group_numbers[rank]
        group = Group(name, members)
        numbers[number] = self._groups.setdefault(group, len(self._groups))
        self._diagnosis.meetings.learn_group(numbers[number], group.name, members, numbers[world or number])

    def _take_note(self, rank: int, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    def _take_threads(self, rank: int, acting: tuple[int, ...]) -> None:
        self._acting[rank] = acting
        if self._unanswered is not None:
            self._unanswered.discard(rank)

    def _take_event(self, rank: int, event, thread: int) -> None:
        kind = type(event)
        if kind is Message or kind is MakeGroup:
            group, place = self._group_numbers[rank][event.group], self._frame_numbers[rank][event.place]
            event = event._replace(group=group, place=place)
            self._threads[rank].add(thread)
        elif kind is Wait or kind is Span or kind is Touch:
            event = event._replace(place=self._frame_numbers[rank][event.place])
        self._note_giving_up(rank, event)
        self._diagnosis.learn(rank, event, thread)
        self._num_events += 1
        if self._num_events <= EVENT_LIMIT:
            self._histories[rank].append(event)

    def leave(self, rank: int, how: str) -> None:
        """Notes that a rank is gone without having written so."""
        self._diagnosis.leave(rank, how)

    def finding(self) -> str:
        """The verdict, once there is one: at once for what does not fit, after some quiet for what can never go on."""
        misfit, now = self._diagnosis.meetings.misfit, time.monotonic()
        if misfit:
            self._misfit_since = self._misfit_since or now
            return misfit.words() if misfit.is_complete or now - self._misfit_since >= _QUIET else ""
        stuck = self._diagnosis.stuck()
        if stuck != self._stuck[0]:
            self._stuck, self._unanswered, self._acting = (stuck, now), None, {}
        if not stuck or now - self._stuck[1] < _QUIET:
            return ""
        if self._unanswered is None:
            self._unanswered = set(stuck)
            for rank in stuck:
                self._ask(rank)
        if self._unanswered:
            return ""
        self._unanswered = None
        confirmed = self._diagnosis.stuck(self._acting)
        if not confirmed:  # a thread could still act: ask again after a while
            self._stuck = stuck, now
        return self._diagnosis.verdict(confirmed) if confirmed else ""

    def _note_giving_up(self, rank: int, event: Event) -> None:
        """Keeps what there is to say of a rank whose wait was in vain, unless it goes on: it only says that its time
        was up."""
        if type(event) is Fail and not self._diagnosis.has_lost_a_rank:
            stuck = self._diagnosis.stuck(self._acting, patient=True)
            if rank in stuck:
                self._given_up[rank] = self._diagnosis.verdict(stuck)
        elif isinstance(event, Message | MakeGroup) or (type(event) is Exit and event.how == "returned"):
            self._given_up.pop(rank, None)

    def last_finding(self) -> str:
        """What explains ranks that lost their connection, when the run is over."""
        if misfit := self._diagnosis.meetings.misfit:
            return misfit.words()
        stuck = self._diagnosis.stuck(self._acting)
        given_up = next(iter(self._given_up.values()), "")
        return given_up or (self._diagnosis.verdict(stuck) if stuck else "")

    def lost_send(self) -> str:
        """What explains that a rank lost its connection although its partner had sent."""
        return self._diagnosis.unwaited_send()

    def misfits(self) -> dict[int, Failure]:
        """Each rank whose operation does not fit: which one, and where."""
        misfit = self._diagnosis.meetings.misfit
        messages = misfit.messages if misfit else {}
        return {rank: self._describe("called", message) for rank, message in sorted(messages.items())}

    def waiting(self, rank: int) -> Failure | None:
        """What a rank waits for and where, if it does."""
        wanted = self._diagnosis.wanted(rank)
        return self._describe("stopped", wanted) if wanted else None

    def _describe(self, kind: str, wanted: Message | MakeGroup) -> Failure:
        members = list(self._groups)[wanted.group].members
        frame = self._frames[wanted.place]
        group = self._diagnosis.meetings.name_of(wanted.group)
        operation = operation_words(wanted, members, self._job.num_ranks, group)
        return Failure(kind, frames=(frame,) if wanted.place else (), function=operation)

    def recording(self, is_over: bool = True) -> Recording:
        """All that was heard so far, with what there is to say about it once the run is over."""
        places = [frame.place for frame in self._frames]
        groups = list(self._groups)
        heard = Recording(self._histories, groups, places)
        if not is_over:
            return heard
        notes = [*self._notes, *loose_ends(heard), *self._chances(groups)]
        notes += [f"cut after {EVENT_LIMIT:,} events"] if self._num_events > EVENT_LIMIT else []
        if self._is_buffered():
            notes.append("relies on buffering: gloo let a rank leave a collective early; NCCL would hang here")
        return replace(heard, notes=tuple(notes))

    def _chances(self, groups: list[Group]) -> Iterator[str]:
        """What went well, and may not the next time or elsewhere."""
        for rank, threads in enumerate(self._threads):
            if len(threads) > 1:
                yield (
                    f"rank {rank} communicates from {len(threads)} threads: compute is counted and waits are modelled "
                    "for its main thread only"
                )
        for rank, group in self._diagnosis.mixed:
            yield mixed_words(rank, groups[group].name)
        for joined in self._diagnosis.meetings.met.values():
            yield meeting_words(joined, lambda place: self._frames[place].place)
        for joined in self._diagnosis.meetings.reshaped.values():
            yield reshaped_words(joined)

    def _is_buffered(self) -> bool:
        if not self._diagnosis.meetings.left_early or self._num_events > EVENT_LIMIT:
            return False
        if any(type(event) is Fail for history in self._histories for event in history):
            return False  # what was given up cannot be played again
        return relies_on_buffering(self._histories, {number: group.members for group, number in self._groups.items()})

    def close(self) -> None:
        """Closes the files."""
        for reader in self._readers:
            reader.close()


def _in_order(written: list[tuple[int, tuple]]) -> list[tuple[int, tuple]]:
    """What several ranks have written since this process last looked, in the order in which it happened.

    Rank by rank will do, but for a wait that ends in vain: who waited with it must be known by then.
    """
    times, latest = [], 0.0
    for number, (rank, (kind, *content)) in enumerate(written):
        if number and rank != written[number - 1][0]:
            latest = 0.0
        if kind == "event":
            latest = max(latest, _when(content[0]))
        times.append(latest)
    return [written[number] for number in sorted(range(len(written)), key=times.__getitem__)]


def _when(event: Event) -> float:
    """When an event was written."""
    return next((getattr(event, name) for name in ("end", "time", "start") if hasattr(event, name)), 0.0)


class Deaf:
    """Listens to nothing: a run with ``record=False``."""

    def listen(self) -> None:
        """There is nothing to hear."""

    def leave(self, rank: int, how: str) -> None:
        """Nobody asks."""

    def finding(self) -> str:
        """Nothing is known."""
        return ""

    last_finding = lost_send = finding

    def misfits(self) -> dict[int, Failure]:
        """Nothing is known."""
        return {}

    def waiting(self, rank: int) -> None:
        """Not known."""

    def recording(self, is_over: bool = True) -> None:
        """There is none."""

    close = listen
