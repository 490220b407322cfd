"""The demo of pipeline schedules, against the formulas of the papers."""

from __future__ import annotations

from itertools import product

import pytest

from distlab.demos.schedules import SCHEDULES, Case, draw, schedules
from tests.demos.pictures import size_of

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
    for change in ({"micro_batches": 27}, {"stages": 2}, {"schedule": "1F1B"}, {"backward": 1.0}, {"latency": 0.5}):
        before, png = repr(panel), panel.picture.png()
        panel.set(**change)
        assert repr(panel) != before and panel.picture.png() != png, change


def test_an_interleaved_schedule_says_when_it_takes_more_micro_batches_than_asked():
    assert "8 here, not 5" in draw("interleaved, v = 2", 4, 5, 2.0, 0.0).text()
    assert "not" not in draw("interleaved, v = 2", 4, 8, 2.0, 0.0).text()


def test_every_picture_is_of_one_size():
    extremes = product(SCHEDULES, (1, 8), (1, 32), (3.0,), (0.0, 1.0))
    assert len({size_of(draw(*values)) for values in extremes}) == 1
