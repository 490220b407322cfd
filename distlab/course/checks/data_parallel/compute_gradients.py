"""The check of compute_gradients: the mean loss of one rank's rows, and its gradients."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from distlab.course.checks.data_parallel.common import Batch, batch_of
from distlab.course.exercise import Exercise
from distlab.course.kit.case import Case, Job, listed
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import gradients_of, misconceptions
from distlab.models import mlp

_ROWS = [4], [3, 2], [2, 2, 0]


def classifier(job: Job) -> nn.Module:
    """A plain model for batches of 4 numbers a row in three classes."""
    return mlp(4, 5, 3, seed=job.seed, dtype=job.dtype)


def _used(job: Job) -> nn.Module:
    """A classifier with a frozen bias, which has gradients from earlier: those that come are added."""
    model = classifier(job)
    model[0].bias.requires_grad_(False)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.25) if parameter.requires_grad else None
    return model


def _rows(job: Job, rank: int) -> Batch:
    """A rank's rows; where a loss diverges there is a nan in the last rank's."""
    x_bD, y_b = batch_of(job, job["rows"][rank], of=rank)
    if job["diverges"] and rank == job.ranks - 1:
        x_bD[0] = float("nan")
    return x_bD, y_b


def drive(lab, job: Job) -> dict:
    """On a rank: the loss of its rows, and the gradients that are there afterwards."""
    model, rank = _used(job), dist.get_rank()
    loss = call(lab.compute_gradients, model, *_rows(job, rank))
    found = {"the loss": loss, "the gradients": gradients_of(model)}
    return found | {"the loss, requires_grad": isinstance(loss, torch.Tensor) and loss.requires_grad}


def expect(job: Job, came: list[dict]) -> list[dict]:
    """Each rank's loss and gradients; 0 where it has no rows."""
    want = []
    for rank, num_rows in enumerate(job["rows"]):
        model = _used(job)
        x_bD, y_b = _rows(job, rank)
        loss = F.cross_entropy(model(x_bD), y_b) if num_rows else model(x_bD).sum()
        loss.backward()
        found = {"the loss": loss.detach(), "the gradients": gradients_of(model)}
        want.append({"the loss": found["the loss"]} if job["diverges"] else found | {"the loss, requires_grad": False})
    return want


COMPUTE_GRADIENTS = Exercise(
    "compute_gradients",
    Experiment(
        [
            *(Case(len(rows), f" holding {listed(rows)} rows", rows=rows, diverges=False) for rows in _ROWS),
            Case(2, " holding 3 and 2 rows, nan in one of rank 1's", rows=[3, 2], diverges=True),
        ],
        drive,
        expect,
        fields=lambda job, _: {"rank": job.ranks - 1},
        holds="the mean loss of this rank's rows, detached, and its gradients; zeros on a rank without rows",
    ),
    misconceptions=misconceptions(
        sum="The loss is the sum over this rank's rows; their mean is asked for.",
        no_softmax="F.nll_loss expects logarithms of probabilities, and the model gives none: F.cross_entropy takes "
        "the softmax itself.",
        softmax_twice="The softmax is taken twice: F.cross_entropy expects the model's output as it is.",
        float32_zero="The 0 of a rank without rows is float32 and the other losses are not: torch.tensor(0.0) is "
        "float32, and dtype=x_bD.dtype makes it like them.",
        clears="The gradients that were there are lost: compute_gradients adds to .grad, and clearing is for `update`.",
        frozen="A frozen parameter (requires_grad=False) has no gradient: leave it out.",
        hides_nan="A loss of nan is made 0 wherever it comes from, so a model that diverges looks as if it had learned "
        "all: ask whether there are rows instead.",
        no_backward="The loss is right, and there are no gradients: loss.backward() is missing, or they were "
        "cleared after it.",
        nan="Rank {rank} has no rows, and the mean of none is 0 / 0: its loss is to be 0.",
        moves="The weights have moved: that is the work of `update`.",
        attached="The loss still holds its graph, and with it all activations: return loss.detach().",
    ),
    hints=(
        "As on one process: loss = F.cross_entropy(…), loss.backward(), return loss.detach(). "
        "Then think of a rank without rows.",
        'F.cross_entropy(…, reduction="sum") of no rows is 0, and so are its gradients. Divide it by the number of '
        "rows, but at least by 1, and it is the mean.",
    ),
)
