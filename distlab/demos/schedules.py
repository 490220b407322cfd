"""Pipeline schedules: which stage does what when, how large the bubble is, and how many activations a stage holds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from distlab.demos.course import built_in
from distlab.machine.machines import Link
from distlab.machine.timeline import Timeline
from distlab.show.board import Board
from distlab.show.chart import Chart, draw_lanes
from distlab.show.lanes import Box, Lane
from distlab.show.look import SERIES, WIDTH, Look, okabe_ito
from distlab.show.panel import Panel, choice, slider

SCHEDULES = ("naive", "GPipe", "1F1B", "interleaved, v = 2", "ZB-H1")
_HEIGHT = 3.9
_TOP = 0.5  # inches over the lanes
_AREA = (0.85, _TOP, WIDTH - 2.0, _HEIGHT - 0.62)
_LOOKS = {
    "F": SERIES[0],
    "B": SERIES[1],
    "W": SERIES[2],
    "F, second chunk": Look(okabe_ito["blue"], ""),
    "B, second chunk": Look(okabe_ito["vermillion"], "\\\\\\\\"),
}


def schedules(
    stages: int = 4, micro_batches: int = 8, schedule: str = "GPipe", backward: float = 2.0, latency: float = 0.0
) -> Panel:
    """A timeline of a pipeline schedule, to try: ``backward`` and ``latency`` are in forwards of a whole stage.

    Stages are equal. Messages take their latency and no more, receives are issued one step ahead. The lists of steps
    are those of lab 07, replayed.
    """
    return Panel(
        draw,
        {
            "schedule": choice("schedule", list(SCHEDULES), schedule),
            "stages": slider("stages p", 1, 8, stages),
            "micro_batches": slider("micro-batches m", 1, 32, micro_batches),
            "backward": choice("backward / forward", {f"{ratio:g}": float(ratio) for ratio in (1, 2, 3)}, backward),
            "latency": choice("latency / forward", {f"{share:g}": share for share in (0.0, 0.25, 0.5, 1.0)}, latency),
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

    def timeline(self) -> Timeline:
        """The schedule, replayed."""
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


def _link(case: Case) -> Link:
    return Link(case.latency, math.inf)


def _highest(changes: Iterable[float]) -> float:
    level = highest = 0.0
    for change in changes:
        level += change
        highest = max(highest, level)
    return highest


def draw(schedule: str, stages: int, micro_batches: int, backward: float, latency: float) -> Board:
    """The picture of one setting; the interleaved schedule takes whole groups of p micro-batches."""
    asked = micro_batches
    if "interleaved" in schedule:
        micro_batches = math.ceil(micro_batches / stages) * stages
    case = Case(schedule, stages, micro_batches, backward, latency)
    timeline = case.timeline()
    board = Board(f"{schedule}: p = {stages}, m = {micro_batches}: bubble {timeline.bubble:.1%}", _HEIGHT)
    chart = draw_lanes(board, _AREA, _lanes(timeline), (0.0, timeline.wall), ("0", f"{timeline.wall:g}"), _LOOKS)
    held = case.most_held(timeline)
    _draw_held(board, chart, held, micro_batches)
    letters, bubble = case.formula
    of_formula = f"On free links it is {letters} = {bubble:.4f}."
    board.say(
        f"Bubble {timeline.bubble:.4f} of the wall time. {of_formula}",
        f"{timeline.wall:g} forwards long; each stage is busy for {timeline.busy[0]:g} of them.",
        f"Most activations held, by stage, in micro-batches: {', '.join(f'{number:g}' for number in held)}.",
    )
    if asked != micro_batches:
        board.say(f"This schedule takes whole groups of p micro-batches: {micro_batches} here, not {asked}.")
    return board


def _lanes(timeline: Timeline) -> list[Lane]:
    lanes = []
    for stage, spans in enumerate(timeline.spans):
        boxes = []
        for span in spans:
            label, _, chunk = span.name.partition(".")
            boxes.append(Box(span.start, span.end, label, label[0] + ", second chunk" * bool(chunk)))
        lanes.append(Lane(f"stage {stage}", f"{timeline.busy[stage] / timeline.wall:.0%} busy", boxes))
    return lanes


def _draw_held(board: Board, chart: Chart, held: list[float], most: int) -> None:
    left, room = WIDTH - 0.98, 0.62
    board.word(left, _TOP - 0.12, "holds at most", align="left", size=9)
    for stage, number in enumerate(held):
        y = chart.y(stage)
        board.boxes([(left, y - 0.2 * chart.height, left + room * number / most, y + 0.2 * chart.height)], SERIES[6])
        board.word(left + room * number / most + 0.05, y, f"{number:g}", align="left")
