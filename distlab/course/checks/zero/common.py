"""What the checks of lab 05 share: units of known numbers, and an optimizer that notes what it is given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from types import SimpleNamespace

import torch
from torch import nn

from distlab.course.kit.case import Case, Job
from distlab.course.kit.fixtures import NOT_FLOAT32

# On three ranks, which are tried first, a mistake by 2 or by 4 shows as what it is.
CASES = [
    Case(ranks, f" and {sum(sizes)} numbers", sizes=sizes)
    for ranks, sizes in ((3, [4, 3]), (2, [3, 2]), (4, [3, 7]), (1, [2, 1]))
]


class Descent:
    """Moves a shard by its gradient alone, and notes every gradient."""

    def __init__(self, shard_S: torch.Tensor):
        self.shard_S, self.seen = shard_S, []

    def step(self) -> None:
        """Takes a step; without a gradient it only notes that there was none."""
        gradient_S = self.shard_S.grad
        self.seen.append(None if gradient_S is None else gradient_S.detach().clone())
        if gradient_S is not None:
            self.shard_S.data -= gradient_S.detach()


def padded(values: Sequence[torch.Tensor], world: int) -> torch.Tensor:
    """Tensors one after another, and zeros up to a multiple of the world size."""
    flat = torch.cat([value.detach().flatten() for value in values])
    return torch.cat([flat, flat.new_zeros(-len(flat) % world)])


def numbers(job: Job, sizes: Sequence[int], of: int = 0, turn: int = 1) -> list[torch.Tensor]:
    """Whole numbers one after another, times 10^r for rank r and times ``turn``, in tensors of so many.

    So a digit says whose share a number is. They begin elsewhere in every job, and float32 cannot quite hold them.
    """
    flat = (torch.arange(sum(sizes), dtype=torch.float64) + 1 + job.seed % 7) * NOT_FLOAT32
    return list((flat * 10**of * turn).to(job.dtype).split(list(sizes)))


def weights_of(job: Job) -> list[torch.Tensor]:
    """The numbers of parameters, unlike any gradient."""
    return numbers(job, job["sizes"], turn=50)


def mean_of(job: Job, turn: int) -> torch.Tensor:
    """The padded mean over the ranks of what each brings in its turn."""
    return sum(padded(numbers(job, job["sizes"], rank, turn), job.ranks) for rank in range(job.ranks)) / job.ranks


class Unit(SimpleNamespace):
    """A unit of the lab's fields; like the lab's it can be a key, and is equal to itself only."""

    __hash__, __eq__ = object.__hash__, object.__eq__


def unit_of(tensors: Iterable[torch.Tensor], stage: int, rank: int, world: int) -> Unit:
    """A rank's unit as the lab makes it of parameters, or of tensors, for a stage; its optimizer is a Descent."""
    parameters = [p if isinstance(p, nn.Parameter) else nn.Parameter(p) for p in tensors]
    weights_P = padded(parameters, world)
    for parameter, view in zip(parameters, _parts(weights_P, parameters)):
        parameter.data = view
    unit, shard_S = Unit(weights_P=weights_P, parameters=parameters), part(weights_P, rank, world)
    if stage == 1:
        unit.gradient_P = torch.zeros_like(weights_P)
        for parameter, view in zip(parameters, _parts(unit.gradient_P, parameters)):
            parameter.grad = view
    if stage == 3:
        shard_S, unit.work = nn.Parameter(shard_S.clone(), requires_grad=False), None
    unit.optimizer, unit.shard_S = Descent(shard_S), shard_S
    return unit


def update(unit: SimpleNamespace, mean_P: torch.Tensor, rank: int, world: int) -> None:
    """Leaves a unit as a right step does, given the gradient's mean over the ranks."""
    new_P = unit.weights_P - mean_P
    unit.shard_S.grad = part(mean_P, rank, world).clone()
    unit.optimizer.step()
    unit.weights_P.copy_(new_P)


def _parts(flat_P: torch.Tensor, parameters: Sequence[nn.Parameter]) -> list[torch.Tensor]:
    sizes = [p.numel() for p in parameters]
    return [piece.view_as(p) for piece, p in zip(flat_P[: sum(sizes)].split(sizes), parameters)]


def part(flat_P: torch.Tensor, rank: int, world: int) -> torch.Tensor:
    """One rank's part."""
    return flat_P.chunk(world)[rank]


def free(tensor: torch.Tensor) -> None:
    """Empties the storage under a tensor, as the lab does."""
    tensor.untyped_storage().resize_(0)


def allocate(tensor: torch.Tensor) -> None:
    """Gives an emptied storage its memory back, as the lab does."""
    tensor.untyped_storage().resize_(tensor.numel() * tensor.element_size())


def copy_of(value):
    """A tensor's numbers, or "freed" where its storage is empty; what is no tensor, in words."""
    if not isinstance(value, torch.Tensor):
        return " ".join(repr(value).split())[:60]
    is_there = storage_bytes(value) >= value.numel() * value.element_size()
    return value.detach().clone() if is_there else "freed"


def same_memory(tensor, other: torch.Tensor) -> bool:
    """Whether a tensor is the same stretch of memory as another."""
    return isinstance(tensor, torch.Tensor) and tensor.data_ptr() == other.data_ptr() and tensor.shape == other.shape


def storage_bytes(tensor) -> int:
    """The bytes that a tensor keeps in memory, those around it in the same storage included; 0 for anything else."""
    return tensor.untyped_storage().nbytes() if isinstance(tensor, torch.Tensor) else 0


def divisor(got, mean: torch.Tensor, ranks: int) -> int:
    """By what the ranks' sum was divided, to go by the first number of what came; 0 if nothing can be told."""
    if not isinstance(got, torch.Tensor) or not got.numel() or not mean.numel():
        return 0
    quotient = float(ranks * mean.flatten()[0] / got.flatten()[0])
    return round(quotient) if isfinite(quotient) else 0  # what nobody has waited for may be anything
