"""The notebook's ear: reads what the ranks write as they run, keeps it as a Recording, and asks for a diagnosis."""

from __future__ import annotations

import time

from distlab.events import MakeGroup, Message, Span, Wait
from distlab.ranks import cells
from distlab.ranks.diagnosis import Diagnosis, relies_on_buffering
from distlab.ranks.failures import Failure
from distlab.ranks.job import Job
from distlab.ranks.log import LogReader
from distlab.ranks.words import operation_words
from distlab.recording import Group, Recording

EVENT_LIMIT = 1_000_000
_QUIET = 0.3
_HAVE_PLACE = (Message, Wait, Span, MakeGroup)


class Listener:
    """Follows the logs of one run's ranks."""

    def __init__(self, job: Job):
        self._job = job
        self._readers = [LogReader(job.log_file(rank)) for rank in range(job.num_ranks)]
        self._diagnosis = Diagnosis(job.num_ranks)
        self._histories: list[list] = [[] for _ in range(job.num_ranks)]
        self._groups: dict[Group, int] = {Group("world", tuple(range(job.num_ranks))): 0}
        self._group_numbers: list[dict[int, int]] = [{} for _ in range(job.num_ranks)]
        self._frames: list[cells.Frame] = [cells.Frame("", "", "")]
        self._frame_numbers: list[dict[int, int]] = [{0: 0} for _ in range(job.num_ranks)]
        self._num_events = 0
        self._stuck: tuple[tuple[int, ...], float] = (), 0.0
        self._misfit_since = 0.0
        self._notes: list[str] = []

    def listen(self) -> None:
        """Takes in all that has been written since the last call."""
        for rank, reader in enumerate(self._readers):
            for kind, *content in reader.read():
                getattr(self, f"_take_{kind}")(rank, *content)

    def _take_place(self, rank: int, number: int, filename: str, line: int, function: str) -> None:
        frame = cells.frame(filename, line, function, self._job.payload.sources)
        if frame not in self._frames:
            self._frames.append(frame)
        self._frame_numbers[rank][number] = self._frames.index(frame)

    def _take_group(self, rank: int, number: int, name: str, members: tuple[int, ...]) -> None:
        first = not self._group_numbers[rank]
        group = Group("world" if first else name, members)
        self._group_numbers[rank][number] = self._groups.setdefault(group, len(self._groups))
        self._diagnosis.learn_group(rank, self._groups[group], group.name, members)

    def _take_note(self, rank: int, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    def _take_event(self, rank: int, event) -> None:
        kind = type(event)
        if kind is Message or kind is MakeGroup:
            group, place = self._group_numbers[rank][event.group], self._frame_numbers[rank][event.place]
            event = event._replace(group=group, place=place)
        elif kind is Wait or kind is Span:
            event = event._replace(place=self._frame_numbers[rank][event.place])
        self._diagnosis.learn(rank, event)
        self._num_events += 1
        if self._num_events <= EVENT_LIMIT:
            self._histories[rank].append(event)

    def leave(self, rank: int, how: str) -> None:
        """Notes that a rank is gone without having written so."""
        self._diagnosis.leave(rank, how)

    def finding(self) -> str:
        """The verdict, once there is one: at once for what does not fit, after some quiet for what can never go on."""
        misfit, now = self._diagnosis.misfit(), time.monotonic()
        if misfit:
            self._misfit_since = self._misfit_since or now
            return misfit.words() if misfit.is_complete or now - self._misfit_since >= _QUIET else ""
        stuck = self._diagnosis.stuck()
        if stuck != self._stuck[0]:
            self._stuck = stuck, now
        return self._diagnosis.verdict(stuck) if stuck and now - self._stuck[1] >= _QUIET else ""

    def last_finding(self) -> str:
        """What explains ranks that lost their connection, when the run is over."""
        if misfit := self._diagnosis.misfit():
            return misfit.words()
        stuck = self._diagnosis.stuck()
        return self._diagnosis.verdict(stuck) if stuck else ""

    def lost_send(self) -> str:
        """What explains that a rank lost its connection although its partner had sent."""
        return self._diagnosis.unwaited_send()

    def misfits(self) -> dict[int, Failure]:
        """Each rank whose operation does not fit: which one, and where."""
        misfit = self._diagnosis.misfit()
        messages = misfit.messages if misfit else {}
        return {rank: self._describe("called", message) for rank, message in sorted(messages.items())}

    def waiting(self, rank: int) -> Failure | None:
        """What a rank waits for and where, if it does."""
        wanted = self._diagnosis.waiting(rank)
        return self._describe("stopped", wanted) if wanted else None

    def _describe(self, kind: str, wanted: Message | MakeGroup) -> Failure:
        members = list(self._groups)[wanted.group].members
        frame = self._frames[wanted.place]
        operation = operation_words(wanted, members, self._job.num_ranks)
        return Failure(kind, frames=(frame,) if wanted.place else (), function=operation)

    def recording(self) -> Recording:
        """All that was heard."""
        notes = [*self._notes]
        notes += [f"cut after {EVENT_LIMIT:,} events"] if self._num_events > EVENT_LIMIT else []
        if self._is_buffered():
            notes.append("relies on buffering: gloo let a rank leave a collective early; NCCL would hang here")
        places = [frame.place for frame in self._frames]
        return Recording(self._histories, list(self._groups), places, tuple(notes))

    def _is_buffered(self) -> bool:
        if not self._diagnosis.left_early or self._num_events > EVENT_LIMIT:
            return False
        return relies_on_buffering(self._histories, {number: group.members for group, number in self._groups.items()})

    def close(self) -> None:
        """Closes the files."""
        for reader in self._readers:
            reader.close()


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

    def recording(self) -> None:
        """There is none."""

    close = listen
