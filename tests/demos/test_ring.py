"""The ring demo: what real ranks held, and the bytes of formula and recording."""

from __future__ import annotations

import pytest
import torch

from distlab import run
from distlab.demos.course import built_in
from distlab.demos.ring import HUB, RING, bytes_so_far, draw, ring_all_reduce, steps_of
from tests.demos.pictures import size_of


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_buffers_are_those_that_the_algorithm_prescribes(ranks):
    steps = steps_of(ranks)
    assert len(steps) == 2 * (ranks - 1) + 1
    assert steps[0].values == [[10.0**rank] * ranks for rank in range(ranks)]
    for number, step in enumerate(steps[: ranks - 1]):
        assert step.sends == [(rank - number) % ranks for rank in range(ranks)]
    for rank, values in enumerate(steps[ranks - 1].values):
        assert [chunk for chunk, value in enumerate(values) if value == int("1" * ranks)] == [(rank + 1) % ranks]
    assert steps[-1].values == [[float("1" * ranks)] * ranks] * ranks
    assert steps[-1].sends == [None] * ranks


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_bytes_are_those_that_real_ranks_send(ranks):
    lab, length = built_in("collectives"), 8 * ranks

    def reduce(all_reduce):
        all_reduce(torch.ones(length))

    def sent(all_reduce, rank):
        recording = run(reduce, all_reduce, ranks=ranks, record="messages").recording
        return sum(message.bytes for message in recording.messages(rank) if message.kind == "send")

    whole, end = 4 * length, bytes_so_far(ranks, 2 * (ranks - 1))
    assert sent(lab.ring_all_reduce, 1) == end[RING] * whole == 2 * (ranks - 1) / ranks * whole
    through_hub = sent(lab.hub_all_reduce, 0) + sum(sent(lab.hub_all_reduce, rank) for rank in range(1, ranks))
    assert through_hub == end[HUB] * whole == 2 * (ranks - 1) * whole


def test_words_and_picture_follow_the_step_and_the_ranks():
    panel = ring_all_reduce(4)
    assert "0 of 6 steps done; next: reduce-scatter" in repr(panel)
    panel.set(step=3)
    assert "3 of 6 steps done; next: all-gather" in repr(panel) and "0.75 S by each rank, 3 S in all" in repr(panel)
    panel.set(step=6)
    assert "every chunk is complete everywhere" in repr(panel)
    panel.set(ranks=8)
    assert panel.values == {"ranks": 8, "step": 0} and "0 of 14 steps" in repr(panel)


def test_every_picture_is_of_one_size():
    assert len({size_of(draw(ranks, step)) for ranks in (2, 8) for step in (0, 1, 2 * (ranks - 1))}) == 1
