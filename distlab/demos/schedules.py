"""Pipeline schedules: which stage does what when, how large the bubble is, and how many activations a stage holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from distlab.demos.course import built_in
from distlab.machine.machines import Link
from distlab.machine.timeline import Timeline
from distlab.show.board import MARGIN, Board
from distlab.show.chart import MOST_LABELS, SIZES, Chart, Style
from distlab.show.lanes import Box, Lane
from distlab.show.look import MID, SERIES, WIDTH, Look, looks_of_spans
from distlab.show.panel import Panel, choice, slider

SCHEDULES = ("naive", "GPipe", "1F1B", "interleaved, v = 2", "ZB-H1")
NOTHING = "nothing"  # to compare with
MOST = 32  # micro-batches
ALL = -1  # are highlighted
_LEFT, _RIGHT = 0.88, WIDTH - 1.92  # inches: of the time axis
_FIRST, _LAST, _HEAD = 0.72, 4.7, 0.44  # inches: where lanes begin and end, and from chart to chart
_HEIGHT = 5.36
_HELD_AT, _HELD = WIDTH - 1.76, 0.036  # inches: where bars of what is held begin, and of a micro-batch
_HELD_LOOK = SERIES[6].plain
_STYLE = Style((0.07, 0.93), highest=0.9)
_SPANS = looks_of_spans(["F0", "B0", "W0", "F0.1", "B0.1"])
_LOOKS = {name: _SPANS[name] for name in "FBW"} | {f"{name}, second chunk": _SPANS[f"{name}.1"] for name in "FB"}


def schedules(
    stages: int = 4,
    micro_batches: int = 8,
    schedule: str = "GPipe",
    backward: float = 2.0,
    latency: float = 0.0,
    compared: str = NOTHING,
    highlighted: int = ALL,
) -> Panel:
    """A timeline of a pipeline schedule, to try, or of two above each other: ``backward`` and ``latency`` are in
    forwards of a whole stage.

    Stages are equal. Messages take their latency and no more, receives are issued one step ahead. The lists of steps
    are those of lab 07, replayed. All schedules of one setting have the same time axis; see :func:`axis_of`.
    """
    return Panel(
        draw,
        {
            "schedule": choice("schedule", list(SCHEDULES), schedule),
            "compared": choice("compare with", [NOTHING, *SCHEDULES], compared),
            "stages": slider("stages p", 1, 8, stages),
            "micro_batches": slider("micro-batches m", 1, MOST, micro_batches),
            "backward": choice("backward / forward", {f"{ratio:g}": float(ratio) for ratio in (1, 2, 3)}, backward),
            "latency": choice("latency / forward", {f"{share:g}": share for share in (0.0, 0.25, 0.5, 1.0)}, latency),
            "highlighted": choice("highlight", {"all": ALL} | {str(k): k for k in range(MOST)}, highlighted),
        },
    )


@dataclass(frozen=True)
class Case:
    """A schedule on equal stages; times are in forwards of one micro-batch through a whole stage."""

    schedule: str
    stages: int
    micro_batches: int
    backward: float
    latency: float = 0.0

    @property
    def chunks(self) -> int:
        """Parts in which each rank's layers are used."""
        return 2 if "interleaved" in self.schedule else 1

    @property
    def formula(self) -> tuple[str, float]:
        """The bubble on free links, as a share of the wall time: in letters, and its value."""
        p, m, b = self.stages, self.micro_batches, self.backward
        if self.schedule == "naive":
            return "(p − 1)/p", (p - 1) / p
        if self.chunks == 2:
            return "(p − 1)/(2m + p − 1)", (p - 1) / (2 * m + p - 1)
        if self.schedule == "ZB-H1":  # B and W are half a backward each, so B − W is 0
            return "(p − 1)F/(m(F + B + W) + (p − 1)F)", (p - 1) / (m * (1 + b) + p - 1)
        return "(p − 1)/(m + p − 1)", (p - 1) / (m + p - 1)

    @property
    def taken(self) -> Case:
        """The same with as many micro-batches as the schedule takes: interleaved, whole groups of p."""
        return replace(
            self,
            micro_batches=math.ceil(self.micro_batches / self.stages) * self.stages
            if self.chunks == 2
            else self.micro_batches,
        )

    def timeline(self) -> Timeline:
        """The schedule, replayed."""
        return _replayed(self)

    def replay(self) -> Timeline:
        """The lab's list of steps on a machine of equal stages."""
        lab, p, m = built_in("pipeline"), self.stages, self.micro_batches
        flops = {"F": 1.0, "B": self.backward}
        if self.schedule == "naive":
            steps, flops = lab.for_all(lab.gpipe_schedule, p, 1), {kind: m * cost for kind, cost in flops.items()}
        elif self.schedule == "GPipe":
            steps = lab.for_all(lab.gpipe_schedule, p, m)
        elif self.schedule == "1F1B":
            steps = lab.for_all(lab.one_f_one_b_schedule, p, m)
        elif self.schedule == "ZB-H1":
            steps, flops = lab.for_all(lab.zb_h1_schedule, p, m), {"F": 1.0} | dict.fromkeys("BW", self.backward / 2)
        else:
            steps, flops = lab.for_all(lab.interleaved_schedule, p, m, 2), {k: cost / 2 for k, cost in flops.items()}
        return lab.on_paper(steps, flops, replace(lab.UNIT, inside=_link(self), between=_link(self)))

    def most_held(self, timeline: Timeline) -> list[float]:
        """By rank, the most micro-batches whose activations it holds at once, each for all of the rank's layers."""
        share = (self.micro_batches if self.schedule == "naive" else 1) / self.chunks
        last = "W" if self.schedule == "ZB-H1" else "B"
        held = []
        for spans in timeline.spans:
            changes = [(span.start, share) for span in spans if span.name[0] == "F"]
            changes += [(span.end, -share) for span in spans if span.name[0] == last]
            held.append(_highest(change for _, change in sorted(changes)))
        return held


