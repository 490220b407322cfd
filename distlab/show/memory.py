"""memory(): the bytes that a rank holds over time, by kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from distlab.events import Memory
from distlab.machine.units import quantity
from distlab.recording import Recording
from distlab.show.colours import FAINT, INK, PALE, WHITE, looks_in_turn
from distlab.show.picture import INCHES, Picture, new_figure, wrap

KINDS = ("parameters", "gradients", "optimizer", "other")
MOST_ROWS = 16  # ranks in the table; of more, the least and the most
TITLE = "bytes held on each rank: the peak of each kind, and of all together"
_LEFT, _RIGHT, _TOP, _HEIGHT, _BOTTOM = 0.9, 0.3, 0.35, 2.2, 0.65  # inches
_CELL = 14


def memory(recording: Recording, rank: int = 0) -> MemoryPicture:
    """Draws what ``rank`` held over time; the text has the peaks of all ranks.

    Raises ValueError for a recording in which nobody noted its memory, and for a rank that is not there or noted none.
    """
    noted = [recording.events(Memory, rank) for rank in range(recording.world_size)]
    if not any(noted):
        raise ValueError("This recording has no memory in it: no rank noted what it holds.")
    if not 0 <= rank < len(noted) or not noted[rank]:
        known = ", ".join(str(rank) for rank, events in enumerate(noted) if events)
        raise ValueError(f"Nothing was noted on rank {rank}. Memory was noted on ranks {known}.")
    return MemoryPicture(noted, rank, recording.notes)


@dataclass(frozen=True, repr=False)
class MemoryPicture(Picture):
    """Bytes by kind, stacked over time; ``noted`` has what each rank noted, by rank."""

    noted: Sequence[Sequence[Memory]]
    rank: int
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """The title, each rank's peak in all and what it was made of, each kind's own peak, and the notes."""
        notes = (f"note: {note}" for note in self.notes)
        return "\n".join([TITLE, *self._table(), *wrap(*notes)])

    def _table(self) -> Iterator[str]:
        ranks = [rank for rank, events in enumerate(self.noted) if events]
        if len(ranks) > MOST_ROWS:
            yield f"of {len(ranks):,} ranks the one that peaks lowest, and the one that peaks highest"
            ranks = [pick(ranks, key=self._peak) for pick in (min, max)]
        names = [f"rank {rank}" for rank in ranks]
        width = max(map(len, names))
        yield f"{'':{width}}" + "".join(f"{column:>{_CELL}}" for column in (*KINDS, "all together"))
        for name, rank in zip(names, ranks):
            peaks = [max(getattr(event, kind) for event in self.noted[rank]) for kind in KINDS]
            cells = (quantity(peak, "B") for peak in (*peaks, self._peak(rank)))
            yield f"{name:{width}}" + "".join(f"{cell:>{_CELL}}" for cell in cells)

    def _peak(self, rank: int) -> int:
        return max(map(_total, self.noted[rank]))

    def figure(self) -> Figure:
        """One rank's bytes, stacked, with the peak marked."""
        events = self.noted[self.rank]
        clock = "this computer, measured" if _is_timed(events) else "in order of what was noted"
        title = f"bytes held on rank {self.rank}, by kind ({clock}); peak {quantity(self._peak(self.rank), 'B')}"
        height = _TOP + _HEIGHT + _BOTTOM
        figure = new_figure(height)
        figure.text(_LEFT / INCHES, 1 - 0.08 / height, title, va="top", color=INK)
        inside = (_LEFT / INCHES, _BOTTOM / height, 1 - (_LEFT + _RIGHT) / INCHES, _HEIGHT / height)
        _draw(figure.add_axes(inside), events)
        return figure


def _draw(axes: Axes, events: Sequence[Memory]) -> None:
    """Each kind on top of the one before; what was noted holds until the next note."""
    begin = events[0].time
    times = [event.time - begin for event in events] if _is_timed(events) else list(range(len(events)))
    times.append(times[-1] + (times[-1] / len(times) or 1.0))
    below = [0] * len(times)
    for kind, look in looks_in_turn(KINDS).items():
        held = [getattr(event, kind) for event in (*events, events[-1])]
        tops = [lower + bytes for lower, bytes in zip(below, held)]
        if any(held):
            style = {"facecolor": look.colour, "hatch": look.hatch, "edgecolor": WHITE, "linewidth": 0.5}
            axes.fill_between(times, below, tops, step="post", label=kind, **style)
        below = tops
    peak = max(map(_total, events))
    axes.axhline(peak, color=PALE, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_xlim(0, times[-1])
    axes.set_ylim(0, 1.08 * peak or 1)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(lambda bytes, _: quantity(bytes, "B"))
    if _is_timed(events):
        axes.xaxis.set_major_formatter(lambda seconds, _: quantity(seconds, "s"))
    axes.tick_params(length=2, color=PALE, labelcolor=INK)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    where = {"loc": "upper left", "bbox_to_anchor": (0, -0.28 / _HEIGHT), "borderaxespad": 0}
    if peak:
        axes.legend(ncols=len(KINDS), frameon=False, handlelength=1.8, **where)


def _total(event: Memory) -> int:
    return sum(getattr(event, kind) for kind in KINDS)


def _is_timed(events: Sequence[Memory]) -> bool:
    return any(event.time for event in events)
