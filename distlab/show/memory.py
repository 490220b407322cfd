"""memory(): the bytes that a rank holds over time, by kind; memories(): several runs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from distlab.events import Memory, Span
from distlab.machine.units import quantity
from distlab.recording import Recording
from distlab.show.colours import FAINT, INK, PALE, WHITE, looks_in_turn
from distlab.show.picture import INCHES, Picture, new_figure, wrap

KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers", "other")
ALL = "all together"
MOST_ROWS = 16  # ranks in the table; of more, the least and the most
MOST_NAMES = 14  # spans whose names are written over the picture
TITLE = "bytes held on each rank: the peak of each kind, and of all together"
SIDE_BY_SIDE = "bytes held on rank {rank}: the peak of each kind, and of all together"
_LEFT, _RIGHT, _TOP, _HEIGHT, _BOTTOM = 0.9, 0.3, 0.35, 2.2, 0.65  # inches
_CELL = 14


class Stretch(NamedTuple):
    """A span, and the numbers of the first and the last look in it."""

    name: str
    first: int
    last: int


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
    return MemoryPicture(noted, rank, recording.notes, tuple(map(_stretches, recording.ranks)))


def memories(pictures: Mapping[str, MemoryPicture]) -> MemoriesPicture:
    """Draws several runs' memory side by side on one scale, each as its name and its ``Run.memory()``.

    Raises ValueError if there is none.
    """
    if not pictures:
        raise ValueError("memories() expects at least one name and picture.")
    return MemoriesPicture(dict(pictures))


def _stretches(history: Sequence) -> tuple[Stretch, ...]:
    """A rank's spans, the outer before the inner."""
    found, open_ones, looks = [], [], 0
    for event in history:
        if type(event) is Memory:
            looks += 1
        elif type(event) is Span and event.name:
            open_ones.append(len(found))
            found.append(Stretch(event.name, looks, looks))
        elif type(event) is Span and open_ones:
            place = open_ones.pop()
            found[place] = found[place]._replace(last=looks)  # the look right after it belongs to it
    return tuple(found)


@dataclass(frozen=True, repr=False)
class MemoryPicture(Picture):
    """Bytes by kind, stacked over time; ``noted`` has what each rank noted, by rank, and ``spans`` each one's spans."""

    noted: Sequence[Sequence[Memory]]
    rank: int
    notes: tuple[str, ...] = ()
    spans: tuple[tuple[Stretch, ...], ...] = ()

    @property
    def peaks(self) -> list[dict[str, int]]:
        """By rank, the most bytes of each kind, and of "all together"; {} for a rank that noted none."""
        return [_most_by_kind(events) for events in self.noted]

    @property
    def ends(self) -> list[dict[str, int]]:
        """By rank, the bytes of each kind, and of "all together", when it looked last."""
        return [_most_by_kind(events[-1:]) for events in self.noted]

    def during(self, name: str) -> MemoryPicture:
        """What was held inside the spans called ``name``.

        Raises ValueError if the rank that is drawn has none.
        """
        spans = self.spans or ((),) * len(self.noted)
        if name not in {span.name for span in spans[self.rank]}:
            known = ", ".join(dict.fromkeys(span.name for span in spans[self.rank])) or "none"
            raise ValueError(f"no span on rank {self.rank} is called {name!r}; there are {known}")
        inside = [_inside(name, of_rank) for of_rank in spans]
        noted = [[events[look] for look in looks] for events, looks in zip(self.noted, inside)]
        kept = tuple(_within(name, of_rank, looks) for of_rank, looks in zip(spans, inside))
        return replace(self, noted=noted, spans=kept)

    def text(self) -> str:
        """The title, each rank's peak in all and what it was made of, each kind's own peak, and the notes."""
        notes = (f"note: {note}" for note in self.notes)
        return "\n".join([TITLE, *self._table(), *self._allocators(), *wrap(*notes)])

    def _table(self) -> Iterator[str]:
        ranks = [rank for rank, events in enumerate(self.noted) if events]
        if len(ranks) > MOST_ROWS:
            yield f"of {len(ranks):,} ranks the one that peaks lowest, and the one that peaks highest"
            ranks = [pick(ranks, key=self._peak) for pick in (min, max)]
        peaks = self.peaks
        yield from _rows({f"rank {rank}": peaks[rank] for rank in ranks})

    def _allocators(self) -> Iterator[str]:
        """What the devices' own allocators said, where there are any: found and given out are compared."""
        for rank, events in enumerate(self.noted):
            if most := max(events, key=lambda event: event.allocator, default=None):
                if most.allocator:
                    given, found = quantity(most.allocator, "B"), quantity(most.total, "B")
                    yield f"rank {rank}: the device's allocator gave out up to {given}; {found} of it was found"

    def _peak(self, rank: int) -> int:
        return self.peaks[rank][ALL]

    def figure(self) -> Figure:
        """One rank's bytes, stacked, with the peak marked."""
        events = self.noted[self.rank]
        clock = "this computer, measured" if _is_timed(events) else "in order of what was noted"
        title = f"bytes held on rank {self.rank}, by kind ({clock}); peak {quantity(self._peak(self.rank), 'B')}"
        axes, figure = _panels(title, 1)
        spans = self.spans[self.rank] if self.spans else ()
        _draw(axes[0], events, self._peak(self.rank), spans, _is_timed(events))
        if self._peak(self.rank):
            _explain(axes[0], [events])
        return figure


