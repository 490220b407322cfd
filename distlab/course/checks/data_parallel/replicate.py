"""The check of replicate: every rank ends with rank 0's numbers."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from distlab.course.exercise import Exercise
from distlab.course.kit.budget import more_than
from distlab.course.kit.case import Case, Job
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import Tensors, misconceptions
from distlab.course.kit.outcome import Outcome

KINDS = "trainable parameters", "frozen parameters", "buffers"


def model_of(job: Job, rank: int) -> nn.Module:
    """A rank's own numbers; where it is varied with tied weights, a frozen layer, and buffers of every sort.

    One buffer is a whole number that its model's dtype cannot hold; some numbers are nan, but for rank 0's.
    """
    torch.manual_seed(job.seed + rank)
    if not job["varied"]:
        return nn.Linear(3, 2).to(job.dtype)
    model = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Linear(5, 5), nn.Linear(5, 2)).to(job.dtype)
    model[2].weight = model[0].weight
    model[3].requires_grad_(False)
    model[1].running_mean.normal_()
    model[1].num_batches_tracked += (
        (2**24 if job.dtype == torch.float32 else 2**53) + 1 + 2 * int(torch.randint(1000, ()))
    )
    if rank:
        model[0].bias.data[0] = model[1].running_var[0] = float("nan")
    model.register_buffer("mask", torch.randn(3).to(job.dtype), persistent=False)
    return model


def held(model: nn.Module) -> dict[str, Tensors]:
    """The tensors of a model by kind and name, the very ones."""
    parameters = dict(model.named_parameters())
    trainable = {name: p.data for name, p in parameters.items() if p.requires_grad}
    frozen = {name: p.data for name, p in parameters.items() if not p.requires_grad}
    return dict(zip(KINDS, (trainable, frozen, dict(model.named_buffers()))))


def drive(lab, job: Job) -> dict:
    """On a rank: the tensors of its model after ``replicate``, those that an optimizer has known all along."""
    model = model_of(job, dist.get_rank())
    known = dict(model.named_parameters())
    call(lab.replicate, model, changes=(0,))
    after = held(model)
    return {kind: {name: known.get(name, tensor).detach() for name, tensor in after[kind].items()} for kind in KINDS}


def judge(job: Job, outcome: Outcome):
    """Every tensor is sent once: a bucket may be padded."""
    whole = sum(t.nbytes for tensors in held(model_of(job, 0)).values() for t in tensors.values())
    twice = 2 if any(m.kind == "all_reduce" for m in outcome.messages(0)) else 1
    yield from more_than(twice * (whole + 8 * job.ranks), outcome, "the bytes sent")


REPLICATE = Exercise(
    "replicate",
    Experiment(
        [Case(2, ", which start from different numbers", varied=False)]
        + [Case(r, ", which start from different numbers" * (r > 1), varied=True) for r in (3, 4, 1)],
        drive,
        lambda job, _: [held(model_of(job, 0))] * job.ranks,
        judge=judge,
        fields=lambda job, _: {
            "last": job.ranks - 1,
            "dtype": str(job.dtype).removeprefix("torch."),
            "most": "2^24" if job.dtype == torch.float32 else "2^53",
        },
        holds="every rank holds rank 0's parameters, the frozen ones too, and its buffers; with 1 to 4 ranks",
    ),
    misconceptions=misconceptions(
        kept="Every rank kept its own: nothing of rank 0's has arrived in the model.",
        frozen="The frozen parameters (requires_grad=False) were left out, and the forward pass uses them too.",
        buffers="The buffers were left out: model.parameters() has none of them, model.buffers() has all.",
        state_dict="state_dict() is what a file needs: it leaves out buffers that are not persistent, and lists tied "
        "weights once for each of their names. model.parameters() and model.buffers() have each tensor once.",
        integers="Buffers of whole numbers were left out, such as the batches that a BatchNorm has counted.",
        rounded="Whole numbers went through a bucket of {dtype}, which holds them exactly up to {most} only: a "
        "bucket for each dtype.",
        times_zero="Other ranks' numbers are multiplied by 0, and 0 × nan is nan: overwrite them, whatever they are.",
        average="The ranks hold the average over all ranks; what rank 0 started from is asked for.",
        wrong_source="The ranks hold what rank {last} started from; rank 0's is asked for.",
    ),
    hints=(
        "dist.broadcast(tensor, src=0) sends on rank 0 and overwrites `tensor` on every other rank. "
        "All ranks call it, once for each tensor of the model.",
        "Loop over [*model.parameters(), *model.buffers()]: frozen parameters are among them, and a weight that two "
        "layers share comes once. Broadcast tensor.detach(): the same memory, without autograd.",
    ),
)
