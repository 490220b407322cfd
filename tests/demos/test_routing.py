"""The demo of routing: its numbers against the formulas, and what each control changes. The text may be any."""

from __future__ import annotations

import math

import pytest
import torch

from distlab.demos import gate
from distlab.demos.course import built_in
from distlab.demos.gate import NUM_EXPERTS, NUM_LINES, NUM_TOKENS, Routing, lines
from distlab.demos.routing import ALPHAS, FACTORS, by_rank, draw, routing, share_dropped
from distlab.show.look import INK, TEXT
from distlab.show.marks import Boxes, Frames
from tests.demos.pictures import size_of
from tests.demos.words import overlaps, words_of

LAB = built_in("mixture_of_experts")
LINE = "a" * NUM_TOKENS


def evenly(top_k: int) -> Routing:
    """Each expert has as many choices as every other."""
    tokens_T = torch.arange(NUM_TOKENS)
    return Routing(LINE, torch.stack([(tokens_T + shift) % NUM_EXPERTS for shift in range(top_k)], dim=1), 1.0)


def at_random(top_k: int, num_tokens: int = NUM_TOKENS) -> Routing:
    scores_TE = torch.rand(num_tokens, NUM_EXPERTS, generator=torch.Generator().manual_seed(0))
    return Routing("a" * num_tokens, scores_TE.topk(top_k).indices, 1.0)


@pytest.fixture(autouse=True)
def short_training(monkeypatch):
    """Three steps instead of 100: nothing here depends on how well a gate has learned."""
    monkeypatch.setattr(gate, "STEPS", 3)
    forget_what_was_trained()
    yield
    forget_what_was_trained()


def forget_what_was_trained():
    gate.trained.cache_clear()
    gate.routing.cache_clear()


def test_the_balance_loss_is_alpha_at_uniform_routing_and_alpha_n_at_collapse():
    """Switch Transformers, Eq. 4 to 6."""
    alpha, num = 0.01, NUM_EXPERTS
    even_T1 = torch.arange(4 * num)[:, None] % num
    uniform = LAB.load_balancing_loss(torch.zeros(4 * num, num, dtype=torch.float64), even_T1, alpha)
    assert uniform.item() == pytest.approx(alpha, rel=1e-12)
    one_TE = torch.zeros(10, num, dtype=torch.float64)
    one_TE[:, 3] = 1000.0
    collapsed = LAB.load_balancing_loss(one_TE, torch.full((10, 1), 3), alpha)
    assert collapsed.item() == pytest.approx(alpha * num, rel=1e-12)


def test_the_balance_loss_shown_is_that_of_the_line_over_alpha():
    shown = gate.routing(2, 0.01, 0)
    model = gate.trained(2, 0.01)
    seen = []
    model.blocks[0].mlp.gate.register_forward_hook(lambda _module, _ins, out: seen.append(out))
    ids_BT = torch.tensor([[gate.text("test")[1].index(letter) for letter in shown.line]])
    with torch.no_grad():
        model(ids_BT)
    probs_E = seen[0].softmax(-1).mean(0)
    shares_E = torch.tensor(shown.loads) / (2 * NUM_TOKENS)
    assert shown.balance == pytest.approx(NUM_EXPERTS * float((shares_E * probs_E).sum()), rel=1e-5)
    assert f"over α is {shown.balance:.2f}:" in draw(2, 1.0, 0.01, 2, 0).text()


def test_capacity_is_the_share_of_each_expert_times_the_factor():
    """Switch Transformers, Eq. 3: 1,024 tokens, 8 experts, factor 1.25 have 160 places an expert."""
    assert at_random(1, 1024).capacity(1.25) == 160
    assert [evenly(1).capacity(factor) for factor in FACTORS] == [2, 3, 4, 5, 6, 8, NUM_TOKENS]
    assert [evenly(2).capacity(factor) for factor in FACTORS] == [4, 6, 8, 10, 12, 16, NUM_TOKENS]


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("factor", FACTORS)
def test_the_share_dropped_is_what_the_labs_dispatch_drops(top_k, factor):
    for routed in (at_random(top_k), evenly(top_k), at_random(top_k, 1024)):
        kept = sum(len(queue) for queue in routed.queues(factor))
        share = share_dropped(routed.loads, routed.capacity(factor))
        assert share == pytest.approx(1 - kept / (top_k * len(routed.line)))
        assert share == 0 or factor < math.inf


def test_even_routing_drops_nobody_from_factor_1_on_and_half_at_factor_a_half():
    assert share_dropped(evenly(1).loads, evenly(1).capacity(1.0)) == 0
    assert share_dropped(evenly(2).loads, evenly(2).capacity(0.5)) == 0.5


@pytest.mark.parametrize("top_k", [1, 2])
def test_who_is_kept_stands_first_in_the_queue_without_a_limit(top_k):
    routed = at_random(top_k)
    for short, long in zip(routed.queues(1.0), routed.queues(), strict=True):
        assert short == long[: routed.capacity(1.0)]
    assert all([choice for _, choice in queue] == sorted(choice for _, choice in queue) for queue in routed.queues())


