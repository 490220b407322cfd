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
from torch.nn.parallel import DistributedDataParallel

from distlab.ranks.output import name_ranks

RANDOM = "random state"
_OUGHT = "ought to differ: did every rank draw from one seed, or take the same part?"
_AFTER_WRAP = "; it was put into the module after the DDP wrap, so nobody averages its gradient"


class _Item(NamedTuple):
    """Something to compare: what it is, a tensor or bytes, how it looks from outside, and what is known of it."""

    value: torch.Tensor | bytes
    looks: str
    digest: str
    note: str = ""


def compare_ranks(*things, tolerance: float = 0.0, random_state: bool = False, should_differ=()) -> list[str]:
    """Returns a line for everything that differs between the ranks: kind, name, largest difference, ranks.

    ``things`` are modules (parameters and buffers), optimizers (their states), tensors, and dicts of tensors.
    ``random_state`` compares torch's, numpy's and Python's random generators too. Values may differ by ``tolerance``.
    ``should_differ`` takes a thing, or several in a tuple or list, that every rank is to have of its own, its shard of
    the data for instance, or ``torch.get_rng_state()``: a line says which ranks hold the very same. A collective: all
    ranks call it, and all get the same list, empty if nothing is to be said. Raises TypeError for a thing that it can't
    compare, on the rank that brings it.

    It sees what the ranks hold now, not how they came by it. A parameter that was put into a module after the DDP wrap
    is averaged by nobody, and DDP does not say so: it shows here once an optimizer has stepped on gradients that
    differ, so compare after a step, and give the DDP module itself: the line then says so. Of ``should_differ`` it
    does not see shards that overlap in part, or hold the same rows in another order.
    """
    mine = dict(_items(things))
    if random_state:
        mine |= dict(_random_states())
    own = dict(_items(should_differ if isinstance(should_differ, tuple | list) else (should_differ,)))
    outlines, own_outlines = zip(*_gather((_outlines(mine), _outlines(own))))
    keys = sorted({key for outline in outlines for key in outline})
    unlike = [key for key in keys if len({outline.get(key) for outline in outlines}) > 1]
    values = _gather({key: mine[key].value for key in unlike if key in mine and key[0] != RANDOM})
    lines = (_line(key, [o.get(key) for o in outlines], [v.get(key) for v in values], tolerance) for key in unlike)
    return [line for line in lines if line] + _shared(own_outlines)


def _outlines(items: dict) -> dict:
    return {key: (item.looks, item.digest, item.note) for key, item in items.items()}


def _shared(outlines) -> list[str]:
    """A line for every thing of which ranks hold the same, although each is to have its own."""
    lines = []
    for key in sorted({key for outline in outlines for key in outline}):
        for outline, ranks in _grouped([outline.get(key) for outline in outlines]).items():
            if outline and len(ranks) > 1 and outline[1] != _EMPTY:
                lines.append(f'{key[0]} "{key[1]}" is the same on {name_ranks(ranks)} and {_OUGHT}')
    return lines


def _gather(mine) -> list:
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, mine)
    return gathered


def _items(things) -> Iterator[tuple[tuple[str, str], _Item]]:
    for place, thing in enumerate(things):
        late = _after_the_wrap(thing)
        for kind, name, value in _tensors(thing, place):
            local = (value.to_local() if hasattr(value, "to_local") else value).detach().cpu().contiguous()
            looks = f"{str(local.dtype).removeprefix('torch.')}{list(local.shape)}"
            digest = _digest(local.reshape(-1).view(torch.uint8).numpy().tobytes())
            yield (kind, name), _Item(local, looks, digest, _AFTER_WRAP if id(value) in late else "")


def _after_the_wrap(thing) -> set[int]:
    """The ids of the parameters that a DDP module now has and did not have when it was made."""
    if not isinstance(thing, DistributedDataParallel):
        return set()
    ignored = {f"module.{name}" for name in thing.parameters_to_ignore}
    known = {id(value) for value in thing._module_parameters}
    return {id(value) for name, value in thing.named_parameters() if name not in ignored} - known


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


_EMPTY = _digest(b"")


def _line(key: tuple[str, str], outlines: list, values: list, tolerance: float) -> str:
    """What differs in one thing, by ranks; "" if it is within the tolerance."""
    kind, name = key
    head = f"{kind} of {name}" if kind == RANDOM else f'{kind} "{name}"'
    note = next((outline[2] for outline in outlines if outline), "")
    absent = [rank for rank, outline in enumerate(outlines) if outline is None]
    if absent:
        return f"{head} is missing on {name_ranks(absent)}{note}"
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
    apart = f"{head} differs: {' against '.join(alike)}, rank {rank} from rank 0 by up to {largest:.3g}{note}"
    return "" if within else apart


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
