"""memory(): the bytes that a rank holds over time, by kind; memories(): several runs side by side.

Only what a rank noted is shown: where it did not look there is no number and no bar.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from distlab.events import Compute, Memory, Span
from distlab.machine.units import quantity
from distlab.recording import Recording
from distlab.show import areas
from distlab.show.areas import KINDS, Looks, Stretch
from distlab.show.board import LINE, MARGIN, Board
from distlab.show.look import WIDTH
from distlab.show.marks import Rectangle
from distlab.show.picture import Picture
from distlab.show.words import IN_A_PICTURE, in_short, wrap

ALL = "all together"
MOST_ROWS = 16  # ranks in the table; of more, the least and the most
TITLE = "bytes held on each rank: the peak of each kind, and of all together"
SIDE_BY_SIDE = "bytes held on rank {rank}: the peak of each kind, and of all together"
UNSEEN = "not looked at"
_CELL = 14
_LEFT, _HEIGHT, _BETWEEN = 1.02, 2.6, 0.15  # inches


def memory(recording: Recording, rank: int = 0) -> MemoryPicture:
    """Draws what ``rank`` held over time; the text has the peaks of all ranks.

    Raises ValueError for a recording in which nobody noted its memory, saying how to have it noted, and for a rank that
    is not there or noted none.
    """
    looks = [Looks.of(history) for history in recording.ranks]
    known = ", ".join(str(rank) for rank, of_rank in enumerate(looks) if of_rank.events)
    if not known:
        raise ValueError(f"This recording has no memory in it: no rank noted what it holds. {_remedy(recording)}")
    if not 0 <= rank < len(looks) or not looks[rank].events:
        raise ValueError(f"Nothing was noted on rank {rank}. Memory was noted on ranks {known}.")
    return MemoryPicture(tuple(looks), rank, recording.notes)


def _remedy(recording: Recording) -> str:
    """What to write so that memory is noted. With "messages" operators are not counted, and spans not looked at."""
    work = recording.events(Compute)
    if recording.events(Span) or work and not any(event.operators for event in work):
        return (
            'With record="messages" none does: run it with record=True, which is what run() does by itself, '
            'and with `with span("step"):` around what you want to see.'
        )
    return 'Ranks look where spans begin and end: put `with span("step"):` around what you want to see, and run again.'


def memories(pictures: Mapping[str, MemoryPicture]) -> MemoriesPicture:
    """Draws several runs' memory side by side on one scale, each as its name and its ``Run.memory()``.

    Raises ValueError if there is none.
    """
    if not pictures:
        raise ValueError("memories() expects at least one name and picture.")
    return MemoriesPicture(dict(pictures))


@dataclass(frozen=True, repr=False)
class MemoryPicture(Picture):
    """Bytes by kind, stacked over time; ``looks`` has what each rank noted, by rank."""

    looks: tuple[Looks, ...]
    rank: int
    notes: tuple[str, ...] = ()

    @property
    def noted(self) -> list[Sequence[Memory]]:
        """By rank, what it noted, in order."""
        return [of_rank.events for of_rank in self.looks]

    @property
    def spans(self) -> list[tuple[Stretch, ...]]:
        """By rank, its spans, the outer before the inner."""
        return [of_rank.spans for of_rank in self.looks]

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

        Raises ValueError if the rank that is drawn has none, or did not look in it.
        """
        spans = self.spans[self.rank]
        if name not in {span.name for span in spans}:
            known = ", ".join(dict.fromkeys(span.name for span in spans)) or "none"
            raise ValueError(f"no span on rank {self.rank} is called {name!r}; there are {known}")
        looks = tuple(of_rank.during(name) for of_rank in self.looks)
        if not looks[self.rank].events:
            raise ValueError(f"Rank {self.rank} did not look at its memory in {name!r}: the recording ends before.")
        return replace(self, looks=looks)

    def text(self) -> str:
        """The title, each rank's peak in all and what it was made of, each kind's own peak, and the notes."""
        notes = (f"note: {note}" for note in self.notes)
        return "\n".join([TITLE, *self._table(), *self._allocators(), *wrap(*notes)])

    def _table(self) -> Iterator[str]:
        ranks, peaks = list(range(len(self.looks))), self.peaks
        if len(ranks) > MOST_ROWS:
            seen = [rank for rank in ranks if peaks[rank]]
            unseen = f"; {len(ranks) - len(seen):,} of them were {UNSEEN}" if len(seen) < len(ranks) else ""
            yield f"of {len(ranks):,} ranks the one that peaks lowest, and the one that peaks highest{unseen}"
            ranks = [pick(seen, key=lambda rank: peaks[rank][ALL]) for pick in (min, max)]
        yield from _rows({f"rank {rank}": peaks[rank] for rank in ranks})

    def _allocators(self) -> Iterator[str]:
        """What the devices' own allocators said, where there are any: found and given out are compared."""
        for rank, events in enumerate(self.noted):
            if most := max(events, key=lambda event: event.allocator, default=None):
                if most.allocator:
                    given, found = quantity(most.allocator, "B"), quantity(most.total, "B")
                    yield f"rank {rank}: the device's allocator gave out up to {given}; {found} of it was found"

    def board(self) -> Board:
        """One rank's bytes, stacked, with the peak marked."""
        looks, peak = self.looks[self.rank], self.peaks[self.rank][ALL]
        clock = "this computer, measured" if looks.is_timed else "in order of what was noted"
        title = f"bytes held on rank {self.rank}, by kind ({clock}); peak {quantity(peak, 'B')}"
        board, area = _framed(wrap(title, *in_short(self.notes), width=IN_A_PICTURE))
        areas.draw(board, area, looks, peak, looks.is_timed)
        board.height = 0.2 + areas.explain(board, area[0], board.height, [looks], looks.is_timed)
        return board


