"""The demo of tensor parallelism shows what lab 08's own layers do on real ranks."""

from __future__ import annotations

import sys

import cloudpickle
import pytest
import torch
from torch import nn

from distlab import run, span
from distlab.demos.course import built_in
from distlab.demos.tensor_parallel import RANKS, draw, real_megabytes, sent, tensor_parallel
from distlab.demos.tensor_steps import HEADS, LAYERS, PLACES, WIDTH, layer, mine
from distlab.models import MLP, Attention
from distlab.show.look import look_of_message
from distlab.show.marks import Frames
from tests.demos.pictures import size_of
from tests.demos.words import overlaps, words_of

cloudpickle.register_pickle_by_value(sys.modules[__name__])
LAB = built_in("tensor_parallel")
# By name: a rank is given what its function uses.
ColumnParallelLinear, RowParallelLinear = LAB.ColumnParallelLinear, LAB.RowParallelLinear
ParallelMLP, ParallelAttention, share_of = LAB.ParallelMLP, LAB.ParallelAttention, LAB.share_of


def said(what: str, ranks: int, step: int) -> str:
    """Title and words, in one line."""
    return " ".join(draw(what, ranks, step).text().split())


# --- on real ranks ---------------------------------------------------------------------------------


def whole(what: str) -> nn.Module:
    torch.manual_seed(0)
    if what in ("column", "row"):
        return nn.Linear(WIDTH, 4 * WIDTH) if what == "column" else nn.Linear(4 * WIDTH, WIDTH)
    return MLP(WIDTH) if what == "MLP" else Attention(WIDTH, HEADS)


def step_of_a_layer(what: str) -> dict[str, torch.Size | torch.Tensor]:
    """On a rank: the lab's layer forward and backward; its matrices as Y = XA has them, and shapes of what it made."""
    make = dict(column=ColumnParallelLinear, row=RowParallelLinear, MLP=ParallelMLP, attention=ParallelAttention)[what]
    part = make(whole(what))
    linears = {"A": part} if what in ("column", "row") else dict(part.named_children())
    shapes = {}
    for name, linear in linears.items():
        linear.register_forward_hook(lambda _, x, y, name=name: shapes.update({f"{name} in": x[0].shape[1:]}))
        linear.register_forward_hook(lambda _, x, y, name=name: shapes.update({f"{name} out": y.shape[1:]}))
    x = torch.randn(1, PLACES, len(share_of(4 * WIDTH)) if what == "row" else WIDTH, requires_grad=True)
    with span("forward"):
        y = part(x)
    with span("backward"):
        y.backward(torch.ones_like(y))
    weights = {name: linear.weight.detach().T for name, linear in linears.items()}
    gradients = {f"d {name}": linear.weight.grad.T.shape for name, linear in linears.items()}
    return weights | gradients | shapes | {"dX": x.grad.shape[1:]}


def all_reduces(recording, rank: int) -> tuple[int, int]:
    """A rank's all-reduces in the spans "forward" and "backward"."""
    found, during = {"forward": 0, "backward": 0}, ""
    for event in recording.ranks[rank]:
        if type(event).__name__ == "Span":
            during = event.name or during
        elif getattr(event, "kind", "") == "all_reduce":
            found[during] += 1
    return found["forward"], found["backward"]


ON_REAL_RANKS = [(what, ranks) for what in LAYERS for ranks in (1, 2, 4)] + [("MLP", 8), ("attention", 8)]


@pytest.mark.parametrize(("what", "ranks"), ON_REAL_RANKS)
def test_real_ranks_hold_and_send_what_the_picture_says(what, ranks):
    cut = layer(what)
    recorded = run(step_of_a_layer, what, ranks=ranks, record="messages")
    sums = cut.all_reduces(len(cut.steps))
    sent_bytes = recorded.traffic().traffic.sent()
    for rank, found in enumerate(recorded.values):
        assert all_reduces(recorded.recording, rank) == sums
        assert sent_bytes[rank] == pytest.approx(4 * sum(sums) * sent(PLACES * WIDTH, ranks))
        blocks = {block.name: block.shape_on(rank, ranks) for column in cut.columns for block in column.blocks}
        for block in cut.weights:
            name = "qkv" if block.name == "QKV" else block.name
            assert tuple(found[name].shape) == tuple(found[f"d {name}"]) == blocks[block.name]
            assert torch.equal(found[name], part_of_the_whole(what, name, block.cut, rank, ranks))
        assert tuple(found["dX"]) == blocks["dX"]
        for key, block in NAMES_OF_SHAPES[what].items():
            assert tuple(found[key]) == blocks[block], key


NAMES_OF_SHAPES = {
    "column": {"A in": "X", "A out": "Y"},
    "row": {"A in": "X", "A out": "Y"},
    "MLP": {"up in": "X", "up out": "X · up", "down in": "hidden", "down out": "Z"},
    "attention": {"qkv in": "X", "qkv out": "Q, K, V", "out in": "heads", "out out": "Z"},
}


def part_of_the_whole(what: str, name: str, cut: str, rank: int, ranks: int) -> torch.Tensor:
    """The stripe of A = weightᵀ that the picture gives to a rank."""
    linear = whole(what) if name == "A" else getattr(whole(what), name)
    matrix = linear.weight.detach().T
    if cut == "rows":
        return matrix[list(mine(matrix.shape[0], rank, ranks))]
    if cut == "columns":
        return matrix[:, list(mine(matrix.shape[1], rank, ranks))]
    heads = mine(WIDTH, rank, ranks)
    return matrix[:, [third * WIDTH + column for third in range(3) for column in heads]]


