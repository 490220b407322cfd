"""bytes_by_kind(): the messages of each rank, by kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from distlab.machine.units import quantity
from distlab.recording import Recording
from distlab.show.colours import FAINT, INK, WHITE, looks_in_turn
from distlab.show.picture import CAPTION_WIDTH, INCHES, Picture, new_figure, wrap
from distlab.traffic import Payload, count_payloads

MOST_ROWS = 16  # ranks; of more, the mean and the largest
TITLE = "messages issued by each rank, by kind: how many, and how large (of a collective the whole array)"
_LEFT, _RIGHT, _CELL = 1.3, 0.9, 18

# Its name, and by kind how many messages (on average) and their bytes.
Row = tuple[str, dict[str, tuple[float, float]]]


def bytes_by_kind(recording: Recording) -> KindsPicture:
    """Draws how many messages of each kind each rank issued, and how many bytes they held."""
    return KindsPicture(count_payloads(recording), recording.as_if, recording.notes)


@dataclass(frozen=True, repr=False)
class KindsPicture(Picture):
    """A row for each rank, or for their mean and the largest; ``payloads`` has the numbers, by rank and kind."""

    payloads: Sequence[dict[str, Payload]]
    as_if: str = ""
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """The title, a table, and the notes."""
        notes = (f"note: {note}" for note in self.notes)
        return "\n".join([*wrap(self._title()), *self._table(), *wrap(*notes)])

    def figure(self) -> Figure:
        """A bar for each row, a part for each kind."""
        rows, title = self._rows(), wrap(self._title(), width=CAPTION_WIDTH)
        top, inside = 0.2 + 0.15 * len(title), max(1, len(rows)) * 0.34
        height = top + inside + 0.55
        figure = new_figure(height)
        figure.text(_LEFT / INCHES, 1 - 0.08 / height, "\n".join(title), va="top", color=INK)
        position = (_LEFT / INCHES, 0.55 / height, 1 - (_LEFT + _RIGHT) / INCHES, inside / height)
        _draw_bars(figure.add_axes(position), rows, self._kinds(), inside)
        return figure

    def _title(self) -> str:
        return ", ".join(filter(None, [TITLE, self.as_if]))

    def _kinds(self) -> list[str]:
        kinds = {kind: None for of_rank in self.payloads for kind in of_rank}
        return sorted(kinds, key=lambda kind: (kind not in ("send", "recv"), kind))

    def _rows(self) -> list[Row]:
        num_ranks = len(self.payloads)
        if num_ranks <= MOST_ROWS:
            return [(f"rank {rank}", of_rank) for rank, of_rank in enumerate(self.payloads)]
        totals = [sum(payload.bytes for payload in of_rank.values()) for of_rank in self.payloads]
        largest = totals.index(max(totals))
        mean = {kind: self._mean(kind) for kind in self._kinds()}
        return [(f"mean of {num_ranks:,}", mean), (f"largest, rank {largest}", self.payloads[largest])]

    def _mean(self, kind: str) -> tuple[float, float]:
        of_ranks = [of_rank.get(kind, Payload(0, 0)) for of_rank in self.payloads]
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


def _draw_bars(axes: Axes, rows: list[Row], kinds: Sequence[str], height: float) -> None:
    """A bar for each row, a part for each kind, on axes ``height`` inches high."""
    totals = [sum(bytes for _, bytes in numbers.values()) for _, numbers in rows]
    largest = max(totals, default=0) or 1
    ends = [0.0] * len(rows)
    for kind, look in looks_in_turn(kinds).items():
        parts = [numbers.get(kind, (0, 0)) for _, numbers in rows]
        style = {"color": look.colour, "hatch": look.hatch, "edgecolor": WHITE, "linewidth": 0.7, "height": 0.72}
        axes.barh(range(len(rows)), [bytes for _, bytes in parts], left=ends, label=kind, **style)
        for row, (count, bytes) in enumerate(parts):
            words = next((text for text in (f"{count:,.4g} × {kind}", kind) if _fits(text, bytes / largest)), "")
            around = [withStroke(linewidth=2.5, foreground=look.colour)]
            place = {"ha": "center", "va": "center_baseline", "color": INK, "path_effects": around}
            axes.text(ends[row] + bytes / 2, row, words, **place)
        ends = [end + bytes for end, (_, bytes) in zip(ends, parts)]
    for row, total in enumerate(totals):
        axes.text(total, row, f" {quantity(total, 'B')}", va="center_baseline", color=INK)
    axes.set_xlim(0, largest)
    axes.set_ylim(max(1, len(rows)) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.spines["left"].set_color(FAINT)
    axes.tick_params(length=0, labelcolor=INK)
    if kinds:
        where = {"loc": "upper left", "bbox_to_anchor": (0, -0.1 / height), "borderaxespad": 0}
        axes.legend(ncols=6, frameon=False, handlelength=1.8, **where)


def _fits(text: str, share: float) -> bool:
    """Whether 8-point letters fit into a share of the longest bar."""
    return (0.62 * len(text) + 0.5) * 8 / 72 < share * (INCHES - _LEFT - _RIGHT)


def _in_words(count: float, bytes: float) -> str:
    return f"{count:,.4g} × {quantity(bytes / count, 'B')}" if count else "–"