@dataclass(frozen=True, repr=False)
class MemoriesPicture(Picture):
    """Several runs' bytes by kind, one beside the other."""

    pictures: Mapping[str, MemoryPicture]

    def text(self) -> str:
        """Each run's peaks, in a row, and its notes."""
        ranks = sorted({picture.rank for picture in self.pictures.values()})
        title = SIDE_BY_SIDE.format(rank=" or ".join(map(str, ranks)))
        rows = _rows({name: p.peaks[p.rank] for name, p in self.pictures.items()})
        return "\n".join([title, *rows, *wrap(*(f"note: {note}" for note in self._notes()))])

    def _notes(self) -> list[str]:
        return [f"{name}: {note}" for name, picture in self.pictures.items() for note in picture.notes]

    def board(self) -> Board:
        """The runs from left to right, each look as wide as the next, on one scale."""
        title = "bytes held, by kind, look by look from left to right"
        board, (left, top, right, floor) = _framed(wrap(title, *in_short(self._notes()), width=IN_A_PICTURE))
        peak = max(picture.peaks[picture.rank][ALL] for picture in self.pictures.values())
        looks = [picture.looks[picture.rank] for picture in self.pictures.values()]
        each = (right - left + _BETWEEN) / len(looks)
        for number, (name, of_run) in enumerate(zip(self.pictures, looks)):
            x0, x1 = left + number * each, left + (number + 1) * each - _BETWEEN
            areas.draw(board, (x0, top, x1, floor), of_run, peak, by_time=False, with_axis=not number)
            board.word((x0 + x1) / 2, floor + 0.18, name, weight="bold")
        board.height = 0.2 + areas.explain(board, left, board.height, looks, by_time=False)
        return board


def _framed(caption: Sequence[str]) -> tuple[Board, Rectangle]:
    """A board with its caption, and the area that is left for bytes."""
    top = 0.16 + LINE * len(caption)
    board = Board("", top + _HEIGHT + 0.5)
    board.caption(caption)
    return board, (_LEFT, top, WIDTH - MARGIN, top + _HEIGHT)


def _most_by_kind(events: Sequence[Memory]) -> dict[str, int]:
    if not events:
        return {}
    most = {kind: max(getattr(event, kind) for event in events) for kind in KINDS}
    return most | {ALL: max(event.total for event in events)}


def _rows(table: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """A heading, and a row for each name."""
    width = max(map(len, table))
    yield f"{'':{width}}" + "".join(f"{column:>{_CELL}}" for column in (*KINDS, ALL))
    for name, by_kind in table.items():
        cells = [quantity(by_kind[kind], "B") for kind in (*KINDS, ALL)] if by_kind else [UNSEEN]
        yield f"{name:{width}}" + "".join(f"{cell:>{_CELL}}" for cell in cells)
