"""The check of average_moe_gradients: the right scale over the right ranks, for two kinds of parameters."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn

from distlab.course.exercise import Exercise
from distlab.course.kit.budget import more_than
from distlab.course.kit.case import Case, Job
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import Tensors, gradients_of, misconceptions
from distlab.course.kit.outcome import Outcome

WIDTH, NUM_EXPERTS = 2, 12
EXPERTS = "first.", "second.inner."
BEFORE = "the gradients before"


def model_of(lab, job: Job) -> nn.Module:
    """On a rank: two layers of experts, one of them deeper inside, their gates, one of which is tied, and others."""
    rank, per_rank = dist.get_rank(), NUM_EXPERTS // job.ranks
    first, inner = (lab.Experts(range(rank * per_rank, (rank + 1) * per_rank), WIDTH) for _ in EXPERTS)
    gates = {f"{name}_gate": nn.Linear(WIDTH, NUM_EXPERTS, bias=False) for name in ("first", "second")}
    layers = {
        "first": first,
        "second": nn.ModuleDict({"inner": inner}),
        "conv": nn.Conv1d(WIDTH, WIDTH, 3),
        "head": nn.Linear(WIDTH, 3),
    }
    model = nn.ModuleDict(gates | layers).to(job.dtype)
    model["tied"] = nn.Linear(WIDTH, NUM_EXPERTS, bias=False)
    model["tied"].weight = model["first_gate"].weight
    return model


def drive(lab, job: Job) -> dict:
    """On a rank: all gradients, as backward() would have left them and afterwards."""
    model = model_of(lab, job)
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = job.random(*parameter.shape, of=100 * dist.get_rank() + number)
    before = gradients_of(model)
    call(lab.average_moe_gradients, model)
    return {BEFORE: before, "the gradients": gradients_of(model)}


def expect(job: Job, came: list[dict]) -> list[dict]:
    """An expert's own, divided by the ranks; the mean of all others."""
    mean = {name: sum(of_rank[BEFORE][name] for of_rank in came) / job.ranks for name in dense(came[0])}
    return [
        {"the gradients": {name: mean.get(name, own / job.ranks) for name, own in of_rank[BEFORE].items()}}
        for of_rank in came
    ]


def dense(came: dict) -> Tensors:
    """The gradients of what every rank holds."""
    return {name: gradient for name, gradient in came[BEFORE].items() if not name.startswith(EXPERTS)}


def judge(job: Job, outcome: Outcome):
    """Of what every rank holds, all is sent once; a bucket may be padded."""
    most = sum(gradient.nbytes for gradient in dense(outcome.values[0]).values())
    yield from more_than(2 * (most + job.ranks * job.dtype.itemsize), outcome, "the bytes sent")


AVERAGE_MOE_GRADIENTS = Exercise(
    "average_moe_gradients",
    Experiment(
        [Case(ranks) for ranks in (2, 3, 1, 4)],
        drive,
        expect,
        judge=judge,
        named={"the bytes sent": "sends-experts"},
        needs=("Experts",),
        holds="the gradients are those of the mean of all ranks' losses, and no expert's was sent; on 1 to 4 ranks",
    ),
    misconceptions=misconceptions(
        experts_too_large="The experts' gradients are {ranks} times too large, all others are right. They arrive "
        "summed over the ranks that sent tokens, and the loss is the mean over the ranks: divide them by W.",
        experts_mixed="The experts' gradients are the mean over all ranks, and on every rank these are *different* "
        "experts. An expert's gradient is complete where the expert is: divide it by W, send nothing.",
        experts_added="The experts' gradients are added up over all ranks, and on every rank these are different "
        "experts. An expert's gradient is complete where the expert is.",
        experts_twice="The experts' gradients are divided by W twice.",
        dense_added="The gradients of what every rank holds are summed, not averaged: {ranks} times too large.",
        dense_alone="The gradients of what every rank holds are still this rank's own: average them over all ranks, or "
        "the replicas part.",
        temporary="Gradients were all-reduced, and the sums are lost: all_reduce writes into the tensor that it is "
        "given, and an expression like parameter.grad / W makes a new one. Give it parameter.grad itself.",
        on_rank_0="Only rank 0 has the sums: reduce leaves the others without. all_reduce gives them to every rank.",
        added="Nothing was divided by W: all gradients are {ranks} times too large.",
        only_divided="Everything was divided by W and nothing sent: what every rank holds needs the others' parts.",
        nothing="The gradients are as they were.",
        sends_experts="The result is right, but more was sent than the gradients of what every rank holds, each once.",
        one_layer="Only one layer's experts were taken for experts; the model has several, and they may lie deeper "
        "inside it. model.modules() goes through all of it.",
        by_axes="Experts were told from the rest by their number of axes, which other layers have as well, a "
        "convolution for instance. What counts is which parameters are those of an Experts.",
    ),
    hints=(
        "Two kinds of parameters. Those of Experts: divide by W. All others: all-reduce, and divide by W.",
        "of_experts = {p for module in model.modules() if isinstance(module, Experts) for p in module.parameters()}; "
        "then one loop over model.parameters().",
    ),
)
