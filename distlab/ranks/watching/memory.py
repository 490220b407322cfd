"""What a rank holds in memory at one moment, by kind.

Found by looking, not by counting: the tensors that Python can reach, and those that the autograd graph keeps for the
backward pass. A rank looks where spans begin and end, and inside a span also where a message is issued and done. A look
takes 1 to 2 µs for each tensor and each node of the graph, 0.3 to 0.6 ms in a step of a small GPT, however much else is
on the heap; a step of a training loop outside all spans pays nothing. What lives inside one operator, or inside a
backend's message, is not seen.

Each storage counts once, whatever shares it, under the first kind that fits:

- parameters: of an ``nn.Parameter``, or of a tensor that an optimizer moves and that requires a gradient;
- gradients: a leaf's ``.grad``;
- optimizer: an optimizer's states, and what it moves that requires no gradient: its own copy of the weights;
- activations: kept by autograd for the backward pass, or by torch.utils.checkpoint to compute it again;
- buffers: went into or came out of a message;
- other: every other tensor.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor, nn

from distlab.events import Memory
from distlab.ranks.torch_inside import without_modes
from distlab.ranks.watching.heap import Heap
from distlab.ranks.watching.kept import CACHED, FRAME, checkpointed, graph, kept_by, tensors_in
from distlab.ranks.watching.storages import Storages, is_tensor, storage_of

BUDGET = 20_000_000  # objects looked at for messages, a second or two; then a rank looks at spans only
_SENT = "_distlab_was_in_a_message"  # marks a storage: it lives as long as the storage, and holds nothing
_ASKED = 25  # objects in whose time one tensor, or one node of a graph, is asked for what it holds
_NODE_OF, _GRADIENT_OF = attrgetter("grad_fn"), attrgetter("grad")


def follow_memory(log, modules: Iterable[str]) -> None:
    """From here on knows what this process makes, where compute is recorded too; what it holds already is left out.

    ``modules`` are imported first: what modules hold is not what a rank holds.
    """
    if log.counter is not None:
        for module in modules:
            importlib.import_module(module)
        log.heap = Heap(Tensor, torch.optim.Optimizer, FRAME, CACHED)


def note_held(log) -> None:
    """Writes what this process holds now, where compute is recorded too."""
    if log.counter is not None:
        _look(log)


def note_issued(log, args: Iterable, kwargs: dict) -> None:
    """The same where a message is issued with these arguments, whose tensors are communication buffers from now on."""
    if log.counter is not None:
        given = [*args, *kwargs.values()]
        for tensor in tensors_in(given):
            if (storage := storage_of(tensor)) is not None:
                setattr(storage, _SENT, True)
        log.is_blocked = any(getattr(each, "asyncOp", True) is False for each in given)
        _look_at_message(log)


def note_done(log) -> None:
    """The same where a message is done, unless it has blocked the rank since it was issued: then nothing is new."""
    if log.counter is not None:
        if not getattr(log, "is_blocked", False):
            _look_at_message(log)
        log.is_blocked = False


def _look_at_message(log) -> None:
    """Looks only inside a span, and as long as the ``BUDGET`` lasts; what is spent of it is kept with the log."""
    spent = getattr(log, "effort", 0)
    if not log.open_spans or spent > BUDGET:
        return
    log.effort = spent + _look(log)
    if log.effort > BUDGET:
        log.note("there are many messages: from here on memory is noted where spans begin and end only")


def _look(log) -> int:
    """Writes what is held, and returns at how many objects it looked."""
    collects = gc.isenabled()
    gc.disable()  # a look makes hundreds of objects, which are gone when it is over
    try:
        with without_modes(), torch.DisableTorchFunction():
            memory, effort = held(log.now(), log.heap)
    finally:
        if collects:
            gc.enable()
    log.write(memory)
    return effort


def held(time: float, heap: Heap) -> tuple[Memory, int]:
    """What this process holds of what ``heap`` knows, and at how many objects it had to look to find it.

    ``time`` is written into the event.
    """
    before = heap.num_seen
    tensors, optimizers, frames, cached = heap.living()
    all_nodes = list(map(_NODE_OF, tensors))
    nodes = graph(node for node in all_nodes if node is not None)
    moved, states = _optimizers(optimizers)
    storages = Storages(tensors, "other")  # after it the others, so that what comes first in the list above is put last
    storages.put_marked(_SENT, "buffers")
    storages.put([*kept_by(nodes), *checkpointed(frames, cached)], "activations")
    storages.put([*states, *moved], "optimizer")
    storages.put(_gradients(tensors, all_nodes), "gradients")
    storages.put([*_parameters(tensors), *(tensor for tensor in moved if tensor.requires_grad)], "parameters")
    allocator = torch.cuda.memory_allocated() if torch.cuda.is_initialized() else 0
    memory = Memory(**storages.bytes_by_kind(), allocator=allocator, time=time)
    return memory, heap.num_seen - before + _ASKED * (len(tensors) + len(nodes))


def _parameters(tensors: list[Tensor]) -> list[Tensor]:
    """Also a DTensor may be one."""
    others = [tensor for tensor in tensors if type(tensor) is not Tensor]
    return [each for each in others if issubclass(type(each), nn.Parameter) or getattr(each, "_is_param", False)]


def _gradients(tensors: list[Tensor], nodes: list) -> list[Tensor]:
    """Those of leaves, which are tensors without a node."""
    leaves = [tensor for tensor, node in zip(tensors, nodes) if node is None]
    return [gradient for gradient in map(_GRADIENT_OF, leaves) if gradient is not None]


class _OfOptimizers(NamedTuple):
    moved: list[Tensor]
    states: list[Tensor]


def _optimizers(optimizers: list[torch.optim.Optimizer]) -> _OfOptimizers:
    """What optimizers move, and their states; a state's plain number, as Adam's count of steps, is left out."""
    moved = [tensor for optimizer in optimizers for group in optimizer.param_groups for tensor in group["params"]]
    states = [value for optimizer in optimizers for state in optimizer.state.values() for value in state.values()]
    return _OfOptimizers(moved, [value for value in states if is_tensor(value) and value.dim()])
