"""Bars of what one GPU holds in each ZeRO stage, against the memory of cards; and one stage's numbers in a table."""

from __future__ import annotations

from collections.abc import Sequence

from distlab.machine.memory import CARDS, Card
from distlab.show.board import MARGIN, Board
from distlab.show.look import INK, MID, SERIES, WHITE, WIDTH
from distlab.show.marks import Rectangle

KINDS = ("parameters", "gradients", "optimizer", "activations")
_LOOKS = dict(zip(KINDS, SERIES))
_TOP, _FLOOR = 0.72, 3.38  # inches: the highest a bar goes, and where all begin
_FIRST, _SLOT, _BAR = 0.2, 1.36, 0.86
_CARDS_AT, _END, _TABLE = 5.5, 6.95, 7.1
_ROWS, _ROW = 1.2, 0.36  # of the table: the first, and from one to the next
_CUT = _TOP + 0.4  # inches: where the cut through a long bar ends
_OVER = 0.2  # inches: how high over a bar its amount stands


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
        board.word(_sides(stage)[2], _FLOOR + 0.22, f"stage {stage}", colour=MID)
    held = held[: chosen + 1]
    totals = [sum(kinds.values()) for kinds in held]
    high = next((1.12 * card.bytes for card in CARDS if max(totals) < card.bytes), 1.12 * CARDS[-1].bytes)
    tops = [_y(total, high) for total in totals]
    _draw_cards(board, high, tops)
    _draw_pieces(board, held, high)
    for stage, (total, top) in enumerate(zip(totals, tops)):
        left, right, middle = _sides(stage)
        if total > high:  # two slanted lines through a bar that goes on beyond the picture
            for width, colour in ((9, INK), (6, WHITE)):
                board.lines([(left - 0.06, _TOP + 0.3, right + 0.06, _TOP + 0.16)], colour=colour, width=width)
        is_chosen, card = stage == chosen, smallest_card(total)
        if is_chosen:
            board.frames([(left - 0.07, top - 0.05, right + 0.07, _FLOOR + 0.02)], width=2.5)
        name = f"▲ stage {stage} ▲" if is_chosen else f"stage {stage}"
        fits = f"fits {card.gigabytes} GB" if card else "fits no card"
        weight = "bold" if is_chosen else ""
        board.word(middle, top - _OVER, amount(total), size=12, weight=weight)
        for line, words in enumerate((name, shared[stage], fits)):
            board.word(middle, _FLOOR + 0.22 + 0.22 * line, words, weight=weight)


def _y(size: float, high: float) -> float:
    return _FLOOR - (_FLOOR - _TOP) * min(1.0, size / high)


def _sides(stage: int) -> tuple[float, float, float]:
    """Of a bar: left, right and middle."""
    left = _FIRST + stage * _SLOT
    return left, left + _BAR, left + _BAR / 2


def _draw_cards(board: Board, high: float, tops: Sequence[float]) -> None:
    """A line for each card's memory, which leaves room for the amounts over the bars."""
    board.lines([(MARGIN, _FLOOR, _END, _FLOOR)], colour=INK)
    for card in (card for card in CARDS if card.bytes < high):
        y, x, pieces = _y(card.bytes, high), MARGIN, []
        for stage in (stage for stage, top in enumerate(tops) if abs(top - _OVER - y) < 0.13):
            left, right, _ = _sides(stage)
            pieces.append((x, y, max(x, left - 0.03), y))
            x = right + 0.03
        board.lines([*pieces, (x, y, _END, y)], colour=INK, style="--")
        board.word(_CARDS_AT, y - 0.11, f"{card.gigabytes} GB: {card.names}", size=10, align="left")


def _draw_pieces(board: Board, held: Sequence[dict[str, float]], high: float) -> None:
    """All bars, one kind after the other."""
    below = [0.0] * len(held)
    letters = []
    for kind in KINDS:
        boxes: list[Rectangle] = []
        for stage, kinds in enumerate(held):
            y0, y1 = _y(below[stage] + kinds[kind], high), _y(below[stage], high)
            below[stage] += kinds[kind]
            left, right, middle = _sides(stage)
            if y1 - y0 > 0.004:
                boxes.append((left, y0, right, y1))
            if y1 - y0 > 0.18 and (y0 + y1) / 2 > _CUT:
                letters.append((middle, (y0 + y1) / 2, kind[0].upper()))
        if boxes:
            board.boxes(boxes, _LOOKS[kind])
    board.numbers(letters)


def draw_table(board: Board, stage: int, held: dict[str, float], with_activations: bool) -> None:
    """Writes what one GPU holds in a stage, by kind and together."""
    right, y = WIDTH - MARGIN, _ROWS
    board.lines([(_TABLE - 0.14, _TOP, _TABLE - 0.14, board.height - 0.1)])
    board.word(_TABLE, y - 0.42, f"stage {stage}, each GPU", align="left", weight="bold")
    letters = []
    for kind, size in held.items():
        is_counted = kind != "activations" or with_activations
        board.boxes([(_TABLE, y - 0.13, _TABLE + 0.34, y + 0.13)], _LOOKS[kind])
        letters.append((_TABLE + 0.17, y, kind[0].upper()))
        board.word(_TABLE + 0.44, y, kind, align="left")
        board.word(right, y, amount(size) if is_counted else "–", align="right")
        y += _ROW
    board.numbers(letters)
    board.lines([(_TABLE, y - 0.12, right, y - 0.12)], colour=INK)
    board.word(_TABLE, y + 0.1, "together", align="left", weight="bold")
    board.word(right, y + 0.1, amount(sum(held.values())), align="right", weight="bold")
