"""The check of backward_stage: one process's gradients on every stage, and one message back over each cut."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from distlab.course.checks.layer_partition.common import (
    given,
    make_part,
    misconceptions,
    named,
    no_such_rank,
    the_cuts,
    with_ranks,
)
from distlab.course.compare import compare, difference_by_rank
from distlab.course.exercise import Exercise
from distlab.course.trial import RankFailed, Trial
from distlab.events import Span
from distlab.ranks.watching.spans import span
from distlab.recording import Recording

Gradients = dict[str, torch.Tensor]


def _loss(outputs: torch.Tensor) -> torch.Tensor:
    return (outputs**2 * torch.arange(1, 1 + outputs.shape[1])).mean()


def _gradients(stage) -> Gradients:
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in stage.named_parameters()}


def sent_back(backward_stage, widths: list[int], num_rows: int, seed: int, is_turned: bool) -> Gradients:
    """On a rank: the gradients of its stage after a forward pass by hand and the learner's backward pass.

    ``is_turned``: the outputs lie in memory column by column.
    """
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    stage, inputs = make_part(widths, rank, seed), given(num_rows, widths[rank], seed)
    if rank > 0:
        dist.recv(inputs, rank - 1)
        inputs.requires_grad_()
    outputs = stage(inputs).t().contiguous().t() if is_turned else stage(inputs)
    if rank < last:
        dist.send(outputs.detach().contiguous(), rank + 1)
    loss = _loss(outputs) if rank == last else None
    with span("backward"):
        backward_stage(inputs, outputs, loss)
    return _gradients(stage)


def check_backward_stage(learners: Callable, trial: Trial) -> str:
    """Tries ``backward_stage`` on stages of one width, then of many, whose outputs are not contiguous."""
    for ranks, widths, num_rows, is_turned in (
        (2, [4, 4, 4], 3, False),
        (3, [4, 4, 4, 4], 3, False),
        (1, [4, 3], 2, False),
        (4, [4, 3, 5, 2, 3], 7, True),
    ):
        _try_backward(learners, trial, ranks, widths, num_rows, is_turned)
    return (
        "the gradients of every stage are one process's; one message back over each cut, of the activation's size; "
        "with 1 to 4 ranks, and with outputs that are not contiguous"
    )


def _try_backward(learners, trial: Trial, ranks: int, widths: list[int], num_rows: int, is_turned: bool) -> None:
    case = f"{with_ranks(ranks)} and {num_rows} rows" + ", outputs that are not contiguous" * is_turned
    try:
        run = trial.watch(case, sent_back, learners, widths, num_rows, trial.seed, is_turned, ranks=ranks)
    except RankFailed as failed:
        raise named(failed, _words(ranks, widths, num_rows)) from None
    want, beliefs = _right_and_wrong(widths, num_rows, trial.seed, ranks)
    fields = dict(ranks=ranks, last=ranks - 1)
    compare(f"{case}, the gradients", run.values, want, beliefs, **fields)
    sizes = [8 * num_rows * width for width in widths[1:ranks]]
    the_cuts(case, _during_backward(run.recording), [0] * ranks, sizes)


def _during_backward(recording: Recording) -> Recording:
    """What came after the forward pass by hand."""
    histories = []
    for history in recording.ranks:
        begin = next(i for i, event in enumerate(history) if isinstance(event, Span) and event.name)
        histories.append(history[begin:])
    return Recording(histories, recording.groups)


def _right_and_wrong(widths: list[int], num_rows: int, seed: int, ranks: int) -> tuple[list, dict[str, list]]:
    """One process's gradients by stage, and what each misconception would have left."""
    parts = [make_part(widths, rank, seed) for rank in range(ranks)]
    inputs, outputs = [], []
    for part in parts:
        inputs.append((outputs[-1].detach() if outputs else given(num_rows, widths[0], seed)).requires_grad_())
        outputs.append(part(inputs[-1]))
    of_loss = torch.autograd.grad(_loss(outputs[-1]), outputs[-1], retain_graph=True)[0]

    def backwards(arriving: Callable) -> list[Gradients]:
        """Gradients by stage if ``arriving(rank, gradient of the inputs of the stage behind)`` starts each."""
        gradients, behind = [], of_loss
        for rank in reversed(range(ranks)):
            start = arriving(rank, behind)
            names, parameters = zip(*parts[rank].named_parameters())
            *own, behind = torch.autograd.grad(outputs[rank], [*parameters, inputs[rank]], start, retain_graph=True)
            gradients.append(dict(zip(names, own)))
        return gradients[::-1]

    right = backwards(lambda rank, behind: behind)
    wrong = {
        "ones": backwards(lambda rank, g: g if rank == ranks - 1 else torch.ones_like(outputs[rank])),
        "last-only": [{n: g * (rank == ranks - 1) for n, g in right[rank].items()} for rank in range(ranks)],
        "divided": [{n: g / ranks for n, g in gradients.items()} for gradients in right],
        "again": [{n: g * 2 for n, g in gradients.items()} for gradients in right],
    }
    if len(set(widths)) == 1:
        handed = torch.autograd.grad(outputs[-1], inputs[-1], of_loss, retain_graph=True)[0]
        wrong["handed-on"] = backwards(lambda rank, g: g if rank == ranks - 1 else handed)
        wrong["of-outputs"] = backwards(lambda rank, behind: of_loss)
        wrong["activation"] = backwards(lambda rank, g: g if rank == ranks - 1 else inputs[rank + 1].detach())
    return right, {id: value for id, value in wrong.items() if difference_by_rank(value, right)}


