"""bytes_by_kind(): the bytes that each rank sends, by kind of message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distlab.machine.units import quantity
from distlab.recording import Recording
from distlab.show.board import LINE, Board
from distlab.show.chart import room_of
from distlab.show.letters import width_of
from distlab.show.look import LETTERS, WIDTH, look_of_message
from distlab.show.picture import Picture
from distlab.show.words import IN_A_PICTURE, wrap
from distlab.traffic import ASSUMPTIONS, Sent, count_sent

MOST_ROWS = 16  # ranks; of more, the mean and the largest
TITLE = "sent by each rank, by kind of message: how many, and the bytes that leave the rank with one"
_RIGHT, _ROW, _AROUND, _CELL = 1.15, 0.44, 0.05, 18  # inches; columns of a text

# Its name, and by kind how many messages (on average) and their bytes.
Row = tuple[str, dict[str, tuple[float, float]]]


def bytes_by_kind(recording: Recording) -> KindsPicture:
    """Draws how many messages of each kind each rank issued, and the bytes that left it with them.

    How built-in collectives move theirs is assumed, as in traffic(). Raises ValueError for one that is not known.
    """
    return KindsPicture(count_sent(recording), recording.as_if, recording.notes)


@dataclass(frozen=True, repr=False)
class KindsPicture(Picture):
    """A row for each rank, or for their mean and the largest; ``sent`` has the numbers, by rank and kind."""

    sent: Sequence[dict[str, Sent]]
    as_if: str = ""
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """The title, a table, and the notes."""
        assumed = (f"assumed for {kind}: {ASSUMPTIONS[kind]}" for kind in self._kinds() if kind in ASSUMPTIONS)
        notes = (f"note: {note}" for note in self.notes)
        return "\n".join([*wrap(self._title()), *self._table(), *wrap(*assumed, *notes)])

    def board(self) -> Board:
        """A bar for each row, a part for each kind."""
        rows, kinds = self._rows(), self._kinds()
        caption = wrap(self._title(), width=IN_A_PICTURE)
        top = 0.16 + LINE * len(caption)
        board = Board("", top + _ROW * max(1, len(rows)))
        board.caption(caption)
        left = 0.2 + max((width_of(name) for name, _ in rows), default=0.0)
        _draw_bars(board, rows, kinds, left, top)
        looks = {kind: look_of_message(kind).plain for kind in kinds}
        board.height = 0.2 + (board.key(left, board.height + 0.24, looks) if kinds else board.height)
        return board

    def _title(self) -> str:
        return ", ".join(filter(None, [TITLE, self.as_if]))

    def _kinds(self) -> list[str]:
        kinds = {kind: None for of_rank in self.sent for kind in of_rank}
        return sorted(kinds, key=lambda kind: (kind != "send", kind))

    def _rows(self) -> list[Row]:
        num_ranks = len(self.sent)
        if num_ranks <= MOST_ROWS:
            return [(f"rank {rank}", of_rank) for rank, of_rank in enumerate(self.sent)]
        totals = [sum(sent.bytes for sent in of_rank.values()) for of_rank in self.sent]
        largest = totals.index(max(totals))
        mean = {kind: self._mean(kind) for kind in self._kinds()}
        return [(f"mean of {num_ranks:,}", mean), (f"largest, rank {largest}", self.sent[largest])]

    def _mean(self, kind: str) -> tuple[float, float]:
        of_ranks = [of_rank.get(kind, Sent(0, 0)) for of_rank in self.sent]
        return tuple(sum(numbers) / len(of_ranks) for numbers in zip(*of_ranks))

    def _table(self) -> Iterator[str]:
        """Split where it would be too wide."""
        rows, kinds, at_once = self._rows(), self._kinds(), 5
        width = max((len(name) for name, _ in rows), default=0)
        for first in range(0, len(kinds), at_once):
            yield f"{'':{width}}" + "".join(f"{kind:>{_CELL}}" for kind in kinds[first : first + at_once])
            for name, numbers in rows:
                cells = (numbers.get(kind, (0, 0)) for kind in kinds[first : first + at_once])
                yield f"{name:{width}}" + "".join(f"{_in_words(*cell):>{_CELL}}" for cell in cells)
        if not kinds:
            yield "no messages"


def _draw_bars(board: Board, rows: Sequence[Row], kinds: Sequence[str], left: float, top: float) -> None:
    """A bar for each row, a part for each kind, under each other from (left, top) on."""
    totals = [sum(bytes for _, bytes in numbers.values()) for _, numbers in rows]
    inches = (WIDTH - left - _RIGHT) / (max(totals, default=0) or 1)
    for row, ((name, numbers), total) in enumerate(zip(rows, totals)):
        x, y = left, top + _ROW * (row + 0.5)
        board.word(left - 0.08, y, name, align="right")
        board.word(left + total * inches + 0.08, y, quantity(total, "B"), align="left")
        for kind in (kind for kind in kinds if numbers.get(kind, (0, 0))[1]):
            look, (count, bytes) = look_of_message(kind).plain, numbers[kind]
            board.boxes([(x, y - _ROW / 2 + _AROUND, x + bytes * inches, y + _ROW / 2 - _AROUND)], look)
            fitting = (text for text in (f"{count:,.4g} × {kind}", kind) if room_of(text, LETTERS) < bytes * inches)
            board.word(x + bytes * inches / 2, y, next(fitting, ""), colour=look.ink)
            x += bytes * inches


def _in_words(count: float, bytes: float) -> str:
    return f"{count:,.4g} × {quantity(bytes / count, 'B')}" if count else "–"
