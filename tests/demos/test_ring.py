"""The ring demo: what real ranks held, and the bytes of formula and recording."""

from __future__ import annotations

import pytest
import torch

from distlab import run
from distlab.demos.course import built_in
from distlab.demos.ring import HUB, RING, bytes_so_far, draw, ring_all_reduce, steps_of
from distlab.show.letters import width_of
from distlab.show.look import INK, look_of_message
from distlab.show.marks import Arrows, Boxes, Frames
from tests.demos.pictures import size_of
from tests.demos.words import overlaps, words_of


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
    assert "every chunk is complete" in repr(panel)
    panel.set(ranks=8)
    assert panel.values == {"ranks": 8, "step": 0} and "0 of 14 steps" in repr(panel)


def test_every_picture_is_of_one_size():
    assert len({size_of(draw(ranks, step)) for ranks in (2, 8) for step in (0, 1, 2 * (ranks - 1))}) == 1


@pytest.mark.parametrize("ranks", [2, 5, 7, 8])
def test_no_word_lies_over_another_or_is_cut(ranks):
    for step in range(2 * (ranks - 1) + 1):
        board = draw(ranks, step)
        assert overlaps(board) == []
        numbers = [word for word in words_of(board) if set(word.text) <= {"0", "1"} and len(word.text) == ranks]
        assert len(numbers) == ranks**2 and min(word.size for word in numbers) >= 10
        assert {word.colour for word in numbers} == {INK}
        (x0, _, x1, _), *_ = next(mark for mark in board.marks if isinstance(mark, Boxes)).rectangles
        assert all(width_of(word.text, word.size, word.is_bold) < x1 - x0 for word in numbers)
        assert min(word.size for word in words_of(board) if word not in numbers) >= 12.5


def test_what_is_sent_has_the_colour_of_sends_everywhere():
    sends, board = look_of_message("send"), draw(4, 2)
    arrows = [mark for mark in board.marks if isinstance(mark, Arrows)]
    frames = [mark for mark in board.marks if isinstance(mark, Frames) and mark.colour == sends.colour]
    assert [mark.colour for mark in arrows] == [sends.colour]
    assert len(arrows[0].arrows) == 4 + 1  # the last rank's goes out at the bottom and comes in at the top
    assert sorted(len(mark.rectangles) for mark in frames) == [1, 4]  # in the legend, and in the grid
    assert {"from rank 3", "to rank 0"} <= set(board.written)
    assert not {"from rank 3", "to rank 0"} & set(draw(4, 6).written)


def test_bars_have_one_scale_for_all_numbers_of_ranks():
    def bars(ranks):
        sends = [mark for mark in draw(ranks, 2 * (ranks - 1)).marks if isinstance(mark, Boxes)]
        return [x1 - x0 for mark in sends if mark.look == look_of_message("send") for x0, _, x1, _ in mark.rectangles]

    (ring_4, hub_4), (ring_8, hub_8) = bars(4), bars(8)
    assert hub_4 / ring_4 == pytest.approx(6 / 1.5) and hub_8 / ring_8 == pytest.approx(14 / 1.75)
    assert hub_8 / hub_4 == pytest.approx(14 / 6) and ring_8 / ring_4 == pytest.approx(1.75 / 1.5)
    assert {"1.75 of 1.75 S", "14 of 14 S"} <= set(draw(8, 14).written)
