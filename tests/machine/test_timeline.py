"""Timeline: what a run's seconds were spent on, for pictures and in words."""

from __future__ import annotations

import math

import pytest

from distlab.events import Span
from distlab.machine.machines import Link
from distlab.machine.replay import replay
from distlab.machine.timeline import SpanTime
from distlab.recording import Recording
from tests.machine.recordings import (
    FREE,
    History,
    each,
    gpipe,
    one_f_one_b,
    pipeline,
    random_program,
    record,
    with_links,
)

ONE_SECOND = with_links(Link(1.0, math.inf))


def late_receiver():
    return record(History().compute(2.0, "make").send(1, 8), History().compute(5.0, "other").recv(0, 8))


def test_a_rank_computes_waits_and_has_messages_on_its_links():
    timeline = replay(late_receiver(), ONE_SECOND)
    shown = [[(s.start, s.end, s.kind, s.label, s.message and s.message.kind) for s in ss] for ss in timeline.segments]
    assert shown == [
        [(0, 2, "compute", "make", None), (2, 6, "wait", "", "send"), (5, 6, "communication", "", "send")],
        [(0, 5, "compute", "other", None), (5, 6, "communication", "", "recv"), (5, 6, "wait", "", "recv")],
    ]
    assert all(segment.rank == rank for rank, segments in enumerate(timeline.segments) for segment in segments)


def test_busy_exposed_and_idle_make_up_the_wall_time():
    timeline = replay(late_receiver(), ONE_SECOND)
    assert (timeline.busy, timeline.exposed, timeline.idle) == ([2, 5], [1, 1], [3, 0])
    assert timeline.bubbles == [1 - 2 / 6, 1 - 5 / 6]
    assert timeline.bubble == pytest.approx(1 - 7 / 12)


@pytest.mark.parametrize("seed", range(10))
def test_the_parts_of_any_run_make_up_its_wall_time(seed):
    timeline = replay(random_program(seed), with_links(Link(1.0, 4.0)))
    for rank in range(6):
        parts = timeline.busy[rank] + timeline.exposed[rank] + timeline.idle[rank]
        assert parts == pytest.approx(timeline.wall)
        assert timeline.hidden[rank] + timeline.exposed[rank] == pytest.approx(timeline.communication[rank])
        lane = [s for s in timeline.segments[rank] if s.kind != "communication"]
        assert lane[0].start == 0
        assert all(one.end == other.start for one, other in zip(lane, lane[1:]))


def test_what_travels_both_ways_at_once_counts_once():
    def write(rank, history):
        ids = [history.issue("send", 8, peer=1 - rank), history.issue("recv", 8, peer=1 - rank)]
        history.wait(ids[0]).wait(ids[1])

    assert replay(each(2, write), ONE_SECOND).communication == [1.0, 1.0]


def test_the_critical_path_goes_back_over_the_last_to_come():
    timeline = replay(late_receiver(), ONE_SECOND)
    assert [(s.rank, s.start, s.end, s.kind, s.label) for s in timeline.critical_path] == [
        (1, 0, 5, "compute", "other"),
        (0, 5, 6, "communication", ""),
    ]


def test_the_critical_path_goes_over_the_message_that_held_the_link():
    sender = History()
    first, second = (sender.issue("send", 8, peer=peer) for peer in (1, 2))
    sender.wait(first).wait(second)
    timeline = replay(record(sender, History().recv(0, 8), History().recv(0, 8).compute(4.0)), ONE_SECOND)
    path = [(s.rank, s.start, s.end, s.message and s.message.peer) for s in timeline.critical_path]
    assert path == [(0, 0, 1, 1), (2, 1, 2, 0), (2, 2, 6, None)]


@pytest.mark.parametrize("seed", range(20))
def test_the_critical_path_has_no_gap_from_beginning_to_end(seed):
    timeline = replay(random_program(seed), with_links(Link(1.0, 4.0)))
    path = timeline.critical_path
    assert (path[0].start, path[-1].end) == (0.0, timeline.wall)
    assert all(one.end == other.start for one, other in zip(path, path[1:]))
    assert all(segment.kind in ("compute", "communication") for segment in path)


def test_the_critical_path_of_gpipe_goes_down_the_stages_and_up_again():
    path = replay(pipeline(gpipe(4, 8)), FREE).critical_path
    assert len(path) == 2 * (8 + 3)
    assert {segment.kind for segment in path} == {"compute"}


def test_spans_have_their_times_and_what_is_around_them():
    history = [Span("step"), *History().compute(1.0, "F0").compute(2.0, "F1").events, Span("")]
    timeline = replay(Recording([history]), FREE)
    assert timeline.spans == [[SpanTime(0, 0, 1, "F0", 1), SpanTime(0, 1, 3, "F1", 1), SpanTime(0, 0, 3, "step", 0)]]
    assert [segment.label for segment in timeline.segments[0]] == ["F0", "F1"]


def measured(rank, history):
    """Two seconds before the step and three after it."""
    history.compute(2.0)
    history.events.append(Span("step"))
    history.compute(1.0).collective("barrier", 0).compute(1.0 + rank)
    history.events.append(Span(""))
    history.compute(3.0)


def test_a_part_of_a_timeline_is_cut_out_by_the_name_of_its_span():
    step = replay(each(2, measured), ONE_SECOND).during("step")
    assert (step.begin, step.end, step.wall) == (2.0, 6.0, 4.0)
    assert step.busy == [3.0, 3.0]
    assert step.exposed == [1.0, 1.0]
    assert [(s.start, s.end, s.kind) for s in step.segments[0]] == [
        (2, 3, "compute"),
        (3, 4, "communication"),
        (3, 4, "wait"),
        (4, 5, "compute"),
        (5, 6, "compute"),
    ]
    assert [(s.rank, s.start, s.end) for s in step.critical_path][-1] == (1, 4, 6)
    assert "4 s in all" in repr(step)


def test_a_span_that_is_not_there_is_answered_with_those_that_are():
    timeline = replay(each(2, measured), ONE_SECOND)
    with pytest.raises(ValueError, match="no span is called 'stap'; there are step"):
        timeline.during("stap")


def test_a_timeline_is_a_line_a_rank():
    assert repr(replay(late_receiver(), ONE_SECOND)) == (
        "modelled on links (1 FLOP/s, inf B/s + 1 s, memory and operators free, "
        "ring collectives)\n"
        "6 s in all, bubble 0.4167\n"
        "rank 0: busy 2 s, communication 1 s exposed and 0 s hidden, idle 3 s\n"
        "rank 1: busy 5 s, communication 1 s exposed and 0 s hidden, idle 0 s"
    )


def test_the_text_of_many_ranks_stops_at_sixty_four():
    lines = repr(replay(pipeline(one_f_one_b(100, 4)), FREE)).splitlines()
    assert len(lines) == 2 + 64 + 1
    assert lines[-1] == "… and 36 ranks more"
