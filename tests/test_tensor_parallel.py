"""The numbers of lab 08, with the lab's own solution: what a layer sends, keeps and gives, for any number of ranks."""

from __future__ import annotations

import copy
import sys

import cloudpickle
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from distlab import from_lab, machines, run, span
from distlab.course.checks.tensor_parallel import elements_a_layer
from distlab.course.checks.tensor_parallel.vocabulary import Largest
from distlab.data import text_batch
from distlab.machine.replay import replay
from distlab.models import Block, gpt
from tests.benchmarks import tensor_parallel_step
from tests.benchmarks.tensor_parallel_step import by_pytorch

for module in (sys.modules[__name__], tensor_parallel_step):
    cloudpickle.register_pickle_by_value(module)

LAB = from_lab("tensor_parallel", solution=True)
# By name: a rank is given what its function uses, and the lab's pictures are slow to import.
ParallelAttention = LAB.ParallelAttention
ParallelMLP = LAB.ParallelMLP
kept_for_backward = LAB.kept_for_backward
kept_outside = LAB.kept_outside
layer_recording = LAB.layer_recording
make_parallel = LAB.make_parallel
make_sequence_parallel = LAB.make_sequence_parallel
share_of = LAB.share_of
vocab_parallel_cross_entropy = LAB.vocab_parallel_cross_entropy
ROWS, PLACES, WIDTH, HEADS = 2, 8, 32, 4
BSH = ROWS * PLACES * WIDTH
ALIKE = {torch.float32: 1e-5, torch.float64: 1e-10}


def in_parts(block: Block) -> Block:
    block.attention, block.mlp = ParallelAttention(block.attention), ParallelMLP(block.mlp)
    return block


def whole(block: Block) -> Block:
    return block


