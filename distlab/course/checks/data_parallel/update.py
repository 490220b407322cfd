"""The check of update: one step on every rank, then clear gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch

from distlab.course.checks.data_parallel.common import Tensors, misconceptions, weights_of, with_ranks
from distlab.course.compare import compare
from distlab.course.exercise import Exercise
from distlab.course.trial import Trial
from distlab.models import mlp


def updated(update) -> dict[str, Tensors]:
    """On a rank: the weights after each of two updates, with gradients of 1 and of 3."""
    model = mlp(2, 2, 1, dtype=torch.float64)
    layers = [{"params": layer.parameters()} for layer in (model[0], model[2])]
    optimizer = torch.optim.SGD(layers, lr=0.1, momentum=0.9)
    weights = {}
    for which, gradient in (("first", 1.0), ("second", 3.0)):
        (sum(p.sum() for p in model.parameters()) * gradient).backward()
        update(optimizer)
        weights[f"the {which} update"] = weights_of(model)
    return weights


def steps_and_clears(optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad()


def _clears_and_steps(optimizer) -> None:
    optimizer.zero_grad()
    optimizer.step()


def _steps(optimizer) -> None:
    optimizer.step()


def _steps_twice(optimizer) -> None:
    optimizer.step()
    steps_and_clears(optimizer)


def check_update(learners: Callable[[torch.optim.Optimizer], None], trial: Trial) -> str:
    """Tries two updates in a row."""
    right, unmoved = updated(steps_and_clears), updated(_clears_and_steps)
    for ranks in (1, 2, 3):
        case = f"{with_ranks(ranks)} and gradients of 1, then of 3, the weights"
        beliefs = {
            "clears-first": [unmoved] * ranks,
            "not-cleared": [updated(_steps)] * ranks,
            "twice": [updated(_steps_twice)] * ranks,
            "only-rank-0": [right, *[unmoved] * (ranks - 1)],
        }
        compare(case, trial.run(case, updated, learners, ranks=ranks), [right] * ranks, beliefs)
    return "one step on every rank, and then the gradients are clear for the next"


UPDATE = Exercise(
    "update",
    check_update,
    misconceptions=misconceptions(
        clears_first="The weights did not move: no step was taken, or the gradients were cleared before it.",
        not_cleared="The second step used both gradients, 1 + 3: clear them after each step.",
        twice="Each update took two steps.",
        only_rank_0="Only rank 0's weights moved: every rank has a replica of its own, and must update it.",
    ),
    hints=(
        "Two calls on the optimizer, in the right order. Who makes them: one rank, or all?",
        "optimizer.step(), then optimizer.zero_grad(), on every rank.",
    ),
)