def _words(ranks: int, widths: list[int], num_rows: int) -> dict[str, str | tuple[str, ...] | None]:
    of_inputs: list[str] = []
    for rank, (took, gave) in enumerate(zip(widths[: ranks - 1], widths[1:])):
        if took != gave:
            shapes = f"has a shape of torch.Size([{num_rows}, {took}]) and output[0] has a shape of torch.Size("
            of_inputs += [f"to rank {rank}, which receives float64[{num_rows}, {took}]", shapes]
    wrong_peers = (
        "ranks 0 → 1 → 2 → 0 wait in a circle, each for the next",
        "rank 2 sends to rank 0",
        "but rank 0 receives from rank 2",
    )
    return {
        "strided": "be contiguous",
        "float32": "receives float32",
        "of-inputs": tuple(of_inputs),
        "two-ranks": wrong_peers if ranks == 3 else None,
        "scalar": "only for scalar outputs",
        "loss-everywhere": "'NoneType' object has no attribute 'backward'",
        "no-gradient-yet": "'NoneType' object has no attribute",
        "first-sends": no_such_rank("send", -1, ranks),
        "wrong-way": no_such_rank("recv", -1, ranks),
        "never-sends": "returned without sending",
        "waits-for-each-other": "to receive from the other" if ranks == 2 else "each to receive from the next",
        "collective": None,
    }


BACKWARD_STAGE = Exercise(
    "backward_stage",
    check_backward_stage,
    misconceptions=misconceptions(
        ones="Every stage but the last started its backward pass with ones, not with the gradient that the next rank "
        "sends: these are the gradients of outputs.sum(), and the loss is not in them.",
        last_only="Only the last stage has gradients. Every other stage waits for the gradient of its outputs, and "
        "starts its own backward pass with it.",
        divided="Every gradient is divided by {ranks}. Nothing was averaged here: each stage has its own parameters, "
        "and the loss is that of the whole batch already.",
        again="Every gradient is twice as large as it should be: backward went through the stage twice.",
        of_outputs="What was sent back is the gradient of the stage's outputs. The rank before needs the gradient of "
        "its own outputs, and they are your inputs: inputs.grad.",
        activation="What was sent back are the inputs themselves, not their gradient: inputs.grad.",
        handed_on="The gradient that arrived was handed on unchanged. It is that of this rank's outputs; the rank "
        "before needs that of its own, and they are your inputs: inputs.grad.",
        strided="The memory for the gradient is not contiguous: torch.empty_like copies how the outputs lie in memory. "
        "outputs.new_empty(outputs.shape) has their shape and dtype, and lies in a row.",
        float32="The memory for the gradient is float32, but the gradient has the dtype of the outputs: "
        "outputs.new_empty(outputs.shape) has it.",
        of_inputs="The memory for the gradient has the shape of the inputs. What arrives is the gradient of the "
        "outputs, and has their shape.",
        two_ranks="This is right with two ranks only: a gradient comes from rank + 1 and goes to rank - 1, not from "
        "the last rank or to rank 0.",
        scalar="outputs.backward() alone works for a single number only. Give it the gradient that the next rank "
        "sends: torch.autograd.backward(outputs, gradient).",
        loss_everywhere="Only the last rank has a loss; on the others it is None, and they start from the gradient "
        "that they receive.",
        no_gradient_yet="A .grad is None where it was used: inputs.grad is there after the backward pass, and only on "
        "ranks whose inputs were received.",
        first_sends="Rank 0 has nobody before it to send a gradient to: its inputs are the batch.",
        wrong_way="The gradient of the outputs comes from the rank that took them in, rank + 1.",
        never_sends="A rank waits for a gradient that was never sent: every rank but the first sends inputs.grad back.",
        waits_for_each_other="Every rank waits for a gradient: the last rank waits for none, it starts from the loss.",
        messages="More messages crossed a cut than the one gradient. It has the shape of the outputs, which this rank "
        "knows.",
        collective="{kind} takes every rank of the world; a gradient goes back to one: dist.send.",
    ),
    hints=(
        "The last rank starts with loss.backward(). The others receive the gradient of their outputs, into "
        "outputs.new_empty(outputs.shape), which is contiguous as a message wants it, and start with that. Afterwards "
        "every rank but the first has inputs.grad to send.",
        "torch.autograd.backward(outputs, gradient) starts from a given gradient. dist.recv and dist.send move it; "
        "send_activation(inputs.grad, rank - 1) does as well.",
    ),
    uses=("send_activation",),
)
