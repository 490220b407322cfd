"""compare_ranks(): what should be the same on all ranks and is not, by name."""

from __future__ import annotations

import hashlib
import pickle
import random
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from distlab.ranks.output import name_ranks

RANDOM = "random state"


class _Item(NamedTuple):
    """Something to compare: what it is, a tensor or bytes, and how it looks from outside."""

    value: torch.Tensor | bytes
    looks: str
    digest: str


def compare_ranks(*things, tolerance: float = 0.0, random_state: bool = False) -> list[str]:
    """Returns a line for everything that differs between the ranks: kind, name, largest difference, ranks.

    ``things`` are modules (parameters and buffers), optimizers (their states), tensors, and dicts of tensors.
    ``random_state`` compares torch's, numpy's and Python's random generators too. Values may differ by ``tolerance``.
    A collective: all ranks call it, and all get the same list, empty if nothing differs. Raises TypeError for a thing
    that it can't compare, on the rank that brings it.
    """
    mine = dict(_items(things))
    if random_state:
        mine |= dict(_random_states())
    outlines = _gather({key: (item.looks, item.digest) for key, item in mine.items()})
    keys = sorted({key for outline in outlines for key in outline})
    unlike = [key for key in keys if len({outline.get(key) for outline in outlines}) > 1]
    values = _gather({key: mine[key].value for key in unlike if key in mine and key[0] != RANDOM})
    lines = (_line(key, [o.get(key) for o in outlines], [v.get(key) for v in values], tolerance) for key in unlike)
    return [line for line in lines if line]


def _gather(mine) -> list:
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, mine)
    return gathered


def _items(things) -> Iterator[tuple[tuple[str, str], _Item]]:
    for place, thing in enumerate(things):
        for kind, name, value in _tensors(thing, place):
            local = (value.to_local() if hasattr(value, "to_local") else value).detach().cpu().contiguous()
            looks = f"{str(local.dtype).removeprefix('torch.')}{list(local.shape)}"
            yield (kind, name), _Item(local, looks, _digest(local.reshape(-1).view(torch.uint8).numpy().tobytes()))


def _tensors(thing, place: int) -> Iterator[tuple[str, str, torch.Tensor]]:
    if isinstance(thing, torch.nn.Module):
        yield from (("parameter", name, value) for name, value in thing.named_parameters())
        yield from (("buffer", name, value) for name, value in thing.named_buffers())
    elif isinstance(thing, torch.optim.Optimizer):
        for number, state in thing.state_dict()["state"].items():
            tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
            yield from (("optimizer state", f"{number}.{name}", value) for name, value in tensors.items())
    elif isinstance(thing, torch.Tensor):
        yield "tensor", str(place), thing
    elif isinstance(thing, Mapping) and all(isinstance(value, torch.Tensor) for value in thing.values()):
        yield from (("tensor", str(name), value) for name, value in thing.items())
    else:
        raise TypeError(f"compare_ranks expects modules, optimizers, tensors or dicts of tensors, got {thing!r}")


def _random_states() -> Iterator[tuple[tuple[str, str], _Item]]:
    states = {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": pickle.dumps(np.random.get_state()),
        "random": pickle.dumps(random.getstate()),
    }
    for name, state in states.items():
        yield (RANDOM, name), _Item(state, "", _digest(state))


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _line(key: tuple[str, str], outlines: list, values: list, tolerance: float) -> str:
    """What differs in one thing, by ranks; "" if it is within the tolerance."""
    kind, name = key
    head = f"{kind} of {name}" if kind == RANDOM else f'{kind} "{name}"'
    absent = [rank for rank, outline in enumerate(outlines) if outline is None]
    if absent:
        return f"{head} is missing on {name_ranks(absent)}"
    looks = _grouped([outline[0] for outline in outlines])
    if len(looks) > 1:
        return f"{head} differs: " + ", ".join(
            f"{name_ranks(ranks)} {_has(ranks)} {look}" for look, ranks in looks.items()
        )
    alike = [name_ranks(ranks) for ranks in _grouped([outline[1] for outline in outlines]).values()]
    if kind == RANDOM:
        return f"{head} differs: {' against '.join(alike)}"
    largest, rank = max((_apart(value, values[0]), rank) for rank, value in enumerate(values))
    within = largest <= tolerance
    return (
        "" if within else f"{head} differs: {' against '.join(alike)}, rank {rank} from rank 0 by up to {largest:.3g}"
    )


def _has(ranks: list[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _grouped(values: list) -> dict:
    groups: dict = {}
    for rank, value in enumerate(values):
        groups.setdefault(value, []).append(rank)
    return groups


def _apart(mine: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference of two tensors; infinite where one has a NaN and the other has not."""
    if not mine.numel():
        return 0.0
    difference = (mine.double() - other.double()).abs()
    difference[mine.isnan() & other.isnan()] = 0
    return difference.nan_to_num(nan=float("inf"), posinf=float("inf")).max().item()
