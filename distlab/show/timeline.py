"""timeline(): what each rank did when, on the clock of a machine or of this computer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from distlab.events import Compute
from distlab.machine.hardware import Machine
from distlab.machine.machines import classroom
from distlab.machine.replay import replay
from distlab.machine.timeline import Timeline
from distlab.machine.units import quantity
from distlab.recording import Recording
from distlab.show.board import Board
from distlab.show.lanes import folding, lanes_of
from distlab.show.measured import measured
from distlab.show.picture import Picture
from distlab.show.rows import COMMUNICATES, COMPUTES, WAITS, row
from distlab.show.timeline_image import timeline_image
from distlab.show.trace import write_trace
from distlab.show.words import wrap

COLUMNS = 96
MOST_LINES = 16  # of numbers; more ranks are summed up
LEGEND = "    ".join(
    [
        f"F0{COMPUTES} computes, in span F0",
        f"{COMPUTES * 2} computes",
        f"{COMMUNICATES * 2} communicates",
        f"{WAITS * 2} waits",
        "blank: has returned",
    ]
)


def timeline(
    recording: Recording, machine: Machine | str = classroom, during: str = "", dtype: str | None = None
) -> TimelinePicture:
    """Draws a recording as replayed on ``machine``, or as "measured" on this computer.

    ``during`` is a span's name: from its first begin to its last end on any rank. ``dtype`` ("bfloat16") sends messages
    as if their elements were of that type. Raises ReplayError if the recording cannot finish, ValueError for a span,
    dtype or clock that is not there.
    """
    if isinstance(machine, Machine):
        whole = _modelled(recording, machine, dtype)
    elif machine != "measured":
        raise ValueError(
            f'machine must be a Machine (distlab.machine.machines has some) or "measured", not {machine!r}'
        )
    elif dtype is not None:
        raise ValueError(f"What was measured was in its own dtype, not {dtype}. Give a machine to model it on.")
    else:
        whole = measured(recording)
    return TimelinePicture(whole.during(during) if during else whole, recording)


def _modelled(recording: Recording, machine: Machine, dtype: str | None) -> Timeline:
    """A replay, with a note if work was seen and none of it was counted."""
    timeline, work = replay(recording, machine, dtype), recording.events(Compute)
    if not work or any(event.flops or event.bytes or event.operators for event in work):
        return timeline
    note = 'no work was counted (record="messages"): on a modelled clock it takes no time'
    return replace(timeline, notes=(*timeline.notes, note), is_counted=False)


@dataclass(frozen=True, repr=False)
class TimelinePicture(Picture):
    """A row for each rank; ``timeline`` has the numbers."""

    timeline: Timeline
    recording: Recording

    def save(self, path: str | Path) -> None:
        """Writes the drawing to a file (.svg, .png), or a trace where its name ends in .json.

        A trace is a file for ui.perfetto.dev and chrome://tracing. Raises OSError saying what is wrong with its path.
        """
        if Path(path).suffix.lower() == ".json":
            write_trace(path, self.timeline, self.recording)
        else:
            super().save(path)

    def text(self) -> str:
        """The title, a row for each rank, how each spent its time, and the notes."""
        notes = (f"note: {note}" for note in self.timeline.notes)
        return "\n".join([*wrap(self.timeline.title), *self._rows(), *self._numbers(), *wrap(*notes)])

    def board(self) -> Board:
        """The same, drawn, with an arrow for each message."""
        return timeline_image(self.timeline)

    def _rows(self) -> Iterator[str]:
        timeline, lanes = self.timeline, lanes_of(self.timeline)
        width, wall = len(str(len(timeline.spans) - 1)), quantity(timeline.wall, "s")
        if words := folding(lanes, len(timeline.spans)):
            yield words
        for rank, lane in lanes.items():
            yield f"rank {rank:<{width}} |{row(lane, timeline.begin, timeline.wall, COLUMNS)}|"
        yield f"{'':{width + 6}} 0{wall:>{COLUMNS - 1}}"
        yield LEGEND

    def _numbers(self) -> Iterator[str]:
        timeline, busy = self.timeline, self.timeline.busy
        wall = f"{quantity(timeline.wall, 's')} in all"
        if not timeline.is_counted:
            yield f"{wall}, without the ranks' work: how busy they are is not known"
            return
        if len(busy) <= MOST_LINES:
            yield from map(self._words, range(len(busy)))
        else:
            yield f"least busy, {self._words(busy.index(min(busy)))}"
            yield f"most busy, {self._words(busy.index(max(busy)))}"
        if busy:
            yield f"{wall}, mean bubble {timeline.bubble:.4f}"

    def _words(self, rank: int) -> str:
        return f"{self.timeline.words(rank)}, bubble {self.timeline.bubbles[rank]:.4f}"
