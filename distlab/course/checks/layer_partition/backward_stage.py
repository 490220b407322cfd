"""The check of backward_stage: one process's gradients on every stage, and one message back over each cut."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from distlab.course.checks.layer_partition.common import misdirected, shape_at, shown_by, sizes_of
from distlab.course.checks.layer_partition.forward_stage import case, given_to
from distlab.course.exercise import Exercise
from distlab.course.kit.case import Job
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import gradients_of, misconceptions
from distlab.course.kit.outcome import Outcome


def _loss(outputs: torch.Tensor) -> torch.Tensor:
    return (outputs**2 * torch.arange(1, 1 + outputs.shape[-1])).mean()


def drive(lab, job: Job) -> dict:
    """On a rank: the gradients of its stage after a forward pass of ours and the learner's backward pass."""
    rank, last = dist.get_rank(), job.ranks - 1
    stage, inputs, *_ = given_to(job, rank)
    if rank > 0:
        inputs = torch.empty(shape_at(job, rank), dtype=job.dtype)
        dist.recv(inputs, rank - 1)
        inputs.requires_grad_()
    outputs = stage(inputs)
    if rank < last:
        dist.send(outputs.detach().contiguous(), rank + 1)
    call(lab.backward_stage, inputs, outputs, _loss(outputs) if rank == last else None)
    return {"the gradients": gradients_of(stage)}


def expect(job: Job, came: list[dict]) -> list[dict]:
    """One process's gradients, by stage."""
    stages = [given_to(job, rank)[0] for rank in range(job.ranks)]
    _loss(nn.Sequential(*stages)(given_to(job, 0)[1])).backward()
    return [{"the gradients": gradients_of(stage)} for stage in stages]


def judge(job: Job, outcome: Outcome):
    """One message back over each cut, of the activation's size."""
    yield from misdirected(outcome, {(cut + 1, cut): [size] for cut, size in enumerate(sizes_of(job))})


BACKWARD_STAGE = Exercise(
    "backward_stage",
    Experiment(
        (
            case([4, 4, 4], 3),
            case([3, 5, 2], 6),
            case([4, 4, 4, 4], 5, axes=(2,), turned=True),
            case([4, 3], 2),
            case([4, 3, 5, 2, 3], 7),
        ),
        drive,
        expect,
        judge=judge,
        shown=shown_by(judge),
        holds="the gradients of every stage are one process's; one message back over each cut, of the activation's "
        "size; with 1 to 4 ranks, with rows of two axes, and with outputs that are not contiguous",
    ),
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
        dtype="The memory for the gradient has another dtype than the outputs (torch.empty alone makes float32), and "
        "the gradient has theirs: outputs.new_empty(outputs.shape) has it.",
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
        collective="A collective takes every rank of the world; a gradient goes back to one: dist.send.",
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