@lru_cache(maxsize=64)
def _replayed(case: Case) -> Timeline:
    return case.replay()


def _link(case: Case) -> Link:
    return Link(case.latency, math.inf)


def _highest(changes: Iterable[float]) -> float:
    level = highest = 0.0
    for change in changes:
        level += change
        highest = max(highest, level)
    return highest


def axis_of(cases: Sequence[Case]) -> tuple[float, str]:
    """Where the time axis ends, and why: it is as long as the longest schedule with micro-batches of this setting.

    So schedules can be compared by their lengths. Naive is far longer; where it is shown, the axis ends with it.
    """
    cut = [replace(cases[0], schedule=name).taken for name in SCHEDULES if name != "naive"]
    end, shown = (max(case.timeline().wall for case in some) for some in (cut, [case.taken for case in cases]))
    if shown > end:
        return shown, "the length of the naive schedule"
    return end, "the length of the longest of the four schedules with micro-batches, whichever is shown"


def draw(
    schedule: str,
    stages: int,
    micro_batches: int,
    backward: float,
    latency: float,
    compared: str = NOTHING,
    highlighted: int = ALL,
) -> Board:
    """The picture of one setting; the interleaved schedule takes whole groups of p micro-batches."""
    names = [schedule] if compared in (NOTHING, schedule) else [schedule, compared]
    asked = [Case(name, stages, micro_batches, backward, latency) for name in names]
    cases = [case.taken for case in asked]
    end, why = axis_of(asked)
    bubbles = [f"{case.timeline().bubble:.1%}" for case in cases]
    sizes = f"p = {stages}, m = {micro_batches if len(cases) > 1 else cases[0].micro_batches}"
    board = Board(f"{' and '.join(names)}: {sizes}: bubble {' and '.join(bubbles)}", _HEIGHT)
    charts = _charts(board, cases, end, highlighted)
    _draw_steps(board, charts)
    for chart, case in zip(charts, cases):
        _draw_head(board, chart, case, is_named=len(cases) > 1)
        _draw_held(board, chart, case.most_held(case.timeline()))
    for case in cases:
        _say(board, case, is_alone=len(cases) == 1)
    board.say(f"The time axis ends at {end:g}, {why}.")
    if highlighted >= max(case.micro_batches for case in cases):
        board.say(f"There is no micro-batch {highlighted}: they are counted from 0.")
    if uncut := [case for case, of in zip(cases, asked) if case != of]:
        board.say(f"Interleaved takes whole groups of p micro-batches: {uncut[0].micro_batches}, not {micro_batches}.")
    return board


def _charts(board: Board, cases: Sequence[Case], end: float, highlighted: int) -> list[Chart]:
    """Equally high, above each other."""
    height = (_LAST - _FIRST - _HEAD * (len(cases) - 1)) / len(cases)
    highest = min(_STYLE.highest, height / cases[0].stages)
    charts, top = [], _FIRST
    for case in cases:
        area = (_LEFT, top, _RIGHT, top + height)
        charts.append(Chart(board, area, _lanes(case, highlighted), 0.0, end, _STYLE))
        top += highest * case.stages + _HEAD
    return charts


