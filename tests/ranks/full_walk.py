"""What a rank holds, found by a walk over all of Python's heap: slow and plain, to compare a quicker way with."""

import gc
import types

import torch
from torch.utils import checkpoint

from distlab.events import Memory

CONTAINERS = (list, tuple, dict, set, frozenset)
RANDOM_STATES = {"fwd_cpu_state", "fwd_device_states"}
SAVED = torch._C._autograd.SavedTensor
OWN = (type, types.ModuleType, types.CodeType, types.FrameType, torch.nn.Module, torch.optim.Optimizer)


def held() -> Memory:
    """Walks; what gc.freeze has hidden is not seen."""
    objects = gc.get_objects()
    tensors = [obj for obj in objects if issubclass(type(obj), torch.Tensor)]
    optimizers = [obj for obj in objects if issubclass(type(obj), torch.optim.Optimizer)]
    moved = [tensor for each in optimizers for group in each.param_groups for tensor in group["params"]]
    states = [value for each in optimizers for state in each.state.values() for value in state.values()]
    graph = nodes_behind(tensors)
    seen = set()
    return Memory(
        parameters=count([t for t in tensors if is_parameter(t)] + [t for t in moved if t.requires_grad], seen),
        gradients=count([t.grad for t in tensors if t.is_leaf and t.grad is not None], seen),
        optimizer=count([s for s in states if isinstance(s, torch.Tensor) and s.dim()] + moved, seen),
        activations=count([t for node in graph for t in kept_by(node)] + list(checkpointed(objects)), seen),
        buffers=count(tensors, seen, only_sent=True),
        other=count(tensors, seen),
    )


def is_parameter(tensor):
    return issubclass(type(tensor), torch.nn.Parameter) or is_marked(tensor)


def is_marked(tensor):
    return type(tensor) is not torch.Tensor and getattr(tensor, "_is_param", False)


def count(tensors, seen, only_sent=False):
    total = 0
    for tensor in tensors:
        storage = storage_of(tensor)
        if storage is not None and storage._cdata not in seen:
            if not only_sent or hasattr(storage, "_distlab_was_in_a_message"):
                seen.add(storage._cdata)
                total += storage.nbytes()
    return total


def storage_of(tensor):
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    tensor = tensor if is_plain else getattr(tensor, "_local_tensor", tensor)
    if tensor.layout is not torch.strided or tensor.is_meta or isinstance(tensor, torch._subclasses.FakeTensor):
        return None
    storage = tensor.untyped_storage()
    try:
        storage.data_ptr()
    except RuntimeError:
        return storage if is_plain else None
    return storage


def nodes_behind(tensors):
    nodes, met = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in met:
            met.add(node)
            nodes += [following for following, _ in node.next_functions]
    return met


def kept_by(node):
    for name in [name for name in dir(type(node)) if name.startswith("_raw_saved_")]:
        try:
            yield from tensors_in(getattr(node, name))
        except RuntimeError:  # the backward pass has let it go
            pass
    for name, value in getattr(node, "__dict__", {}).items():
        if name not in RANDOM_STATES:
            yield from tensors_in(value)


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, SAVED):
        yield from unpacked(value)
    elif isinstance(value, CONTAINERS):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


def unpacked(saved):
    try:
        values, met = [saved.data], set()
    except RuntimeError:
        return
    while values and len(met) < 1000:
        value = values.pop()
        if isinstance(value, torch.Tensor):
            yield value
        elif id(value) not in met and not isinstance(value, OWN):
            met.add(id(value))
            is_function = isinstance(value, types.FunctionType)
            values += (value.__closure__ or ()) if is_function else gc.get_referents(value)


def checkpointed(objects):
    for obj in objects:
        if type(obj) is getattr(checkpoint, "_VersionWrapper", None):
            yield from tensors_in(obj.val)
        elif type(obj) is getattr(checkpoint, "_CheckpointFrame", None):
            fn = obj.recompute_fn
            kept = dict(zip(fn.__code__.co_freevars, fn.__closure__ or ()))
            yield from tensors_in(getattr(obj, "saved_args", ()))
            if saver := getattr(obj, "input_saver", None):
                yield from kept_by(saver)
            if "kwargs" in kept:
                yield from tensors_in(kept["kwargs"].cell_contents)
            for by_handle in obj.recomputed.values():
                yield from tensors_in(list(by_handle.values()))