def test_of_an_even_load_the_share_that_travels_is_w_minus_1_over_w():
    for ranks in (1, 2, 4):
        takes = by_rank(evenly(2).loads, evenly(2).capacity(1.0), ranks)
        assert sum(takes) == 2 * NUM_TOKENS and len(set(takes)) == 1
        assert sum(takes[1:]) / sum(takes) == (ranks - 1) / ranks


def test_a_rank_takes_what_its_experts_keep():
    assert by_rank([9, 1, 0, 3, 7, 0, 2, 10], 5, 4) == [6, 3, 5, 7]


def test_the_lines_are_of_the_text_that_was_kept_for_testing():
    ids_N, vocabulary = gate.text("test")
    whole = "".join(vocabulary[number] for number in ids_N.tolist())
    assert len(set(lines())) == NUM_LINES
    assert all(len(line) == NUM_TOKENS and line in whole for line in lines())


def test_the_balance_loss_makes_the_busiest_expert_less_busy(monkeypatch):
    """Trained in full, on whatever the text is: the busiest of all lines' characters."""
    monkeypatch.setattr(gate, "STEPS", 100)
    busiest = []
    for alpha in (0.0, 0.1):
        loads = zip(*(gate.routing(1, alpha, line).loads for line in range(NUM_LINES)), strict=True)
        busiest.append(max(sum(by_line) for by_line in loads))
    assert busiest[1] < 0.7 * busiest[0]


def test_every_control_changes_what_it_should():
    panel = routing(top_k=1, factor=0.5, alpha=0.0, ranks=2, line=0)
    assert "capacity 2" in panel.picture.text() and "Ranks take" in panel.picture.text()
    seen = [panel.picture.svg()]
    for moved, words in (
        ({"factor": math.inf}, "0 of 32 choices are dropped"),
        ({"top_k": 2}, "of 64 choices"),
        ({"factor": 1.0}, "Top-2 of 8 experts, capacity 8"),
        ({"alpha": 0.1}, "α = 0.1"),
        ({"line": 5}, "Top-2"),
    ):
        panel.set(**moved)
        assert words in panel.picture.text()
        seen.append(panel.picture.svg())
    panel.set(ranks=1)
    assert "Ranks take" not in panel.picture.text()
    seen.append(panel.picture.svg())
    assert len(set(seen)) == len(seen)


def test_the_extremes_draw_at_the_same_size():
    settings = [(1, 0.5, 0.0, 1, 0), (2, math.inf, 0.0, 4, NUM_LINES - 1), (2, 0.5, 0.1, 2, 3)]
    sizes = {size_of(draw(*setting)) for setting in settings}
    assert sizes == {(960, 490)}


def drawn(monkeypatch, routed: Routing, factor: float, ranks: int):
    with monkeypatch.context() as patch:
        patch.setattr(gate, "routing", lambda *_: routed)
        return draw(routed.top_k, factor, 0.0, ranks, 0)


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0, math.inf])
def test_no_word_lies_over_another_or_is_cut(monkeypatch, top_k, factor):
    collapsed = Routing("W" * NUM_TOKENS, torch.arange(top_k).expand(NUM_TOKENS, -1), 1.0)
    for routed in (evenly(top_k), at_random(top_k), collapsed):
        for ranks in (1, 2, 4):
            board = drawn(monkeypatch, routed, factor, ranks)
            assert overlaps(board) == []
            assert min(word.size for word in words_of(board)) >= 12.0


def test_kept_tokens_stand_in_boxes_and_dropped_ones_in_dotted_frames(monkeypatch):
    collapsed = Routing(LINE, torch.zeros(NUM_TOKENS, 1, dtype=torch.long), 1.0)
    board = drawn(monkeypatch, collapsed, 1.0, 4)
    tokens = [word for word in words_of(board) if word.text == "a"]
    assert [word.colour for word in tokens].count(INK) == 2 * 4  # in the text and in the queue
    assert [word.colour for word in tokens].count(TEXT) == 2 * 28
    hollow = [box for mark in board.marks if isinstance(mark, Frames) and mark.style == ":" for box in mark.rectangles]
    filled = [box for mark in board.marks if isinstance(mark, Boxes) for box in mark.rectangles]
    assert len(hollow) == 2 * 28 + 1 and len(filled) == 2 * 4 + 1  # and one each in the legend
    assert {"32", "28", "takes 4", "capacity 4"} <= set(board.written)


def test_training_leaves_threads_and_random_state_as_they_were():
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    gate.trained(1, ALPHAS[1])
    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), state)


def test_the_panel_shows_picture_words_and_view():
    bundle = routing()._repr_mimebundle_()
    assert {"text/plain", "image/png", "application/vnd.jupyter.widget-view+json"} <= set(bundle)
    assert "Top-1 of 8 experts, capacity 5" in bundle["text/plain"]