# --- what is said ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "sums"), [("column", (0, 1)), ("row", (1, 0)), ("MLP", (1, 1)), ("attention", (1, 1))]
)
def test_the_running_count_of_all_reduces_ends_at_megatrons(what, sums):
    steps = layer(what).steps
    counts = [layer(what).all_reduces(step) for step in range(len(steps) + 1)]
    assert counts[0] == (0, 0) and counts[-1] == sums and counts == sorted(counts)
    for step, (forward, backward) in enumerate(counts):
        assert f"All-reduces: {forward} forward, {backward} backward" in said(what, 4, step)


def test_a_layer_of_gpt_3_on_8_ranks_sends_352_megabytes_a_rank():
    assert real_megabytes(8, 4) == pytest.approx(352.3, abs=0.05)
    assert "4 all-reduces, for GPT-3 352.3 MB" in said("MLP", 8, 11)
    assert [4 * sent(1, ranks) for ranks in (1, 2, 4, 8)] == [0, 4, 6, 7]


def test_words_say_which_rank_holds_which_shape():
    assert "Rank 1 holds columns 16–31 of up, 16 × 16, and rows 16–31 of down, 16 × 16," in said("MLP", 4, 0)
    assert "Rank 1 holds columns 2–3 of each of Q, K and V, 16 × 6, and rows 2–3 of out, 2 × 16," in said(
        "attention", 8, 0
    )
    assert "Rank 0 holds columns 0–63 of A, 16 × 64," in said("column", 1, 0)
    assert "Rank 1 holds rows 32–63 of A, 32 × 16," in said("row", 2, 0)


@pytest.mark.parametrize("what", LAYERS)
def test_a_step_uses_only_what_is_there_and_makes_each_matrix_once(what):
    cut = layer(what)
    there = {"X"} | {block.name for block in cut.weights}
    for step in cut.steps:
        assert set(step.uses) <= there and step.makes not in there
        there.add(step.makes)
    assert there == {block.name for column in cut.columns for block in column.blocks}


@pytest.mark.parametrize("what", LAYERS)
def test_only_sums_of_parts_send(what):
    for number, step in enumerate(layer(what).steps, 1):
        assert step.is_sum == any(name.startswith("parts") for name in step.uses)
        assert ("an all-reduce adds" in said(what, 4, number)) == step.is_sum


# --- the picture -----------------------------------------------------------------------------------


def test_all_settings_are_drawn_in_one_size():
    for what, ranks, step in (("MLP", 8, 11), ("attention", 8, 10), ("column", 1, 0), ("row", 2, 5), ("row", 8, 2)):
        assert size_of(draw(what, ranks, step)) == (960, 496)


@pytest.mark.parametrize("what", LAYERS)
@pytest.mark.parametrize("ranks", RANKS)
def test_no_word_lies_over_another_or_is_cut(what, ranks):
    for step in range(len(layer(what).steps) + 1):
        board = draw(what, ranks, step)
        assert overlaps(board) == []
        owners = {str(rank) for rank in range(ranks)}
        assert min(word.size for word in words_of(board) if word.text not in owners) >= 14.5
        assert min(word.size for word in words_of(board)) >= 10


def test_the_colour_of_all_reduces_is_there_just_when_one_is():
    colour = look_of_message("all_reduce").colour
    for what in LAYERS:
        for number, step in enumerate(layer(what).steps, 1):
            board = draw(what, 4, number)
            sums = [word.text for word in words_of(board) if word.colour == colour]
            frames = [mark for mark in board.marks if isinstance(mark, Frames) and mark.colour == colour]
            assert (sums, len(frames)) == ((["Σ"], 1) if step.is_sum else ([], 0))


def test_every_stripe_that_has_room_has_its_rank():
    written = draw("MLP", 8, 11).written
    assert [written.count(str(rank)) for rank in range(8)] == [10] * 8  # 8 matrices cut, and parts of two sums
    assert draw("attention", 8, 11).written.count("7") == 6  # not the 24 stripes of QKV and of Q, K, V


def test_every_control_changes_the_picture():
    base = draw("MLP", 4, 3).svg()
    assert draw("MLP", 4, 3).svg() == base
    for other in (("attention", 4, 3), ("MLP", 8, 3), ("MLP", 4, 4)):
        assert draw(*other).svg() != base


def test_the_panel_shows_a_view_a_picture_and_words_and_plays_to_the_end():
    panel = tensor_parallel("row", 2)
    bundle = panel._repr_mimebundle_()
    assert {"text/plain", "image/png", "application/vnd.jupyter.widget-view+json"} <= set(bundle)
    assert panel.values == dict(what="row", ranks=2, step=0)
    panel.set(step=5)
    assert "step 5 of 5: dX = dY × Aᵀ" in repr(panel)
    panel.set(what="MLP")
    assert panel.values["step"] == 0
    panel.set(step=11)
    assert "step 11 of 11: f is an all-reduce" in repr(panel)
    assert RANKS == (1, 2, 4, 8)
