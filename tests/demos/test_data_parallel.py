"""The demo of one data-parallel step: against plain PyTorch, and what its two mistakes do."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector

from distlab.data import digits
from distlab.demos.data_parallel import NUM_STEPS, data_parallel, draw
from distlab.demos.one_step import columns_of, on_ranks, times_too_large
from distlab.models import mlp
from distlab.show.look import SERIES, look_of_message
from distlab.show.marks import Boxes
from tests.demos.pictures import size_of
from tests.demos.words import overlaps, words_of

ALL_RANKS = pytest.mark.parametrize("ranks", [2, 3, 4])


def plain_step():
    """The gradient and the new weights by plain PyTorch, with none of the labs' code."""
    x_ND, y_N = digits("train", dtype=torch.float64)
    model = mlp(64, 64, 10, dtype=torch.float64)
    F.cross_entropy(model(x_ND[:12]), y_N[:12]).backward()
    weights_P = parameters_to_vector(model.parameters()).detach()
    gradient_P = parameters_to_vector(parameter.grad for parameter in model.parameters())
    return gradient_P, weights_P - 0.1 * gradient_P


@ALL_RANKS
def test_ranks_and_one_process_get_what_plain_pytorch_gets(ranks):
    gradient_P, weights_P = plain_step()
    for number in (ranks, 1):
        held_WSP = on_ranks(number).held_WSP
        assert held_WSP.shape == (number, 5, 4810)
        torch.testing.assert_close(held_WSP[:, 3], gradient_P.expand(number, -1), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(held_WSP[:, 4], weights_P.expand(number, -1), rtol=1e-10, atol=1e-12)


@ALL_RANKS
def test_the_verdicts_are_same_different_same_same(ranks):
    columns = columns_of(ranks)
    verdicts = {number: column.verdict for number, column in columns.items()}
    assert verdicts == {0: "different", 1: "same", 3: "different", 4: "same", 5: "same"}
    assert [number for number, column in columns.items() if column.equals_one_process] == [1, 4, 5]
    assert times_too_large(on_ranks(ranks)) == pytest.approx(1, abs=1e-10)


@ALL_RANKS
def test_without_the_division_every_gradient_is_w_times_too_large(ranks):
    gradient_P, _ = plain_step()
    wrong = on_ranks(ranks, divides=False)
    torch.testing.assert_close(wrong.held_WSP[:, 3], ranks * gradient_P.expand(ranks, -1), rtol=1e-10, atol=1e-12)
    assert times_too_large(wrong) == pytest.approx(ranks, abs=1e-9)
    columns = columns_of(ranks, forget_to_divide=True)
    assert columns[4].verdict == columns[5].verdict == "same"
    assert not columns[4].equals_one_process and not columns[5].equals_one_process
    assert f"All 4,810 numbers are {ranks} times one process's." in draw(ranks, True, False, 4).text()


@ALL_RANKS
def test_without_the_broadcast_replicas_differ_before_and_after_and_in_between_have_one_gradient(ranks):
    columns = columns_of(ranks, forget_to_broadcast=True)
    verdicts = {number: column.verdict for number, column in columns.items()}
    assert verdicts == {0: "different", 1: "different", 3: "different", 4: "same", 5: "different"}
    assert not any(columns[number].equals_one_process for number in (1, 4, 5))
    assert len(set(columns[5].hashes)) == ranks + 1
    assert times_too_large(on_ranks(ranks, broadcasts=False)) is None
    words = draw(ranks, False, True, 5).text()
    assert "The replicas differ by up to 0." in words and "do not equal one process" in words


@ALL_RANKS
def test_every_row_goes_to_one_rank(ranks):
    step = on_ranks(ranks)
    x_ND, y_N = digits("train", dtype=torch.float64)
    assert torch.equal(torch.cat(step.images), x_ND[:12])
    assert sum(step.labels, []) == y_N[:12].tolist()
    assert {len(labels) for labels in step.labels} == {12 // ranks}


def test_the_gradient_of_the_bias_for_five_is_negative_where_there_are_fives():
    step = on_ranks(4)
    assert [value < 0 for value in step.numbers(2)] == [5 in labels for labels in step.labels]


def test_the_words_of_the_update_add_up():
    before, gradient, after = (columns_of(4)[number].numbers[0] for number in (1, 4, 5))
    assert after == pytest.approx(before - 0.1 * gradient)
    words = draw(4, False, False, 5).text().replace("−", "-")
    assert f"{before:.4f} - 0.1 × ({gradient:.4f}) = {after:.4f}" in words


def test_every_setting_draws_at_the_same_size():
    settings = [(2, False, False, 5), (4, True, True, 5), (3, False, True, 3), (4, True, False, 0)]
    sizes = {size_of(draw(*setting)) for setting in settings}
    assert sizes == {(960, 495)}


def test_each_step_and_each_control_changes_picture_and_words():
    panel = data_parallel(ranks=4)
    seen = []
    for moved in [{}, *({"step": step} for step in range(1, NUM_STEPS + 1))]:
        panel.set(**moved)
        seen.append((panel.picture.text(), panel.picture.svg()))
    for moved in ({"ranks": 3}, {"forget_to_divide": True}, {"forget_to_broadcast": True}):
        panel.set(**moved)
        panel.set(step=NUM_STEPS)
        seen.append((panel.picture.text(), panel.picture.svg()))
    assert len({words for words, _ in seen}) == len({png for _, png in seen}) == len(seen)


def test_the_panel_shows_picture_words_and_view():
    bundle = data_parallel()._repr_mimebundle_()
    assert {"text/plain", "image/png", "application/vnd.jupyter.widget-view+json"} <= set(bundle)
    assert "4 ranks, 0 before" in bundle["text/plain"]


@ALL_RANKS
def test_no_word_lies_over_another_or_is_cut(ranks):
    for mistakes in ((False, False), (True, False), (False, True), (True, True)):
        for step in range(NUM_STEPS + 1):
            board = draw(ranks, *mistakes, step)
            assert overlaps(board) == []
            assert min(word.size for word in words_of(board)) >= 12.5


def boxes_of(board) -> list[tuple]:
    """(look, rectangle) of every box."""
    return [(mark.look, box) for mark in board.marks if isinstance(mark, Boxes) for box in mark.rectangles]


def test_words_on_a_box_have_its_ink_and_boxes_that_differ_by_hash_have_no_hatch():
    board = draw(4, True, True, 5)
    boxes = boxes_of(board)
    assert {look.hatch for look, _ in boxes} == {""}
    found = 0
    for word in words_of(board):
        for look, (x0, y0, x1, y1) in boxes:
            if x0 < word.x < x1 and y0 < word.y < y1:
                assert word.colour == look.ink, word.text
                found += 1
    assert found == 2 * 5 * 5  # hash and number, five columns, five rows


def test_collectives_have_their_colours_as_soon_as_they_have_happened():
    broadcast, all_reduce = look_of_message("broadcast").plain, look_of_message("all_reduce")

    def tall(step, forgets):
        looks = [look for look, (_, y0, _, y1) in boxes_of(draw(4, False, forgets, step)) if y1 - y0 > 1]
        return set(looks)

    assert [tall(step, False) for step in (0, 1, 3)] == [set(), {broadcast}, {broadcast}]
    assert tall(4, False) == {broadcast, all_reduce} and tall(5, True) == {all_reduce}


def test_what_equals_one_process_has_its_colour():
    rows = [look for look, (x0, _, x1, y1) in boxes_of(draw(4, False, False, 5)) if x1 - x0 > 0.8]
    assert rows.count(SERIES[0].plain) == 1 + 5 + 5 + 5 + 1 + 1  # before: rank 0; 1, 4, 5: all; 0 and 3: one process
