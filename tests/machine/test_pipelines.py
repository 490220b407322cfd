"""Replayed pipelines have the bubbles that the books say."""

from __future__ import annotations

import math

import pytest

from distlab.machine.machines import Link
from distlab.machine.replay import replay
from distlab.recording import Recording
from tests.machine.recordings import FREE, blocking_gpipe, gpipe, one_f_one_b, pipeline, with_links

SMALL_CASES = [
    (2, 1, 0.5, 1.0),
    (2, 4, 0.2, 1.6),
    (2, 8, 0.1111, 1.7778),
    (4, 4, 0.4286, 2.2857),
    (4, 8, 0.2727, 2.9091),
    (4, 16, 0.1579, 3.3684),
    (8, 32, 0.1795, 6.5641),
]


@pytest.mark.parametrize(("stages", "micro_batches", "bubble", "speedup"), SMALL_CASES)
@pytest.mark.parametrize("schedule", [gpipe, one_f_one_b])
def test_equal_stages_on_free_links_have_a_bubble_of_k_minus_1_over_m_plus_k_minus_1(
    schedule, stages, micro_batches, bubble, speedup
):
    timeline = replay(pipeline(schedule(stages, micro_batches), backward=2.0), FREE)
    exact = (stages - 1) / (micro_batches + stages - 1)
    assert timeline.bubbles == pytest.approx([exact] * stages, abs=1e-12)
    assert timeline.bubble == pytest.approx(bubble, abs=5e-5)
    assert sum(timeline.busy) / timeline.wall == pytest.approx(speedup, abs=5e-5)


def test_gpipe_by_blocking_sends_has_the_same_bubble_on_every_rank():
    timeline = replay(blocking_gpipe(4, 8), FREE)
    assert timeline.bubbles == pytest.approx([3 / 11] * 4, abs=1e-12)
    assert timeline.wall == 3 * (8 + 3)


def test_with_a_latency_of_half_a_forward_one_f_one_b_is_worse_than_gpipe():
    machine = with_links(Link(0.5, math.inf))
    by_name = {
        schedule: replay(pipeline(schedule(4, 8), receive_early=True), machine).bubble
        for schedule in (gpipe, one_f_one_b)
    }
    assert by_name[gpipe] == pytest.approx(0.360, abs=0.0005)
    assert by_name[one_f_one_b] == pytest.approx(0.467, abs=0.0005)


def test_a_receive_issued_only_when_it_is_needed_exposes_its_latency():
    machine = with_links(Link(0.5, math.inf))
    early, late = (replay(pipeline(gpipe(4, 8), receive_early=early), machine) for early in (True, False))
    assert early.wall == 25.0
    assert late.wall == 32.0


def test_a_slower_stage_leaves_the_others_idle():
    recording = pipeline(gpipe(2, 4))
    slow = Recording([recording.ranks[0], recording.scaled(flops=2.0).ranks[1]])
    timeline = replay(slow, FREE)
    assert timeline.busy == [8.0, 16.0]
    assert timeline.wall == 1 + 16 + 1