def drawn(seed: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(ROWS, PLACES, WIDTH, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def step_of_a_layer(make, dtype: torch.dtype = torch.float32, *options) -> dict:
    """On a rank: y, the gradient of x, and those of all that is not cut."""
    torch.manual_seed(0)
    block = make(Block(WIDTH, HEADS).to(dtype), *options)
    x = drawn(1, dtype).requires_grad_()
    with span("step"):
        y = block(x)
        y.backward(drawn(2, dtype))
    norms = {name: p.grad for name, p in block.named_parameters() if "norm" in name or name.endswith("down.bias")}
    return dict(y=y, x=x.grad, **{name: getattr(g, "_local_tensor", g) for name, g in norms.items()})


def messages_of_the_step(recording) -> list[tuple[str, int]]:
    """Kinds and elements of rank 0's messages from the span on."""
    history = list(recording.ranks[0])
    start = next(i for i, event in enumerate(history) if getattr(event, "name", "") == "step")
    return [(m.kind, m.elements) for m in history[start:] if type(m).__name__ == "Message"]


def apart(one: dict, other: dict) -> float:
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_layer_sends_four_all_reduces_of_8bsh_t_minus_1_over_t_elements_a_rank(ranks):
    recorded = run(step_of_a_layer, in_parts, ranks=ranks, record="messages")
    assert messages_of_the_step(recorded.recording) == [("all_reduce", BSH)] * 4
    sent = [bytes / 4 for bytes in recorded.traffic().traffic.sent()]
    assert sent == pytest.approx([8 * BSH * (ranks - 1) / ranks] * ranks)
    assert sent[0] == pytest.approx(elements_a_layer(ranks) * BSH)


def test_the_compute_of_a_rank_falls_with_the_number_of_ranks():
    flops = {ranks: run(step_of_a_layer, in_parts, ranks=ranks).recording.flops(0) for ranks in (1, 2, 4)}
    assert flops[2] == pytest.approx(flops[1] / 2) and flops[4] == pytest.approx(flops[1] / 4)


@pytest.mark.parametrize("dtype", ALIKE, ids=str)
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_layer_equals_one_process_and_pytorchs_own(ranks, dtype):
    alone = step_of_a_layer(whole, dtype)
    for make in (in_parts, by_pytorch):
        for of_rank in run(step_of_a_layer, make, dtype, ranks=ranks, record="messages").values:
            assert apart(of_rank, {name: value.detach() for name, value in alone.items()}) < ALIKE[dtype]


def test_pytorch_sends_the_same_once_its_plan_says_that_the_input_is_shared():
    ours, theirs, careless = (
        messages_of_the_step(run(step_of_a_layer, *how, ranks=2, record="messages").recording)
        for how in ((in_parts,), (by_pytorch,), (by_pytorch, torch.float32, False))
    )
    assert ours == theirs == [("all_reduce", BSH)] * 4
    assert careless == [("all_reduce", BSH)] * 6


# --- a whole GPT -----------------------------------------------------------------------------------


def trained(model, loss_of, steps: int = 3) -> list[float]:
    losses, optimizer = [], torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(steps):
        torch.manual_seed(step)
        x, y = text_batch(3, 16, seed=step)
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def plain_loss(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def with_gradients_as_weights(model: nn.Module) -> nn.Module:
    """A copy of the model that holds its gradients where its weights were, to be cut as they are."""
    gradients = copy.deepcopy(model)
    for parameter, of_model in zip(gradients.parameters(), model.parameters()):
        parameter.data = of_model.grad
    return gradients


def by_name(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def trained_both_ways(num_ids: int, tied: bool) -> dict:
    """On a rank: how far losses, gradients and weights in parts are from those of one process."""
    alone, mine = (
        gpt(num_ids, WIDTH, 2, HEADS, 16, dropout=0.2, tied=tied, seed=3, dtype=torch.float64) for _ in range(2)
    )
    losses = trained(alone, plain_loss)
    cut_gradients = make_parallel(with_gradients_as_weights(alone))
    make_parallel(mine)
    own_losses = trained(mine, lambda logits, y: vocab_parallel_cross_entropy(logits, y, num_ids))
    gradients = {name: parameter.grad for name, parameter in mine.named_parameters()}
    number = sum(p.numel() for p in mine.parameters())
    return dict(
        losses=max(abs(a - b) for a, b in zip(losses, own_losses)),
        gradients=apart(gradients, by_name(cut_gradients)),
        weights=apart(by_name(mine), by_name(make_parallel(alone))),
        number=number,
    )


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize(("num_ids", "tied"), [(96, False), (101, True)])
def test_a_gpt_in_parts_trains_as_one_process_with_dropout_on_real_text(ranks, num_ids, tied):
    for found in run(trained_both_ways, num_ids, tied, ranks=ranks, record=False).values:
        assert max(found["losses"], found["gradients"], found["weights"]) < 1e-10


def test_the_parts_of_all_ranks_are_the_whole_and_what_is_not_cut():
    (alone,) = run(trained_both_ways, 96, False, ranks=1, record=False).values
    numbers = [found["number"] for found in run(trained_both_ways, 96, False, ranks=4, record=False).values]
    copied = 16 * WIDTH + 2 * WIDTH + 2 * (6 * WIDTH)  # positions; last norm; in each layer two norms and two biases
    assert sum(numbers) - 3 * copied == alone["number"]


def initial_weights() -> dict[str, torch.Tensor]:
    """On a rank: its parts of two matrices, before any step."""
    model = make_parallel(gpt(seed=5))
    return dict(up=model.blocks[0].mlp.up.weight, head=model.head.weight)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_initial_weights_are_the_same_for_any_number_of_ranks(ranks):
    model = gpt(seed=5)
    parts = run(initial_weights, ranks=ranks, record=False).values
    assert torch.equal(torch.cat([part["up"] for part in parts]), model.blocks[0].mlp.up.weight.detach())
    assert torch.equal(torch.cat([part["head"] for part in parts]), model.head.weight.detach())


def heads_that_do_not_divide() -> str:
    try:
        make_parallel(gpt(num_heads=4))
    except ValueError as refusal:
        return str(refusal)
    return ""


def test_heads_that_do_not_divide_are_refused_by_name():
    said = set(run(heads_that_do_not_divide, ranks=3, record=False).values)
    assert said == {"4 heads can't be shared out evenly among 3 ranks"}


# --- no rank holds all logits ----------------------------------------------------------------------


def loss_of_logits(num_ids: int) -> dict[str, int]:
    """On a rank: the elements of the largest tensor that any operator made, and the bytes kept for the way back."""
    logits = torch.randn(4, 32, len(share_of(num_ids)), requires_grad=True)
    targets = torch.randint(num_ids, (4, 32))
    with Largest() as largest:
        loss, kept = kept_for_backward(vocab_parallel_cross_entropy, logits, targets, num_ids)
        loss.backward()
    return dict(largest=largest.elements, kept=kept)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_no_rank_ever_holds_all_logits(ranks):
    recorded = run(loss_of_logits, 960, ranks=ranks, record="messages")
    assert {message.elements for message in recorded.recording.messages()} == {4 * 32}
    for found in recorded.values:
        assert found["largest"] == 4 * 32 * 960 // ranks
        assert found["kept"] < 2.2 * 4 * found["largest"]  # the logits and their exponentials


# --- sequence parallel -----------------------------------------------------------------------------


def sequence_step(by_places: bool, dropout: float = 0.2) -> tuple[torch.Tensor, torch.Tensor, int]:
    """On a rank: y and x's gradient (its places), and bytes kept for backward outside attention and MLP."""
    torch.manual_seed(0)
    block = Block(WIDTH, HEADS, dropout).double()
    block = make_sequence_parallel(block) if by_places else in_parts(block)
    places = share_of(PLACES) if by_places else range(PLACES)
    x = drawn(1, torch.float64)[:, places.start : places.stop].clone().requires_grad_()
    y, kept = kept_outside(block, x)
    y.backward(drawn(2, torch.float64)[:, places.start : places.stop])
    return y, x.grad, kept


@pytest.mark.parametrize("ranks", [2, 4])
def test_sequence_parallel_gives_the_same_sends_as_much_and_keeps_one_part_in_t_outside(ranks):
    (y_alone, grad_alone, kept_alone), *_ = run(sequence_step, False, ranks=1, record=False).values
    plain, by_places = (run(sequence_step, how, ranks=ranks, record="messages") for how in (False, True))
    assert plain.traffic().traffic.sent() == pytest.approx(by_places.traffic().traffic.sent())
    assert dict(by_places.recording.counts(0)) == {"all_gather": 4, "reduce_scatter": 4}
    y, grad, kept = zip(*by_places.values)
    torch.testing.assert_close(torch.cat(y, dim=1), y_alone, rtol=0, atol=1e-10)
    torch.testing.assert_close(torch.cat(grad, dim=1), grad_alone, rtol=0, atol=1e-10)
    assert kept == pytest.approx([kept_alone / ranks] * ranks)
    assert [k for *_, k in plain.values] == [kept_alone] * ranks


# --- at scale --------------------------------------------------------------------------------------


def test_a_layer_of_gpt_3_sends_352_megabytes_and_waits_little_inside_a_node_and_much_across():
    assert elements_a_layer(8) * 2048 * 12288 * 2 == pytest.approx(352.3e6, rel=1e-3)
    inside = machines.a100_node.flops_only()
    across = machines.ethernet_100g.flops_only()
    for machine, least, most in ((inside, 0.04, 0.08), (across, 0.4, 0.7)):
        timeline = replay(layer_recording(8), machine)
        assert least < timeline.exposed[0] / timeline.wall < most
        assert timeline.hidden == pytest.approx([0] * 8)
