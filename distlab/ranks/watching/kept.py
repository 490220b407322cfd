"""What autograd keeps for the backward pass, and what torch.utils.checkpoint keeps to compute it again.

The state of the random numbers that a checkpoint keeps is left out: it is no activation, and larger than many of ours.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Iterable, Iterator

import torch
from torch.utils import checkpoint

from distlab.ranks.torch_inside import SavedTensor
from distlab.ranks.watching.storages import PLAIN, is_tensor

_CONTAINERS = (list, tuple, dict, set, frozenset)
_IS_FREED = "_distlab_is_freed"  # marks a ctx
_RANDOM_STATES = {"fwd_cpu_state", "fwd_device_states"}


class _Nothing:
    """Stands for a class that this release of torch does not have."""


# torch's own names; where a release has others, what a checkpoint keeps is among what is kept otherwise.
FRAME = getattr(checkpoint, "_CheckpointFrame", _Nothing)  # of a checkpoint that isn't reentrant; no graph leads to it
CACHED = getattr(checkpoint, "_VersionWrapper", _Nothing)  # a result that a selective checkpoint won't compute again
_OWN = (type, types.ModuleType, types.CodeType, types.FrameType, torch.nn.Module, torch.optim.Optimizer)
_MOST_OBJECTS = 1_000  # that are looked at in what one hook made


def graph(nodes: Iterable) -> set:
    """All nodes of the autograd graphs that lead to the inputs of some nodes, these among them."""
    left = list(nodes)
    met = set(left)
    while left:
        for node, _ in left.pop().next_functions:
            if node is not None and node not in met:
                met.add(node)
                left.append(node)
    return met


def kept_by(nodes: Iterable) -> list[torch.Tensor]:
    """The tensors that nodes keep for the backward pass, as they keep them: no hook is run to compute one again."""
    found: list[torch.Tensor] = []
    for node in nodes:
        names, has_attributes = _ways_to_keep[type(node)]
        if has_attributes:
            found += _kept_by_ctx(node, names)
            continue
        for name in names:
            try:
                data = getattr(node, name)
                data = data.data if type(data) is SavedTensor else data  # type: ignore[attr-defined]  # torch's stub lacks it
            except RuntimeError:  # the backward pass has let it go
                continue
            if type(data) in PLAIN:  # nearly always
                found.append(data)
            elif data is not None:
                found += tensors_in(getattr(node, name))
    return found


def _kept_by_ctx(node, names: list[str]) -> Iterator[torch.Tensor]:
    """What the ``ctx`` of a learner's Function keeps: saved, or as attributes."""
    attributes = node.__dict__
    saved = []
    if _IS_FREED not in attributes:
        try:
            saved = [getattr(node, name) for name in names]
        except RuntimeError:  # the backward pass has let it go, for ever: to be told so again would take 10 µs
            attributes[_IS_FREED] = True
    yield from tensors_in(saved)
    for name, value in attributes.items():
        if name not in _RANDOM_STATES:
            yield from tensors_in(value)


class _WaysToKeep(dict):
    """Under which names nodes of a class keep what they saved, and whether they have attributes besides."""

    def __missing__(self, kind: type) -> tuple[list[str], bool]:
        names = [name for name in dir(kind) if name.startswith("_raw_saved_")]
        self[kind] = names, any("__dict__" in vars(base) for base in kind.__mro__)
        return self[kind]


_ways_to_keep = _WaysToKeep()


def _unpacked(kept):
    """A tensor that was saved, or all tensors in what a hook has packed it into."""
    try:
        data = kept.data
    except RuntimeError:
        return []
    return data if is_tensor(data) else list(_reachable(data))


def tensors_in(value) -> Iterator[torch.Tensor]:
    """The tensors in a value and the containers in it."""
    if is_tensor(value):
        yield value
    elif isinstance(value, SavedTensor):
        yield from tensors_in(_unpacked(value))
    elif isinstance(value, _CONTAINERS):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


def _reachable(packed) -> Iterator[torch.Tensor]:
    """The tensors in what a hook made, whatever that is; not in modules and the like, which hold their own."""
    met: set[int] = set()
    values = [packed]
    while values and len(met) < _MOST_OBJECTS:
        value = values.pop()
        if is_tensor(value):
            yield value
        elif id(value) not in met and not isinstance(value, _OWN):
            met.add(id(value))
            is_function = isinstance(value, types.FunctionType)  # which refers to all its module's names
            values += (value.__closure__ or ()) if is_function else gc.get_referents(value)


def checkpointed(frames: list, cached: list) -> Iterator[torch.Tensor]:
    """What checkpoints keep: their arguments, what was computed again, and what need not be."""
    for frame in frames:
        yield from _in_frame(frame)
    for each in cached:
        yield from tensors_in(each.val)


def _in_frame(frame) -> Iterator[torch.Tensor]:
    fn = frame.recompute_fn
    kept = dict(zip(fn.__code__.co_freevars, fn.__closure__ or ()))
    yield from tensors_in(getattr(frame, "saved_args", ()))
    if saver := getattr(frame, "input_saver", None):  # a node of its own, before torch 2.13
        yield from kept_by([saver])
    if "kwargs" in kept:
        yield from tensors_in(kept["kwargs"].cell_contents)
    for by_handle in frame.recomputed.values():
        yield from tensors_in(list(by_handle.values()))
