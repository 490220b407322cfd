"""The demo of pipeline schedules, against the formulas of the papers."""

from __future__ import annotations

from itertools import product

import pytest

from distlab.demos.schedules import ALL, NOTHING, SCHEDULES, Case, draw, schedules
from distlab.show.look import SERIES
from distlab.show.marks import Boxes
from tests.demos.pictures import assert_legible, size_of

# (p − 1)/(m + p − 1), GPipe (arXiv 1811.06965) section 2.3; interleaved: PTD-P (arXiv 2104.04473) section 2.2.2.
BUBBLES = {(2, 1): 0.5, (2, 4): 0.2, (4, 4): 0.4286, (4, 8): 0.2727, (4, 16): 0.1579, (8, 32): 0.1795}


@pytest.mark.parametrize("sizes", BUBBLES)
def test_gpipe_and_1f1b_have_the_bubble_of_the_papers(sizes):
    for schedule, backward in product(("GPipe", "1F1B"), (1.0, 2.0, 3.0)):
        case = Case(schedule, *sizes, backward)
        assert case.timeline().bubble == pytest.approx(BUBBLES[sizes], abs=5e-5)
        assert case.timeline().bubble == pytest.approx(case.formula[1])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_on_free_links_every_schedule_has_the_bubble_of_its_formula(schedule):
    for stages, micro_batches, backward in [(2, 4, 2.0), (4, 8, 1.0), (4, 8, 2.0), (8, 32, 2.0)]:
        case = Case(schedule, stages, micro_batches, backward)
        assert case.timeline().bubble == pytest.approx(case.formula[1]), case


@pytest.mark.parametrize(("sizes", "bubble"), [((4, 8), 0.1579), ((8, 32), 0.0986)])
def test_two_chunks_halve_the_bubble(sizes, bubble):
    assert Case("interleaved, v = 2", *sizes, 2.0).timeline().bubble == pytest.approx(bubble, abs=5e-5)


def test_27_micro_batches_are_the_fewest_for_a_tenth_on_4_stages():
    assert Case("GPipe", 4, 27, 2.0).timeline().bubble == pytest.approx(0.1)
    assert Case("GPipe", 4, 26, 2.0).timeline().bubble > 0.1


def test_a_latency_of_half_a_forward_costs_1f1b_more_than_gpipe():
    gpipe, one_f_one_b = (Case(schedule, 4, 8, 1.0, 0.5).timeline().bubble for schedule in ("GPipe", "1F1B"))
    assert gpipe == pytest.approx(0.360, abs=0.005) and one_f_one_b == pytest.approx(0.467, abs=0.005)


@pytest.mark.parametrize(("p", "m"), [(4, 8), (8, 4), (3, 5)])
def test_what_a_stage_holds_is_what_the_papers_say(p, m):
    def held(schedule):
        case = Case(schedule, p, m, 2.0)
        return case.most_held(case.timeline())

    assert held("naive") == held("GPipe") == [m] * p
    assert held("1F1B") == [min(m, p - stage) for stage in range(p)]


def test_zb_h1_holds_no_more_than_p_micro_batches():
    case = Case("ZB-H1", 4, 8, 2.0)
    assert case.most_held(case.timeline()) == [4, 4, 4, 4]


def test_every_control_changes_the_picture_and_the_words():
    panel = schedules()
    settings = [{"micro_batches": 27}, {"stages": 2}, {"schedule": "1F1B"}, {"backward": 1.0}, {"latency": 0.5}]
    for change in (*settings, {"compared": "GPipe"}):
        before, drawing = repr(panel), panel.picture.svg()
        panel.set(**change)
        assert repr(panel) != before and panel.picture.svg() != drawing, change


def test_an_interleaved_schedule_says_when_it_takes_more_micro_batches_than_asked():
    assert "8, not 5" in draw("interleaved, v = 2", 4, 5, 2.0, 0.0).text()
    assert "not" not in draw("interleaved, v = 2", 4, 8, 2.0, 0.0).text()


EXTREMES = list(product(SCHEDULES, (1, 8), (1, 32), (3.0,), (0.0, 1.0), (NOTHING, "interleaved, v = 2"), (ALL, 0)))


def test_every_picture_is_of_one_size():
    assert len({size_of(draw(*values)) for values in EXTREMES}) == 1


def test_every_picture_is_legible():
    for values in (*EXTREMES, ("GPipe", 4, 8, 2.0, 0.0, "1F1B", 3), ("ZB-H1", 4, 8, 2.0, 0.0)):
        assert_legible(draw(*values))


