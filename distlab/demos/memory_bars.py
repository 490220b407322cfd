"""Bars of what one GPU holds in each ZeRO stage, against the memory of cards; and one stage's numbers in a table."""

from __future__ import annotations

from collections.abc import Sequence

from distlab.machine.memory import CARDS, Card
from distlab.show.board import MARGIN, Board
from distlab.show.letters import width_of
from distlab.show.look import MID, SERIES, WIDTH

KINDS = ("parameters", "gradients", "optimizer", "activations")
_LOOKS = dict(zip(KINDS, SERIES))
_TOP, _FLOOR = 0.8, 3.42  # inches: the highest a bar goes, and where all begin
_FIRST, _SLOT, _BAR = 0.2, 1.2, 0.8
_END, _TABLE = 4.94, 6.8  # inches: where the cards' lines end, and where the table begins
_ROWS, _ROW = 1.2, 0.38  # of the table: the first, and from one to the next
_CUT, _SLANT, _FREE = _TOP + 0.44, 0.06, 0.1  # of a long bar: what is over _CUT goes on beyond a slanted gap
_OVER, _LINE = 0.2, 0.24  # inches: how high over a bar its amount stands, and from line to line under it


def smallest_card(size: float) -> Card | None:
    """The smallest card into which ``size`` bytes fit."""
    return next((card for card in CARDS if size <= card.bytes), None)


def amount(size: float) -> str:
    """Bytes in GB of 1e9, and in TB where these are many: "6,494 GB", "31.4 GB", "0.12 GB", "44,633 TB"."""
    number, unit = (size / 1e9, "GB") if size < 99_999.5e9 else (size / 1e12, "TB")
    if number >= 99.95:
        return f"{number:,.0f} {unit}"
    return f"{number:.1f} {unit}" if number >= 0.95 else f"{number:.2g} {unit}"


def draw_bars(board: Board, held: Sequence[dict[str, float]], shared: Sequence[str], chosen: int) -> None:
    """Draws a bar a stage from its bytes by kind, with the words of ``shared`` under it, and marks the chosen one.

    Later stages have names only, so that a class can guess. The scale follows the longest bar, stage 0's, as far as the
    largest card; what is longer is cut, and its amount written.
    """
    for stage in range(chosen + 1, len(held)):
        board.word(_sides(stage)[2], _FLOOR + 0.2, f"stage {stage}", colour=MID)
    held = held[: chosen + 1]
    totals = [sum(kinds.values()) for kinds in held]
    high = next((1.12 * card.bytes for card in CARDS if max(totals) < card.bytes), 1.12 * CARDS[-1].bytes)
    tops = [_y(total, high) for total in totals]
    _draw_cards(board, high, [(top - _OVER, amount(total)) for top, total in zip(tops, totals)])
    for stage, kinds in enumerate(held):
        _draw_bar(board, stage, kinds, high)
    for stage, (total, top) in enumerate(zip(totals, tops)):
        left, right, middle = _sides(stage)
        is_chosen, card = stage == chosen, smallest_card(total)
        if is_chosen:
            board.frames([(left - 0.07, top - 0.05, right + 0.07, _FLOOR + 0.02)], width=2.5)
        fits = f"fits {card.gigabytes} GB" if card else "fits no card"
        weight = "bold" if is_chosen else ""
        board.word(middle, top - _OVER, amount(total), weight=weight)
        board.word(middle, _FLOOR + 0.2, f"stage {stage}", weight=weight)
        for line, words in enumerate(f"{shared[stage]}\n{fits}".split("\n"), start=1):
            board.word(middle, _FLOOR + 0.2 + _LINE * line, words)


def _y(size: float, high: float) -> float:
    return _FLOOR - (_FLOOR - _TOP) * min(1.0, size / high)


def _sides(stage: int) -> tuple[float, float, float]:
    """Of a bar: left, right and middle."""
    left = _FIRST + stage * _SLOT
    return left, left + _BAR, left + _BAR / 2


def _draw_cards(board: Board, high: float, amounts: Sequence[tuple[float, str]]) -> None:
    """A line for each card's memory, its name at the end; a gap wherever an amount stands, at its y, over a bar."""
    board.lines([(MARGIN, _FLOOR, _END, _FLOOR)], MID)
    for card in (card for card in CARDS if card.bytes < high):
        y, x, pieces = _y(card.bytes, high), MARGIN, []
        for stage in (stage for stage, (at, _) in enumerate(amounts) if abs(at - y) < 0.15):
            half = width_of(amounts[stage][1], is_bold=True) / 2 + 0.04
            pieces.append((x, y, _sides(stage)[2] - half, y))
            x = _sides(stage)[2] + half
        board.lines([*pieces, (x, y, _END, y)], MID, style="--", under=True)
        board.word(_END + 0.06, y, f"{card.gigabytes} GB: {card.names}", size=12.5, align="left")


def _draw_bar(board: Board, stage: int, kinds: dict[str, float], high: float) -> None:
    """One kind over the other, with their letters; a bar that is too long goes on beyond a gap."""
    left, right, middle = _sides(stage)
    is_cut, below = sum(kinds.values()) > high, 0.0
    highest = _CUT if is_cut else 0.0
    for kind in KINDS:
        y0, y1 = max(highest, _y(below + kinds[kind], high)), max(highest, _y(below, high))
        look, goes_on = _LOOKS[kind], is_cut and below <= high < below + kinds[kind]
        below += kinds[kind]
        if y1 - y0 > 0.004:
            board.boxes([(left, y0, right, y1)], look)
        if y1 - y0 > 0.22:
            board.numbers([(middle, (y0 + y1) / 2, kind[0].upper())], look)
        if goes_on:
            left, right = left + 0.006, right - 0.006  # as boxes
            slanted, floor = _TOP + _SLANT, _CUT + 0.01  # no line between the two pieces
            board.area(
                [(left, floor), (right, floor), (right, slanted + _FREE), (left, slanted + _SLANT + _FREE)], look
            )
            board.area([(left, _TOP), (right, _TOP), (right, slanted), (left, slanted + _SLANT)], look)


def draw_table(board: Board, stage: int, held: dict[str, float], with_activations: bool) -> None:
    """Writes what one GPU holds in a stage, by kind and together."""
    right, y = WIDTH - MARGIN, _ROWS
    board.word(_TABLE, y - 0.42, f"stage {stage}, each GPU", align="left", weight="bold")
    for kind, size in held.items():
        is_counted, look = kind != "activations" or with_activations, _LOOKS[kind]
        board.boxes([(_TABLE, y - 0.14, _TABLE + 0.32, y + 0.14)], look)
        board.numbers([(_TABLE + 0.16, y, kind[0].upper())], look)
        board.word(_TABLE + 0.4, y, kind, align="left")
        board.word(right, y, amount(size) if is_counted else "–", align="right")
        y += _ROW
    board.lines([(_TABLE, y - 0.13, right, y - 0.13)], MID)
    board.word(_TABLE, y + 0.1, "together", align="left", weight="bold")
    board.word(right, y + 0.1, amount(sum(held.values())), align="right", weight="bold")
