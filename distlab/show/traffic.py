"""traffic(): the bytes from rank to rank, what was observed told apart from what is assumed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from distlab.machine.units import quantity
from distlab.recording import Recording
from distlab.show import traffic_image
from distlab.show.board import Board
from distlab.show.grid import Grid
from distlab.show.picture import Picture
from distlab.show.words import wrap
from distlab.traffic import ASSUMPTIONS, Traffic, count_traffic


def traffic(recording: Recording) -> TrafficPicture:
    """Draws the bytes that each rank sends to each other; raises ValueError for a collective that is not known."""
    return TrafficPicture(count_traffic(recording), recording.as_if, recording.notes)


@dataclass(frozen=True, repr=False)
class TrafficPicture(Picture):
    """A matrix, a row for each sender, with its sum; ``traffic`` has the numbers."""

    traffic: Traffic
    as_if: str = ""
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """The title, the matrices of what was observed and of what is assumed, the totals and the notes."""
        lines = wrap(self._title())
        for what, bytes_by_pair in (
            ("observed, by send", self.traffic.observed),
            ("assumed, for built-in collectives", self.traffic.assumed),
        ):
            if bytes_by_pair:
                lines += [f"{what}:", *Grid.of(self.traffic.num_ranks, bytes_by_pair).lines()]
        lines += wrap(*self._assumptions(), *self._totals())
        return "\n".join([*lines, *wrap(*(f"note: {note}" for note in self.notes))])

    def board(self) -> Board:
        """The matrix in colours, what is assumed hatched, and the row sums as bars."""
        return traffic_image.draw(self.traffic, self._title(), [*self._totals(), *self._assumptions()])

    def _title(self) -> str:
        words = f"bytes sent, from rank (rows) to rank (columns), {self.traffic.num_ranks:,} ranks"
        return ", ".join(filter(None, [words, self.as_if]))

    def _assumptions(self) -> Iterator[str]:
        for kind in self.traffic.collectives:
            yield f"assumed for {kind}: {ASSUMPTIONS[kind]}"

    def _totals(self) -> Iterator[str]:
        observed, assumed = self.traffic.observed.total(), self.traffic.assumed.total()
        words = f"observed {quantity(observed, 'B')} (send) + assumed {quantity(assumed, 'B')} (built-in collectives)"
        yield f"{words} = {quantity(self.traffic.total, 'B')} in all"
        sent = self.traffic.sent()
        if sent and max(sent) > min(sent):
            yield f"busiest sender: rank {sent.index(max(sent))}, {quantity(max(sent), 'B')}"
        elif any(sent):
            yield f"every rank sends {quantity(sent[0], 'B')}"