def boxes(board, of_held: bool = False) -> list[tuple[float, float, float, float]]:
    """What is computed, over the legend, or the bars of what is held, from top to bottom."""
    floor = board.height - 0.2 if of_held else max(mark.y for mark in board.marks if mark_text(mark) == "0") - 0.1
    found = [mark for mark in board.marks if isinstance(mark, Boxes) and (mark.look == SERIES[6].plain) == of_held]
    return sorted(
        (box for mark in found for box in mark.rectangles if box[3] < floor), key=lambda box: (box[1], box[0])
    )


def mark_text(mark) -> str:
    return getattr(mark, "text", "")


def ends(board, axis: tuple[float, float]) -> float:
    """Where the last box ends, as a share of the axis that leads from one x to another."""
    return (max(x1 for _, _, x1, _ in boxes(board)) - axis[0]) / (axis[1] - axis[0])


def test_schedules_of_one_setting_are_drawn_as_long_as_they_are():
    setting = 4, 8, 2.0, 0.0
    longest = draw("GPipe", *setting)  # 33, as 1F1B
    axis = min(x0 for x0, *_ in boxes(longest)), max(x1 for _, _, x1, _ in boxes(longest))
    assert "time axis ends at 33" in longest.text()
    for schedule, length in (("1F1B", 33), ("interleaved, v = 2", 28.5), ("ZB-H1", 27)):
        for board in (draw(schedule, *setting), draw(schedule, *setting, schedule)):
            assert ends(board, axis) == pytest.approx(length / 33, abs=1e-6)
            assert "time axis ends at 33" in board.text()
    assert "ends at 96, the length of the naive schedule" in draw("naive", *setting).text()
    assert ends(draw("naive", *setting), axis) == pytest.approx(1)


def test_two_schedules_share_the_axis_and_the_order_of_stages():
    board = draw("interleaved, v = 2", 4, 8, 2.0, 0.0, "ZB-H1")
    rows = sorted(mark.y for mark in board.marks if mark_text(mark).startswith("stage "))
    assert len(rows) == 8
    middle = (rows[3] + rows[4]) / 2
    upper = max(x1 for _, y0, x1, _ in boxes(board) if y0 < middle)
    lower = max(x1 for _, y0, x1, _ in boxes(board) if y0 > middle)
    left = min(x0 for x0, *_ in boxes(board))
    assert (upper - left) / (lower - left) == pytest.approx(28.5 / 27)
    words = " ".join(board.words)
    assert "interleaved, v = 2: bubble 0.1579" in words and "ZB-H1: bubble 0.1111" in words
    assert "held at most: 4, 4, 4, 4" in words


def test_bars_of_what_is_held_are_as_long_for_a_micro_batch_in_every_picture():
    def lengths(schedule, m, compared=NOTHING):
        return [x1 - x0 for x0, _, x1, _ in boxes(draw(schedule, 4, m, 2.0, 0.0, compared), of_held=True)]

    (one, *_) = lengths("GPipe", 1)
    for m in (8, 27, 32):
        assert lengths("GPipe", m) == pytest.approx([m * one] * 4)
        assert lengths("1F1B", m) == pytest.approx([4 * one, 3 * one, 2 * one, one])
    assert lengths("GPipe", 8, "1F1B") == pytest.approx([*[8 * one] * 4, 4 * one, 3 * one, 2 * one, one])


def test_a_legend_shows_the_looks_of_the_boxes():
    for setting in (
        ("ZB-H1", 4, 8, 2.0, 0.0),
        ("ZB-H1", 8, 32, 2.0, 0.0, "GPipe"),
        ("ZB-H1", 8, 32, 2.0, 0.0, "1F1B", 4),
    ):
        board = draw(*setting)
        marks = [mark for mark in board.marks if isinstance(mark, Boxes) and mark.look != SERIES[6].plain]
        floor = max(mark.y for mark in board.marks if mark_text(mark) == "0")
        of_legend = {mark.look for mark in marks if mark.rectangles[0][1] > floor}
        of_boxes = {mark.look for mark in marks if mark.rectangles[0][1] < floor}
        assert len(of_legend) == 3
        assert of_boxes <= of_legend | {look.pale for look in of_legend} and of_legend <= of_boxes


def test_one_micro_batch_stands_out():
    board = draw("1F1B", 4, 8, 2.0, 0.0, NOTHING, 3)
    floor = max(mark.y for mark in board.marks if mark_text(mark) == "0") - 0.1
    full = [
        box
        for mark in board.marks
        if isinstance(mark, Boxes) and mark.look in [look.plain for look in SERIES[:2]]
        for box in mark.rectangles
        if box[3] < floor
    ]
    assert len(full) == 2 * 4  # its forward and backward on each stage
    assert len(boxes(board)) == 2 * 4 * 8
    assert "There is no micro-batch 9" in draw("1F1B", 4, 8, 2.0, 0.0, NOTHING, 9).text()
