"""The check of update: one step on every rank, and then gradients are clear."""

from __future__ import annotations

import torch

from distlab.course.exercise import Exercise
from distlab.course.kit.case import Case, Job
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import Tensors, gradients_of, misconceptions, weights_of
from distlab.course.kit.outcome import Outcome
from distlab.models import mlp


def _updated(update, job: Job) -> dict[str, Tensors]:
    """The weights after each of three updates, with gradients of 1, of 3 and of inf, and the gradients at the end."""
    model = mlp(2, 2, 1, seed=job.seed, dtype=job.dtype)
    layers = [{"params": layer.parameters()} for layer in (model[0], model[2])]
    optimizer = torch.optim.SGD(layers, lr=0.1, momentum=0.9)
    weights = {}
    for which, gradient in (("first", 1.0), ("second", 3.0), ("third", float("inf"))):
        (sum(p.sum() for p in model.parameters()) * gradient).backward()
        call(update, optimizer)
        weights[f"the weights after the {which} update"] = weights_of(model)
    return weights | {"the gradients after the third update": gradients_of(model)}


def _right(optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad()


def _judge(job: Job, outcome: Outcome):
    """Nothing is sent: the gradients are the same on all ranks, and so are the steps."""
    sent = sum(len(outcome.messages(rank)) for rank in range(job.ranks))
    if sent:
        yield "the messages", f"expected none, got {sent}"


UPDATE = Exercise(
    "update",
    Experiment(
        [Case(ranks, " and gradients of 1, of 3, then of inf") for ranks in (1, 2, 3)],
        lambda lab, job: _updated(lab.update, job),
        lambda job, _: [_updated(_right, job)] * job.ranks,
        judge=_judge,
        shown=lambda job, outcome: ("sends",),
        holds="one step on every rank, and then the gradients are clear for the next",
    ),
    misconceptions=misconceptions(
        clears_first="The weights did not move: no step was taken, or the gradients were cleared before it.",
        not_cleared="The second step used both gradients, 1 + 3: clear them after each step.",
        twice="Each update took two steps.",
        first_group="Only the first of the optimizer's parameter groups was cleared: optimizer.zero_grad() clears all.",
        times_zero="0 × inf is nan: a gradient that has once been too large stays so when it is multiplied by 0. Set "
        "it to None or to zeros, as optimizer.zero_grad() does.",
        sends="Nothing needs to be sent: the gradients are the same on all ranks, so all take the same step.",
        only_rank_0="Only rank 0's weights moved: every rank has a replica of its own, and must update it.",
    ),
    hints=(
        "Two calls on the optimizer, in the right order. Who makes them: one rank, or all?",
        "optimizer.step(), then optimizer.zero_grad(), on every rank.",
    ),
)
