"""One step of data parallelism on real ranks, with lab 02's own functions: what every rank held after each part."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector

from distlab import run
from distlab.demos.course import built_in
from distlab.models import mlp

WIDTHS = (64, 64, 10)
LEARNING_RATE = 0.1
NUM_ROWS = 12  # 2, 3 and 4 ranks have equal shards
CLASS = 5
BIAS = -WIDTHS[-1] + CLASS  # the last numbers of the model are the biases of its classes
PART_OF_COLUMN = {0: 0, 1: 1, 3: 2, 4: 3, 5: 4}  # of what a Step holds, by column of the demo's picture
_DECIMALS = 8  # two orders of adding differ in the 16th
_TAKEN = ("replicate", "split_batch", "compute_gradients", "average_gradients", "update")


@dataclass(frozen=True, eq=False)  # known by itself, to keep what was computed of it
class Step:
    """What ranks held during one step; P numbers are a model's, in float64.

    The parts of ``held_WSP`` are, S of them: weights before, weights after replicate, each rank's own gradient, the
    gradient after synchronising, weights after the update.
    """

    held_WSP: torch.Tensor
    images: list[torch.Tensor]  # by rank, of shape (its rows, 64)
    labels: list[list[int]]

    def hashes(self, part: int) -> list[str]:
        """By rank, lab 02's digest of all P numbers, rounded to 8 decimals."""
        rounded_WP = self.held_WSP[:, part].round(decimals=_DECIMALS) + 0.0  # no -0.0
        return [built_in("data_parallel").digest([held_P]) for held_P in rounded_WP]

    def numbers(self, part: int) -> list[float]:
        """By rank, one of the P numbers: the bias of class 5, or its gradient."""
        return self.held_WSP[:, part, BIAS].tolist()


@cache
def on_ranks(ranks: int, divides: bool = True, broadcasts: bool = True) -> Step:
    """The step on that many ranks, each of which starts with a model from its own seed.

    Without ``divides`` or ``broadcasts`` it is made with that mistake. One run serves all mistakes and is kept.
    """
    images, labels, held = zip(*_run(ranks), strict=True)
    held_WSP = torch.stack([by_mistake[divides, broadcasts] for by_mistake in held])
    return Step(held_WSP, list(images), [label_b.tolist() for label_b in labels])


@dataclass(frozen=True)
class Column:
    """One part of the step: by rank, a hash of all numbers and one of them; the last is one process alone."""

    hashes: list[str]
    numbers: list[float]

    @property
    def verdict(self) -> str:
        """Whether ranks are the same."""
        return "same" if len(set(self.hashes[:-1])) == 1 else "different"

    @property
    def equals_one_process(self) -> bool:
        """Whether all ranks have all numbers of one process, to 8 decimals."""
        return set(self.hashes) == {self.hashes[-1]}


@cache
def columns_of(ranks: int, forget_to_divide: bool = False, forget_to_broadcast: bool = False) -> dict[int, Column]:
    """By column of the picture (0 before, 1 replicate, 3 compute, 4 synchronise, 5 update), what was there."""
    step, alone = on_ranks(ranks, not forget_to_divide, not forget_to_broadcast), on_ranks(1)
    return {
        column: Column(step.hashes(part) + alone.hashes(part), step.numbers(part) + alone.numbers(part))
        for column, part in PART_OF_COLUMN.items()
    }


@cache
def times_too_large(step: Step) -> float | None:
    """By what factor the synchronised gradient is one process's, if all its numbers are, to ten digits."""
    alone_P = on_ranks(1).held_WSP[0, 3]
    ratio = float(step.held_WSP[0, 3] @ alone_P / (alone_P @ alone_P))
    is_multiple = torch.allclose(step.held_WSP[:, 3], ratio * alone_P, rtol=1e-10, atol=1e-12)
    return ratio if is_multiple else None


@cache
def _run(ranks: int) -> list:
    lab = built_in("data_parallel")
    taken = SimpleNamespace(**{name: getattr(lab, name) for name in _TAKEN})
    batch = lab.first_rows(NUM_ROWS, torch.float64)
    return run(_with_and_without_mistakes, taken, *batch, ranks=ranks, device="cpu", record=False).values


def _with_and_without_mistakes(lab, x_BD, y_B):
    held = {(divides, broadcasts): _step(lab, x_BD, y_B, divides, broadcasts)
            for divides in (True, False) for broadcasts in (True, False)}  # fmt: skip
    return *lab.split_batch(x_BD, y_B), held


def _step(lab, x_BD, y_B, divides, broadcasts):
    model = mlp(*WIDTHS, seed=dist.get_rank(), dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    held = [_weights(model)]
    if broadcasts:  # the mistake: this line is missing
        lab.replicate(model)
    held.append(_weights(model))
    x_bD, y_b = lab.split_batch(x_BD, y_B)
    lab.compute_gradients(model, x_bD, y_b)
    held.append(_gradient(model))
    if divides:
        lab.average_gradients(model, len(y_b))
    else:
        _sum_gradients(model)
    held.append(_gradient(model))
    lab.update(optimizer)
    held.append(_weights(model))
    return torch.stack(held)


def _sum_gradients(model):
    """The mistake: an all-reduce adds up, and nobody divides."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def _weights(model):
    return parameters_to_vector(model.parameters()).detach().clone()


def _gradient(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
