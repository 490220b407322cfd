"""The README's picture: a cell, what its check says of it, and the timeline of a run; all three are real."""

from __future__ import annotations

import contextlib
import io
import textwrap
from functools import cache

from distlab.course.check import examine
from distlab.course.from_lab import from_lab
from distlab.course.notebook import Notebook
from distlab.course.places import ROOT
from distlab.machine.machines import classroom
from distlab.machine.replay import replay
from distlab.ranks.launch import run
from distlab.show.drawing import Drawing
from distlab.show.lanes import Lane, lanes_of, looks_of
from distlab.show.look import CARD, CARD_INK, CARD_MID, okabe_ito

CELL = """def average_gradients(model, num_rows):
    for p in model.parameters():
        dist.all_reduce(p.grad)

check(average_gradients)"""
RUN = """r = run(pipeline_step, schedule, 256, 8, AsyncMail, ranks=4)
r.timeline(machines.classroom)"""
_WIDTH, _CODE, _LINE, _MARGIN = 920, 17, 25, 18
_LEFT, _LANE, _HIGH = 100, 40, 30
_LANES_AT = 338


def draw() -> Drawing:
    """The drawing."""
    drawing = Drawing(
        _WIDTH,
        _LANES_AT + 4 * _LANE + 24,
        "A cell, what the check says of it, and the timeline of a run",
        f"A notebook cell defines average_gradients with dist.all_reduce and checks it. The check answers: {verdict()} "
        "Below, a cell runs a pipeline step on four ranks, and its timeline shows forwards F0 to F7 and backwards B0 "
        "to B7 of each rank, with the bubble at both ends.",
    )
    _card(drawing, 0, 0, 452, 214)
    _code(drawing, 0, 0, 7, CELL)
    _card(drawing, 468, 0, 452, 214)
    _verdict(drawing, 468 + _MARGIN, 34)
    _card(drawing, 0, 230, _WIDTH, _LANES_AT + 4 * _LANE + 24 - 230)
    _code(drawing, 0, 230, 52, RUN)
    clock = "modelled on classroom"
    drawing.text(_WIDTH - _MARGIN, 286 + _LINE, clock, size=14, anchor="end", colour=CARD_MID)
    for number, lane in enumerate(lanes()):
        _lane(drawing, _LANES_AT + number * _LANE, lane)
    return drawing


@cache
def verdict() -> str:
    """What the check says of CELL."""
    cell = {"average_gradients": CELL.partition("\n\n")[0]}
    lab = Notebook(ROOT / "solutions" / "02_data_parallel.ipynb").definitions(instead=cell)
    return str(examine(lab["average_gradients"]))


@cache
def lanes() -> list[Lane]:
    """The lanes of RUN's timeline."""
    lab = from_lab_quietly("pipeline")
    schedule = lab.with_messages(lab.for_all(lab.one_f_one_b_schedule, 4, 8), early=True)
    recording = run(lab.pipeline_step, schedule, 256, 8, lab.AsyncMail, ranks=4).recording
    return list(lanes_of(replay(recording, classroom)).values())


def from_lab_quietly(name: str):
    """The solution of a lab, without the line that says so."""
    with contextlib.redirect_stdout(io.StringIO()):
        return from_lab(name, solution=True)


def _card(drawing: Drawing, x: float, y: float, width: float, height: float) -> None:
    drawing.box(x, y, width, height, CARD)


def _code(drawing: Drawing, x: float, y: float, number: int, text: str) -> None:
    drawing.code(x + _MARGIN, y + 24, f"In [{number}]:", size=14, colour=CARD_MID)
    for row, line in enumerate(text.splitlines()):
        drawing.code(x + _MARGIN, y + 56 + row * _LINE, line, size=_CODE, colour=CARD_INK)


def _verdict(drawing: Drawing, x: float, y: float) -> None:
    """Its lines, broken at words: where, what is wrong, and how it shows."""
    where, what, how = verdict().splitlines()
    red, rows = okabe_ito["vermillion"], 0
    for text, bold, colour in ((where, False, CARD_MID), (what, True, CARD_INK), (how, False, CARD_MID)):
        for line in textwrap.wrap(text.strip().removeprefix("✗ "), 46):
            is_first = rows == 0
            if is_first:
                drawing.text(x, y, "✗", anchor="start", colour=red, bold=True)
            drawing.text(x + 24, y + rows * _LINE, line, size=_CODE, anchor="start", colour=colour, bold=bold)
            rows += 1
        rows += 0.4


def _lane(drawing: Drawing, y: float, lane: Lane) -> None:
    end = max(box.end for each in lanes() for box in each.boxes)
    scale, looks = (_WIDTH - _LEFT - _MARGIN) / end, looks_of(lanes())
    drawing.text(_MARGIN, y + _HIGH / 2, lane.name, size=_CODE, anchor="start", colour=CARD_INK)
    drawing.line([(_LEFT, y + _HIGH / 2), (_WIDTH - _MARGIN, y + _HIGH / 2)], CARD_MID, 1)
    for box in lane.boxes:
        if not box.label:
            continue
        width = (box.end - box.start) * scale
        words = box.label if width > 22 else ""
        drawing.box(_LEFT + box.start * scale, y, width - 1, _HIGH, looks[box.kind], words, 14)
