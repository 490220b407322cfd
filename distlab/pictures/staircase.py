"""GPipe's staircase: four stages, four micro-batches, and the bubble that is left."""

from __future__ import annotations

from distlab.show.drawing import LARGE, SMALL, Drawing
from distlab.show.look import BACKWARD, FORWARD

STAGES = MICRO_BATCHES = 4
_LEFT, _TICK, _LANE, _HIGH, _TOP = 92, 58, 46, 38, 46


def draw() -> Drawing:
    """The drawing."""
    drawing = Drawing(
        _LEFT + 2 * _ticks() * _TICK + 10,
        _TOP + STAGES * _LANE + 50,
        "GPipe on four stages with four micro-batches",
        "Time runs to the right. Stage s begins forward F0 at tick s and does F0 to F3 in a row. When the last stage "
        "has done F3 the backwards B0 to B3 go up from stage 3 to stage 0 in the same way. Each stage works at 8 of 14 "
        "ticks; the dotted boxes between are the bubble, 6 ticks a stage.",
    )
    for stage in range(STAGES):
        drawing.text(8, _y(stage) + _HIGH / 2, f"stage {stage}", anchor="start")
        for tick in range(2 * _ticks()):
            _box(drawing, stage, tick)
    right = _LEFT + 2 * _ticks() * _TICK
    drawing.text(_LEFT, 20, "time", size=SMALL, anchor="start")
    drawing.arrow([(_LEFT + 52, 20), (right - 4, 20)])
    legend = _TOP + STAGES * _LANE + 26
    for x, words, look in ((_LEFT, "F  forward", FORWARD), (_LEFT + 210, "B  backward", BACKWARD)):
        drawing.box(x, legend - 11, 22, 22, look)
        drawing.text(x + 32, legend, words, anchor="start")
    drawing.frame(_LEFT + 440, legend - 11, 22, 22)
    drawing.text(_LEFT + 472, legend, "idle: the bubble", anchor="start")
    return drawing


def step_at(stage: int, tick: int) -> str:
    """What a stage does at a tick: "F2", "B0", or "" if it is idle."""
    forward, backward = tick - stage, tick - _ticks() - (STAGES - 1 - stage)
    if 0 <= forward < MICRO_BATCHES:
        return f"F{forward}"
    return f"B{backward}" if 0 <= backward < MICRO_BATCHES else ""


def _box(drawing: Drawing, stage: int, tick: int) -> None:
    x, y, width, step = _LEFT + tick * _TICK + 2, _y(stage), _TICK - 4, step_at(stage, tick)
    if not step:
        drawing.frame(x, y, width, _HIGH)
        return
    drawing.box(x, y, width, _HIGH, FORWARD if step[0] == "F" else BACKWARD, step, LARGE)


def _ticks() -> int:
    """Of all forwards, and of all backwards."""
    return STAGES + MICRO_BATCHES - 1


def _y(stage: int) -> float:
    return _TOP + stage * _LANE
