"""Lanes on a board: a row for each rank, boxes for what it computes, bands under them for what is on its links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from distlab.show.board import Board, Rectangle
from distlab.show.colours import COMMUNICATION, INK, PALE, WHITE, Look, looks_of_spans, okabe_ito, stem
from distlab.show.letters import width_of
from distlab.show.scene import Scene

_HIGHEST = 0.62  # inches of a lane
_MOST_LETTERS = 300  # words that a board can hold without becoming slow
_DARK = okabe_ito["blue"]
_SIZES = (11, 9)  # points
_NARROW, _AROUND = 0.01, 0.03  # inches: the narrowest box; what a label needs beside it


class Work(NamedTuple):
    """A box: seconds from ``start`` to ``end``, which look it has, and what stands in it."""

    start: float
    end: float
    kind: str
    label: str


class Lane(NamedTuple):
    """A row: its name, what is said at its end, its boxes, and from when to when something is on its links."""

    name: str
    remark: str
    work: Sequence[Work]
    bands: Sequence[tuple[float, float]] = ()


def draw_lanes(
    board: Board,
    area: Rectangle,
    lanes: Sequence[Lane],
    looks: Mapping[str, Look],
    begin: float,
    end: float,
    ends: tuple[str, str],
) -> None:
    """Draws lanes into an area of the board, with a key under it; ``ends`` says what begin and end are.

    Letters stand in all boxes, smaller ones where they must; where even these have no room, hatches.
    """
    x0, y0, x1, y1 = area
    height, second = lane_height(area, len(lanes)), (x1 - x0) / (end - begin or 1)
    boxes: dict[str, list] = {kind: [] for kind in looks}
    letters: dict[str, list] = {kind: [] for kind in looks}
    bands = []
    for number, lane in enumerate(lanes):
        top, middle = y0 + number * height, y0 + (number + (0.42 if lane.bands else 0.5)) * height
        board.word(x0 - 0.1, middle, lane.name, align="right")
        board.word(x1 + 0.1, middle, lane.remark, align="left")
        board.lines([(x0, middle, x1, middle)])
        low = top + (0.76 if lane.bands else 0.92) * height
        for work in lane.work:
            left, right = x0 + (work.start - begin) * second, x0 + (work.end - begin) * second
            boxes[work.kind].append((left, top + 0.08 * height, max(right, left + _NARROW), low))
            letters[work.kind].append(((left + right) / 2, middle, work.label, right - left))
        bands += [
            (x0 + (a - begin) * second, low + 0.01, x0 + (b - begin) * second, top + 0.95 * height)
            for a, b in lane.bands
        ]
    size = _size_that_fits(letters)
    for kind in (kind for kind in looks if boxes[kind]):
        board.boxes(boxes[kind], Look(looks[kind].colour, "") if size else looks[kind])
        for x, y, label, _ in letters[kind] if size else ():
            board.word(x, y, label, size=size, colour=WHITE if looks[kind].colour == _DARK else INK)
    if bands:
        board.boxes(bands, COMMUNICATION)
    bottom = y0 + len(lanes) * height + 0.13
    for x, words in zip((x0, x1), ends):
        board.word(x, bottom, words, colour=PALE)
    key = {kind: look for kind, look in looks.items() if boxes[kind]}
    board.key(x0, bottom + 0.3, key | ({"on a link": COMMUNICATION} if bands else {}))


def lane_height(area: Rectangle, num_lanes: int) -> float:
    """The inches that each of some lanes has in an area."""
    return min(_HIGHEST, (area[3] - area[1]) / num_lanes)


def _size_that_fits(letters: Mapping[str, Sequence[tuple]]) -> float:
    """The largest size in which every box has room for its label; 0 if there is none, or if they are too many."""
    every = [(label, room) for of_kind in letters.values() for _, _, label, room in of_kind]
    if len(every) > _MOST_LETTERS:
        return 0
    fits = (size for size in _SIZES if all(width_of(label, size) + _AROUND < room for label, room in every))
    return next(fits, 0)


def lanes_of(scene: Scene, unnamed: str = "computes") -> tuple[list[Lane], dict[str, Look]]:
    """The lanes of a recording's scene, a look for each kind of span; what stands in no span is ``unnamed``."""
    lanes = []
    for rank in scene.shown:
        work = [Work(box.start, box.end, stem(box.label) or unnamed, box.label) for box in scene.boxes(rank)]
        busy = scene.shares[rank].busy / scene.wall if scene.wall else 0.0
        lanes.append(Lane(f"rank {rank}", f"{busy:.0%} busy", work, scene.communicating(rank)))
    kinds = {work.kind for lane in lanes for work in lane.work}
    looks = looks_of_spans(kinds - {unnamed})
    return lanes, looks | ({unnamed: Look("#C4C9D0", "")} if unnamed in kinds else {})
