"""What a rank holds in memory at one moment, by kind: parameters, gradients, optimizer states, and everything else.

Found by looking, not by counting: the tensors that Python can reach, and those that the autograd graph keeps for the
backward pass. Two tensors that share a storage count once, under the first kind in this order.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator

import torch

from distlab.events import Memory


def held(time: float) -> Memory:
    """Looks through this process's memory; ``time`` is written into the event. Takes a few milliseconds."""
    objects = gc.get_objects()
    tensors = [obj for obj in objects if issubclass(type(obj), torch.Tensor)]
    optimizers = [obj for obj in objects if issubclass(type(obj), torch.optim.Optimizer)]
    seen: set[int] = set()
    leaves = [tensor for tensor in tensors if tensor.is_leaf]
    return Memory(
        parameters=_bytes((t for t in tensors if issubclass(type(t), torch.nn.Parameter)), seen),
        gradients=_bytes((t.grad for t in leaves if t.grad is not None), seen),
        optimizer=_bytes((state for optimizer in optimizers for state in _states(optimizer)), seen),
        other=_bytes(tensors, seen) + _bytes(_saved(tensors), seen),
        time=time,
    )


def _bytes(tensors: Iterable[torch.Tensor], seen: set[int]) -> int:
    """Bytes of the storages that have not been seen."""
    total = 0
    for tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor)
        if local.layout is not torch.strided or local.device.type == "meta":
            continue
        storage = local.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            total += storage.nbytes()
    return total


def _states(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def _saved(tensors: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The tensors that graphs keep for the backward pass."""
    nodes = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    met = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in met:
            continue
        met.add(node)
        nodes += [following for following, _ in node.next_functions]
        for name in dir(node):
            if name.startswith("_raw_saved_"):
                yield from _tensors_in(_read(node, name))


def _read(node, name: str):
    """What a node keeps, as it keeps it: no hook is run that would compute it again."""
    try:
        kept = getattr(node, name)
        return [each.data for each in kept] if isinstance(kept, list | tuple) else kept.data
    except RuntimeError:  # the backward pass has let it go
        return None


def _tensors_in(value) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors_in(item)