def _say(board: Board, case: Case, is_alone: bool) -> None:
    timeline, (letters, bubble) = case.timeline(), case.formula
    held = ", ".join(f"{number:g}" for number in case.most_held(timeline))
    if is_alone:
        board.say(
            f"Bubble {timeline.bubble:.4f} of the wall time. On free links it is {letters} = {bubble:.4f}.",
            f"{timeline.wall:g} forwards long; each stage is busy for {timeline.busy[0]:g} of them.",
            f"Most activations held, by stage, in micro-batches: {held}.",
        )
    else:
        exact = f"bubble {timeline.bubble:.4f}, on free links {letters} = {bubble:.4f}"
        board.say(f"{case.schedule}: {exact}; held at most: {held}.")


def _lanes(case: Case, highlighted: int) -> list[Lane]:
    """A box's kind begins with "pale " where another micro-batch is highlighted; in naive all are one."""
    lanes = []
    for stage, spans in enumerate(case.timeline().spans):
        boxes = []
        for span in spans:
            label, _, chunk = span.name.partition(".")
            is_pale = highlighted != ALL and case.schedule != "naive" and int(label[1:]) != highlighted
            boxes.append(
                Box(span.start, span.end, label, "pale " * is_pale + label[0] + ", second chunk" * bool(chunk))
            )
        lanes.append(Lane(f"stage {stage}", "", boxes))
    return lanes


def _draw_steps(board: Board, charts: Sequence[Chart]) -> None:
    """Boxes with letters, alike in all charts; where some have no room for letters, hatches; the axis and a key."""
    sizes = [chart.size_of_labels(SIZES) for chart in charts]
    looks = {kind: look.plain for kind, look in _LOOKS.items()} if all(sizes) else _LOOKS
    there: dict[str, Look] = {}
    for chart, size in zip(charts, sizes):
        _draw_axis(board, chart, max(box.end for lane in chart.lanes for box in lane.boxes))
        shown = looks | {f"pale {kind}": look.pale for kind, look in looks.items()}
        there |= chart.draw_boxes(shown)
        chart.draw_names()
        if sum(len(lane.boxes) for lane in chart.lanes) <= MOST_LABELS:
            chart.label_boxes(shown, size or SIZES[-1])
    bottom = _draw_ticks(board, charts[-1])
    kinds = {kind.removeprefix("pale ") for kind in there}
    board.key(MARGIN, bottom + 0.32, {kind: look for kind, look in looks.items() if kind in kinds})


def _ticks(end: float) -> list[float]:
    """Round numbers of forwards, up to eleven."""
    step = next(step for power in range(6) for step in (10**power, 2 * 10**power, 5 * 10**power) if end / step <= 10)
    return [number * step for number in range(int(end / step + 1e-9) + 1)]


def _draw_axis(board: Board, chart: Chart, wall: float) -> None:
    """A line under each lane, ticks under the last, and a line where the schedule ends."""
    chart.rule()
    top, bottom = chart.y(0, 0), chart.y(len(chart.lanes), 0)
    board.lines([(chart.x(tick), bottom, chart.x(tick), bottom + 0.05) for tick in _ticks(chart.end)], under=True)
    board.lines([(chart.x(wall) + 0.02, top, chart.x(wall) + 0.02, bottom)], MID, 1.5, under=True)


def _draw_ticks(board: Board, chart: Chart) -> float:
    y = chart.y(len(chart.lanes), 0) + 0.16
    for tick in _ticks(chart.end):
        board.word(chart.x(tick), y, f"{tick:g}", colour=MID)
    board.word(chart.right + 0.3, y, "forwards", align="left", colour=MID)
    return y


def _draw_head(board: Board, chart: Chart, case: Case, is_named: bool) -> None:
    timeline, y = case.timeline(), chart.top - 0.17
    words = f"{timeline.wall:g} forwards long, each stage busy for {timeline.busy[0]:g}"
    if is_named:
        words = f"{case.schedule}: {timeline.wall:g} forwards long, bubble {timeline.bubble:.1%}"
    board.word(MARGIN, y, words, align="left")
    board.word(_HELD_AT, y, "holds at most", align="left")


def _draw_held(board: Board, chart: Chart, held: Sequence[float]) -> None:
    """A bar a stage, a micro-batch always as long."""
    rows = [(chart.y(stage), number) for stage, number in enumerate(held)]
    half = min(0.1, 0.3 * chart.height)
    board.boxes([(_HELD_AT, y - half, _HELD_AT + _HELD * number, y + half) for y, number in rows], _HELD_LOOK)
    for y, number in rows:
        board.word(_HELD_AT + _HELD * number + 0.07, y, f"{number:g}", align="left")
