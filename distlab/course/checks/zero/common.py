"""What the checks of lab 05 share: units with coded numbers, an optimizer that notes what it is given, counted
messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn

from distlab.course.compare import difference_by_rank
from distlab.events import Memory, Message, Span
from distlab.recording import Recording


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


def unit_of(parameters: Sequence[nn.Parameter], apart: bool = False) -> SimpleNamespace:
    """On a rank: a unit as the lab makes it from these parameters, with a :class:`Descent`.

    ``apart`` gives the shard a storage of its own, as stage 3 has it.
    """
    world, rank = dist.get_world_size(), dist.get_rank()
    weights_P = padded(list(parameters), world)
    for parameter, part in zip(parameters, weights_P.split([p.numel() for p in parameters] + [_rest(parameters)])):
        parameter.data = part.view_as(parameter)
    shard_S = weights_P.chunk(world)[rank]
    if apart:
        shard_S = nn.Parameter(shard_S.clone(), requires_grad=False)
    return SimpleNamespace(
        parameters=list(parameters),
        weights_P=weights_P,
        shard_S=shard_S,
        gradient_P=None,
        optimizer=Descent(shard_S),
        work=None,
    )


def _rest(parameters: Sequence[nn.Parameter]) -> int:
    return -sum(p.numel() for p in parameters) % dist.get_world_size()


def numbers(count: int) -> nn.Parameter:
    """1, 2, 3, … as a parameter of float64."""
    return nn.Parameter(torch.arange(1, count + 1, dtype=torch.float64))


def coded(count: int, rank: int, turn: int = 1) -> torch.Tensor:
    """Rank r's numbers: 1, 2, 3, … times 10^r times ``turn``, so that a digit says whose share it is."""
    return torch.arange(1, count + 1, dtype=torch.float64) * 10**rank * turn


def part(flat_P: torch.Tensor, rank: int, world: int) -> torch.Tensor:
    """One rank's part."""
    return flat_P.chunk(world)[rank]


def same_memory(tensor, other: torch.Tensor) -> bool:
    """Whether a tensor is the same stretch of memory as another."""
    return isinstance(tensor, torch.Tensor) and tensor.data_ptr() == other.data_ptr() and tensor.shape == other.shape


def storage_bytes(tensor: torch.Tensor | None) -> int:
    """The bytes that a tensor keeps in memory, those around it in the same storage included; 0 for None."""
    return 0 if tensor is None else tensor.untyped_storage().nbytes()


def wrong_constant(got: Sequence, sums: Sequence[Sequence[torch.Tensor]], ranks: int) -> int:
    """By which constant, other than the number of ranks, the sums were divided to give what came; 0 if by none."""
    return next((c for c in (2, 4) if c != ranks and not difference_by_rank(got, divided(sums, c))), 0)


def divided(by_rank: Sequence[Sequence[torch.Tensor]], divisor: float) -> list[list[torch.Tensor]]:
    """All tensors, divided."""
    return [[tensor / divisor for tensor in of_rank] for of_rank in by_rank]


def inside(recording: Recording, rank: int, name: str) -> list[Message]:
    """The messages that a rank issued inside the spans called ``name``."""
    return [event for event, names in _with_spans(recording, rank) if type(event) is Message and name in names]


def held_inside(recording: Recording, rank: int, name: str) -> list[Memory]:
    """What a rank held at each look inside the spans called ``name``, from where they begin."""
    return [event for event, names in _with_spans(recording, rank) if type(event) is Memory and name in names]


def _with_spans(recording: Recording, rank: int) -> Iterator[tuple[object, tuple[str, ...]]]:
    names: list[str] = []
    for event in recording.ranks[rank]:
        if type(event) is Span and event.name:
            names.append(event.name)
        elif type(event) is Span and names:
            names.pop()
        yield event, tuple(names)


def elements(messages: Sequence[Message]) -> Counter[str]:
    """The elements of collectives by kind, single numbers left out."""
    sizes: Counter[str] = Counter()
    for message in messages:
        if message.elements > 1:
            sizes[message.kind] += message.elements
    return sizes


def in_words(sizes: Counter[str]) -> str:
    """ "reduce_scatter 8, all_gather 8"."""
    return ", ".join(f"{kind} {size}" for kind, size in sizes.items()) or "nothing"
