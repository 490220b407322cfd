"""timeline(): what each rank did when, on the clock of a machine or of this computer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from distlab.machine.hardware import Machine
from distlab.machine.machines import classroom
from distlab.machine.units import quantity
from distlab.recording import Recording
from distlab.show import lanes, rows
from distlab.show.measured import measured
from distlab.show.picture import Picture, wrap
from distlab.show.scene import Scene, modelled
from distlab.show.trace import write_trace

COLUMNS = 96
MOST_LINES = 16  # of numbers; more ranks are summed up
LEGEND = "    ".join(
    [
        f"F0{rows.COMPUTES} computes, in span F0",
        f"{rows.COMPUTES * 2} computes",
        f"{rows.COMMUNICATES * 2} communicates",
        f"{rows.WAITS * 2} waits",
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
        return TimelinePicture(modelled(recording, machine, during, dtype), recording)
    if machine != "measured":
        raise ValueError(
            f'machine must be a Machine (distlab.machine.machines has some) or "measured", not {machine!r}'
        )
    if dtype is not None:
        raise ValueError(f"What was measured was in its own dtype, not {dtype}. Give a machine to model it on.")
    return TimelinePicture(measured(recording, during), recording)


@dataclass(frozen=True, repr=False)
class TimelinePicture(Picture):
    """A row for each rank; :func:`distlab.machine.replay.replay` has the numbers."""

    scene: Scene
    recording: Recording

    def save(self, path: str | Path) -> None:
        """Writes the image to a file, or a trace where its name ends in .json.

        A trace is a file for ui.perfetto.dev and chrome://tracing. Raises OSError saying what is wrong with its path.
        """
        if Path(path).suffix.lower() == ".json":
            write_trace(path, self.scene, self.recording)
        else:
            super().save(path)

    def text(self) -> str:
        """The title, a row for each rank, how each spent its time, and the notes."""
        notes = (f"note: {note}" for note in self.scene.notes)
        return "\n".join([*wrap(self.scene.clock), *self._rows(), *self._numbers(), *wrap(*notes)])

    def figure(self) -> Figure:
        """The same, drawn, with an arrow for each message."""
        return lanes.draw(self.scene)

    def _rows(self) -> Iterator[str]:
        width = len(str(len(self.scene.segments) - 1))
        if self.scene.folding:
            yield self.scene.folding
        for rank in self.scene.shown:
            yield f"rank {rank:<{width}} |{rows.row(self.scene, rank, COLUMNS)}|"
        wall = quantity(self.scene.wall, "s")
        yield f"{'':{width + 6}} 0{wall:>{COLUMNS - 1}}"
        yield LEGEND

    def _numbers(self) -> Iterator[str]:
        shares = self.scene.shares
        if not self.scene.is_counted:
            yield f"{quantity(self.scene.wall, 's')} in all, without the ranks' work: how busy they are is not known"
            return
        busy = [of_rank.busy for of_rank in shares]
        if len(shares) <= MOST_LINES:
            yield from (f"rank {rank}: {_in_words(of_rank)}" for rank, of_rank in enumerate(shares))
        else:
            extremes = {"least": busy.index(min(busy)), "most": busy.index(max(busy))}
            yield from (f"{words} busy, rank {rank}: {_in_words(shares[rank])}" for words, rank in extremes.items())
        if shares:
            bubble = sum(of_rank.bubble for of_rank in shares) / len(shares)
            yield f"{quantity(self.scene.wall, 's')} in all, mean bubble {bubble:.4f}"


def _in_words(shares) -> str:
    busy, exposed, hidden, idle = (quantity(seconds, "s") for seconds in shares)
    return f"busy {busy}, communication {exposed} exposed and {hidden} hidden, idle {idle}, bubble {shares.bubble:.4f}"
