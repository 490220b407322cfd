"""What a rank holds in memory at one moment, by kind.

Found by looking, not by counting: the tensors that Python can reach, and those that the autograd graph keeps for the
backward pass. A rank looks where spans begin and end, and inside a span also where a message is issued and done (a look
takes some 0.2 ms: a step of a training loop outside all spans pays nothing). What lives inside one operator, or inside
a backend's message, is not seen.

Each storage counts once, whatever shares it, under the first kind that fits:

- parameters: of an ``nn.Parameter``, or of a tensor that an optimizer moves and that requires a gradient;
- gradients: a leaf's ``.grad``;
- optimizer: an optimizer's states, and what it moves that requires no gradient: its own copy of the weights;
- activations: kept by autograd for the backward pass;
- buffers: went into or came out of a message;
- other: every other tensor.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

from distlab.events import Memory

BUDGET = 5_000_000  # objects and graph nodes looked at for messages, a second or two; then a rank looks at spans only
_SENT = "_distlab_was_in_a_message"  # marks a storage: it lives as long as the storage, and holds nothing
_NODE = 30  # objects in whose time one node of a graph is looked at
_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.Python) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.PythonTLSSnapshot
)


def note_held(log) -> None:
    """Writes what this process holds now, where compute is recorded too."""
    if log.counter is not None:
        _look(log)


def note_issued(log, args: Iterable, kwargs: dict) -> None:
    """The same where a message is issued with these arguments, whose tensors are communication buffers from now on."""
    if log.counter is not None:
        given = [*args, *kwargs.values()]
        for tensor in _tensors_in(given):
            if (storage := _storage(tensor)) is not None:
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
    with torch._C._ExcludeDispatchKeyGuard(_KEYS):
        memory, effort = held(log.now())
        log.write(memory)
    return effort


def held(time: float) -> tuple[Memory, int]:
    """Looks through this process's memory; returns what it holds and at how many objects it had to look.

    ``time`` is written into the event. What was there before the ranks were forked (``gc.freeze``) is not seen.
    """
    objects = gc.get_objects()
    kinds = set(map(type, objects))
    tensors = _of(objects, kinds, torch.Tensor)
    graph = _Graph(tensors)
    moved, states = _optimizers(_of(objects, kinds, torch.optim.Optimizer))
    parameters = [tensor for tensor in tensors if _is_parameter(tensor)]
    counted = _Counted()
    memory = Memory(
        parameters=counted.bytes([*parameters, *(tensor for tensor in moved if tensor.requires_grad)]),
        gradients=counted.bytes(t.grad for t in tensors if t.is_leaf and t.grad is not None),
        optimizer=counted.bytes([*states, *moved]),
        activations=counted.bytes(graph.saved()),
        buffers=counted.bytes(tensors, only_sent=True),
        other=counted.bytes(tensors),
        allocator=torch.cuda.memory_allocated() if torch.cuda.is_initialized() else 0,
        time=time,
    )
    return memory, len(objects) + _NODE * len(graph.met)


def _of(objects: list, kinds: set[type], base: type) -> list:
    wanted = {kind for kind in kinds if issubclass(kind, base)}
    return [obj for obj in objects if type(obj) in wanted]


def _is_parameter(tensor: torch.Tensor) -> bool:
    """Also a DTensor may be one."""
    kind = type(tensor)
    return kind is not torch.Tensor and (issubclass(kind, torch.nn.Parameter) or getattr(tensor, "_is_param", False))


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Where its bytes are, those of a DTensor on this rank; None where it has none of its own to be asked for."""
    if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        tensor = getattr(tensor, "_local_tensor", tensor)
        if issubclass(type(tensor), torch._subclasses.FakeTensor):
            return None
    return tensor.untyped_storage() if tensor.layout is torch.strided and not tensor.is_meta else None


class _Counted:
    """Adds up storages, each once."""

    def __init__(self):
        self._seen: set[int] = set()

    def bytes(self, tensors: Iterable[torch.Tensor], only_sent: bool = False) -> int:
        """Bytes of the storages that have not been counted yet; on request only of those that were in a message."""
        total = 0
        for tensor in tensors:
            storage = _storage(tensor)
            if storage is not None and storage._cdata not in self._seen:
                if not only_sent or hasattr(storage, _SENT):
                    self._seen.add(storage._cdata)
                    total += storage.nbytes()
        return total


class _OfOptimizers(NamedTuple):
    moved: list[torch.Tensor]
    states: list[torch.Tensor]


def _optimizers(optimizers: list[torch.optim.Optimizer]) -> _OfOptimizers:
    """What optimizers move, and their states; a state's plain number, as Adam's count of steps, is left out."""
    moved = [tensor for optimizer in optimizers for group in optimizer.param_groups for tensor in group["params"]]
    states = [value for optimizer in optimizers for state in optimizer.state.values() for value in state.values()]
    return _OfOptimizers(moved, [value for value in states if isinstance(value, torch.Tensor) and value.dim()])


class _Graph:
    """The autograd graphs that hang on some tensors."""

    def __init__(self, tensors: list[torch.Tensor]):
        nodes = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
        self.met = set()
        while nodes:
            node = nodes.pop()
            if node is not None and node not in self.met:
                self.met.add(node)
                nodes += [following for following, _ in node.next_functions]

    def saved(self) -> Iterator[torch.Tensor]:
        """The tensors that they keep for the backward pass."""
        for node in self.met:
            for name in _names_of_saved(type(node)):
                yield from _tensors_in(_read(node, name))


@functools.cache
def _names_of_saved(kind: type) -> list[str]:
    return [name for name in dir(kind) if name.startswith("_raw_saved_")]


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
