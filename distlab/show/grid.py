"""Grid: a matrix of bytes from rank to rank, in characters."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distlab.machine.units import quantity

MOST_NUMBERS = 8  # ranks; more have a digit for each cell
MOST_CELLS = 64  # on a side; more ranks than that share cells
NOTHING = "·"
_CELL = 9


@dataclass(frozen=True)
class Grid:
    """Bytes by (row, column), where each row and column stands for ``ranks_per_cell`` ranks."""

    num_ranks: int
    cells: Mapping[tuple[int, int], float]
    ranks_per_cell: int = 1

    @classmethod
    def of(cls, num_ranks: int, bytes_by_pair: Mapping[tuple[int, int], float]) -> Grid:
        """Puts so many ranks into a cell that all fit."""
        together = max(1, math.ceil(num_ranks / MOST_CELLS))
        cells: Counter = Counter()
        for (source, target), bytes in bytes_by_pair.items():
            cells[source // together, target // together] += bytes
        return cls(num_ranks, cells, together)

    @property
    def side(self) -> int:
        """Rows, and columns."""
        return math.ceil(self.num_ranks / self.ranks_per_cell)

    def name(self, number: int) -> str:
        """The ranks of a row or column."""
        first = number * self.ranks_per_cell
        last = min(first + self.ranks_per_cell, self.num_ranks) - 1
        return f"{first}" if first == last else f"{first}–{last}"

    def sums(self) -> list[float]:
        """What each row sends."""
        sums = [0.0] * self.side
        for (row, _), bytes in self.cells.items():
            sums[row] += bytes
        return sums

    def lines(self) -> Iterator[str]:
        """A line for each row, with its sum: numbers if they fit, digits otherwise."""
        names = [f"from {self.name(number)}" for number in range(self.side)]
        width, sums, are_numbers = max(map(len, names), default=0), self.sums(), self.side <= MOST_NUMBERS
        if are_numbers:
            header = "".join(f"{f'to {self.name(number)}':>{_CELL}}" for number in range(self.side))
            yield f"{'':{width}} {header} {'in all':>{_CELL}}"
        for row, name in enumerate(names):
            cells = self._numbers(row) if are_numbers else f"|{self._digits(row)}|"
            yield f"{name:{width}} {cells} {quantity(sums[row], 'B'):>{_CELL}}"
        if not are_numbers:
            largest = quantity(max(self.cells.values(), default=0), "B")
            yield f"{'':{width}} a column for each target in order; 1 to 9: ninths of the largest, {largest}"

    def _numbers(self, row: int) -> str:
        cells = (self.cells.get((row, column), 0) for column in range(self.side))
        return "".join(f"{quantity(bytes, 'B') if bytes else NOTHING:>{_CELL}}" for bytes in cells)

    def _digits(self, row: int) -> str:
        largest = max(self.cells.values(), default=0)
        cells = (self.cells.get((row, column), 0) for column in range(self.side))
        return "".join(str(math.ceil(9 * bytes / largest)) if bytes else NOTHING for bytes in cells)
