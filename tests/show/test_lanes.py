"""Lanes: what stands in a rank's row, and which letters fit."""

from __future__ import annotations

import pytest

from distlab.events import Compute, Exit, Span
from distlab.machine.replay import replay
from distlab.recording import Recording
from distlab.show.board import Board
from distlab.show.chart import draw_lanes
from distlab.show.lanes import Box, lanes_of, looks_of, merged, times
from distlab.show.measured import measured
from tests.machine.recordings import FREE, each


def drawn(recording: Recording) -> Board:
    """A timeline's lanes on a board, as demos draw them."""
    timeline, board = replay(recording, FREE), Board("", 3.0)
    draw_lanes(board, (1.0, 0.5, 9.0, 2.0), list(lanes_of(timeline).values()), (0.0, timeline.end), ("0", "end"))
    return board


def test_every_kind_of_box_has_a_look():
    names = ["F", "F1 2", "10", "update 3", ""]
    lanes = lanes_of(replay(each(1, lambda _, h: [h.compute(1.0, name) for name in names]), FREE))
    assert {box.kind for box in lanes[0].boxes} == looks_of(lanes.values()).keys() == {"F", "F1", "10", "update", ""}


def test_labels_stand_in_all_boxes_or_in_none():
    assert {"F0", "F1"} <= set(drawn(each(2, lambda _, h: h.compute(1.0, "F0").compute(1.0, "F1"))).written)
    assert "F1" not in drawn(each(2, lambda _, h: h.compute(1.0, "F0").compute(0.001, "F1"))).written


def test_narrow_boxes_of_one_kind_that_nearly_touch_are_one():
    boxes = [
        Box(0, 1, "F0", "F"),
        Box(1, 2, "F1", "F"),
        Box(2, 9, "F2", "F"),
        Box(9, 10, "B0", "B"),
        Box(12, 13, "B1", "B"),
    ]
    assert merged(boxes, narrow=2, apart=0.5) == [Box(0, 2, "F", "F"), *boxes[2:]]
    assert times(boxes) == [(0, 10), (12, 13)]


def test_a_span_that_begins_after_the_cut_is_not_there():
    def history(end: float) -> list:
        spans = [Span("early", time=1.0), Compute(start=1.0, end=2.0), Span("", time=2.0)]
        late = [Span("late", time=4.0), Compute(start=4.0, end=end), Span("", time=end), Exit("returned", end)]
        return spans + (late if end > 4.0 else [])

    timeline = measured(Recording([history(5.0), history(2.0)], notes=("cut after 10 events",)))
    assert timeline.end == 2.0 and timeline.during("early").wall == 1.0
    with pytest.raises(ValueError, match="no span is called 'late'; there are early"):
        timeline.during("late")