@dataclass(frozen=True, repr=False)
class MemoriesPicture(Picture):
    """Several runs' bytes by kind, one beside the other."""

    pictures: Mapping[str, MemoryPicture]

    def text(self) -> str:
        """Each run's peaks, in a row."""
        ranks = sorted({picture.rank for picture in self.pictures.values()})
        title = SIDE_BY_SIDE.format(rank=" or ".join(map(str, ranks)))
        return "\n".join([title, *_rows({name: p.peaks[p.rank] for name, p in self.pictures.items()})])

    def figure(self) -> Figure:
        """The runs from left to right, each look as wide as the next, on one scale."""
        axes, figure = _panels("bytes held, by kind, look by look from left to right", len(self.pictures))
        peak = max(picture.peaks[picture.rank][ALL] for picture in self.pictures.values())
        for panel, (name, picture) in zip(axes, self.pictures.items()):
            spans = picture.spans[picture.rank] if picture.spans else ()
            _draw(panel, picture.noted[picture.rank], peak, spans, is_timed=False)
            panel.set_xlabel(name, color=INK)
        for panel in axes[1:]:
            panel.tick_params(labelleft=False)
        if peak:
            _explain(axes[0], [picture.noted[picture.rank] for picture in self.pictures.values()])
        return figure


def _inside(name: str, spans: Sequence[Stretch]) -> list[int]:
    """The numbers of the looks inside the spans called ``name``."""
    return sorted({look for span in spans if span.name == name for look in range(span.first, span.last + 1)})


def _within(name: str, spans: Sequence[Stretch], looks: list[int]) -> tuple[Stretch, ...]:
    """The other spans that lie inside these looks, whose numbers begin at 0 now."""
    place = {look: number for number, look in enumerate(looks)}
    inner = [span for span in spans if span.name != name and {span.first, span.last} <= place.keys()]
    return tuple(Stretch(span.name, place[span.first], place[span.last]) for span in inner)


def _most_by_kind(events: Sequence[Memory]) -> dict[str, int]:
    if not events:
        return {}
    return {kind: max(getattr(event, kind) for event in events) for kind in KINDS} | {ALL: max(map(_total, events))}


def _total(event: Memory) -> int:
    return event.total


def _rows(table: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """A heading, and a row for each name."""
    width = max(map(len, table))
    yield f"{'':{width}}" + "".join(f"{column:>{_CELL}}" for column in (*KINDS, ALL))
    for name, by_kind in table.items():
        yield f"{name:{width}}" + "".join(f"{quantity(bytes, 'B'):>{_CELL}}" for bytes in by_kind.values())


def _panels(title: str, number: int) -> tuple[list[Axes], Figure]:
    """Axes beside each other, under a title."""
    height = _TOP + _HEIGHT + _BOTTOM
    figure = new_figure(height)
    figure.text(_LEFT / INCHES, 1 - 0.08 / height, title, va="top", color=INK)
    width, gap = 1 - (_LEFT + _RIGHT) / INCHES, 0.02
    each = (width - gap * (number - 1)) / number
    places = [_LEFT / INCHES + place * (each + gap) for place in range(number)]
    return [figure.add_axes((x, _BOTTOM / height, each, _HEIGHT / height)) for x in places], figure


def _draw(axes: Axes, events: Sequence[Memory], top: int, spans: Sequence[Stretch], is_timed: bool) -> None:
    """Each kind on top of the one before; what was noted holds until the next note."""
    begin = events[0].time
    times = [event.time - begin for event in events] if is_timed else list(range(len(events)))
    times.append(times[-1] + (times[-1] / len(times) or 1.0))
    below = [0] * len(times)
    for kind, look in looks_in_turn(KINDS).items():
        held = [getattr(event, kind) for event in (*events, events[-1])]
        tops = [lower + bytes for lower, bytes in zip(below, held)]
        if any(held):
            style = {"facecolor": look.colour, "hatch": look.hatch, "edgecolor": WHITE, "linewidth": 0.5}
            axes.fill_between(times, below, tops, step="post", label=kind, **style)
        below = tops
    axes.axhline(max(event.total for event in events), color=PALE, linewidth=0.8, linestyle=(0, (4, 3)))
    _name_spans(axes, spans, times)
    axes.set_xlim(0, times[-1])
    axes.set_ylim(0, 1.12 * top or 1)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(lambda bytes, _: quantity(bytes, "B"))
    if is_timed:
        axes.xaxis.set_major_formatter(lambda seconds, _: quantity(seconds, "s"))
    else:
        axes.set_xticks([])
    axes.tick_params(length=2, color=PALE, labelcolor=INK)
    axes.spines[["left", "bottom"]].set_color(FAINT)


def _name_spans(axes: Axes, spans: Sequence[Stretch], times: Sequence[float]) -> None:
    """Writes the names of the outermost spans where they are, if they are few."""
    outermost: list[Stretch] = []
    for span in spans:
        if not outermost or span.first >= outermost[-1].last:
            outermost.append(span)
    if len(outermost) > MOST_NAMES:
        return
    for span in outermost:
        start, end = times[span.first], times[min(span.last, len(times) - 1)]
        axes.axvline(start, color=PALE, linewidth=0.5)
        axes.text((start + end) / 2, 0.985, span.name, transform=axes.get_xaxis_transform(), ha="center", va="top")


def _explain(axes: Axes, runs: Sequence[Sequence[Memory]]) -> None:
    """A legend of the kinds that occur, below the picture."""
    from matplotlib.patches import Patch

    looks = looks_in_turn(KINDS)
    there = [kind for kind in KINDS if any(getattr(event, kind) for events in runs for event in events)]
    patches = [Patch(facecolor=looks[k].colour, hatch=looks[k].hatch, edgecolor=WHITE, label=k) for k in there]
    where = {"loc": "upper left", "bbox_to_anchor": (0, -0.28 / _HEIGHT), "borderaxespad": 0}
    axes.legend(handles=patches, ncols=len(KINDS), frameon=False, handlelength=1.8, **where)


def _is_timed(events: Sequence[Memory]) -> bool:
    return any(event.time for event in events)
