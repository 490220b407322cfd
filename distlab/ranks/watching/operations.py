"""Reads from the arguments of a process group's methods what is sent, to whom and how much.

Each function gives the fields of a Message but its numbers and times; ``peer`` and ``root`` are still ranks in the
group. Method names differ between releases of torch: all known ones stand here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

import torch
from torch.distributed import ReduceOp

from distlab.events import ANY_SOURCE

_REDUCE_OPS = (ReduceOp, ReduceOp.RedOpType)


def _flat(tensors) -> list[torch.Tensor]:
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return [tensor for item in tensors for tensor in _flat(item)]


def _fields(kind: str, mine, size=None, times: int = 1, options: Iterable = (), **more) -> dict:
    """The fields of an operation into which a rank puts ``mine`` and whose size is that of ``size``, ``times`` over."""
    mine, size = _flat(mine), _flat(mine if size is None else size)
    elements = times * sum(tensor.numel() for tensor in size)
    width = mine[0].element_size() if mine else 1
    fields = {
        "kind": kind,
        "shape": tuple(mine[0].shape) if len(mine) == 1 else (sum(tensor.numel() for tensor in mine),),
        "dtype": _name_of_dtype(mine[0].dtype) if mine else "",
        "elements": elements,
        "bytes": elements * width,
    }
    return fields | _options(options) | more


def _options(options: Iterable) -> dict:
    """Root, reduce op and asynchrony, from an options object or from plain arguments."""
    fields = {}
    for option in options:
        if isinstance(option, _REDUCE_OPS):
            fields["reduce_op"] = _name(option)
        kind: type = type(option)
        for name, key in _known_names(kind):
            value = getattr(option, name)
            fields[key] = _name(value) if key == "reduce_op" else value
    return fields


@functools.cache
def _known_names(kind: type) -> list[tuple[str, str]]:
    names = {"rootRank": "root", "reduceOp": "reduce_op", "asyncOp": "is_async"}
    return [(name, key) for name, key in names.items() if hasattr(kind, name)]


def _name(reduce_op) -> str:
    return _name_of_kind(getattr(reduce_op, "op", reduce_op))


@functools.cache
def _name_of_kind(kind: ReduceOp.RedOpType) -> str:
    return kind.name.lower()


@functools.cache
def _name_of_dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _numels(tensors) -> tuple[int, ...]:
    return tuple(tensor.numel() for tensor in _flat(tensors))


def _at(place: int, size: int, elements: int) -> tuple[int, ...]:
    """All elements at one of the group's places."""
    return tuple(elements if other == place else 0 for other in range(size))


def _split(size: int, tensor: torch.Tensor, splits: Sequence[int]) -> tuple[int, ...]:
    """The elements for each member, of a tensor that is cut along its first axis; sizes may be tensors, too."""
    row = tensor.numel() // max(1, tensor.shape[0]) if tensor.dim() else 1
    return tuple(int(n) * row for n in splits) if len(splits) else (tensor.numel() // size,) * size


def _all_reduce(size: int, tensors, *options, **named) -> dict:
    return _fields("all_reduce", tensors, options=[*options, *named.values()])


def _broadcast(size: int, tensors, *options, root: int | None = None, **named) -> dict:
    plain = [option for option in options if isinstance(option, int)]
    more = {"root": root if root is not None else plain[0]} if root is not None or plain else {}
    return _fields("broadcast", tensors, options=[*options, *named.values()], **more)


def _reduce(size: int, tensors, *options, root: int | None = None, **named) -> dict:
    return _broadcast(size, tensors, *options, root=root, **named) | {"kind": "reduce"}


def _all_gather(size: int, outputs, inputs, *options, **named) -> dict:
    return _fields("all_gather", inputs, outputs, options=[*options, *named.values()])


def _gather(size: int, outputs, inputs, *options, **named) -> dict:
    fields = _fields("gather", inputs, times=size, options=[*options, *named.values()])
    return fields | {"parts": _at(fields["root"], size, _flat(inputs)[0].numel()), "expects": _numels(outputs)}


def _gather_single(size: int, output, input, *options, **named) -> dict:
    """Since torch 2.15: the root has one output for all, the others have none, or an empty one."""
    fields = _fields("gather", input, times=size, options=[*options, *named.values()])
    room = output.numel() if output is not None else 0
    return fields | {
        "parts": _at(fields["root"], size, input.numel()),
        "expects": (room // size,) * size if room else (),
    }


def _scatter(size: int, outputs, inputs, *options, **named) -> dict:
    fields = _fields("scatter", outputs, times=size, options=[*options, *named.values()])
    return fields | {"parts": _numels(inputs), "expects": _at(fields["root"], size, _flat(outputs)[0].numel())}


def _reduce_scatter(size: int, outputs, inputs, *options, **named) -> dict:
    return _fields("reduce_scatter", inputs, options=[*options, *named.values()])


def _all_to_all(size: int, outputs, inputs, *options, **named) -> dict:
    parts, expects = _numels(inputs), _numels(outputs)
    return _fields("all_to_all", inputs, options=[*options, *named.values()], parts=parts, expects=expects)


def _all_to_all_single(size: int, output, input, output_splits=(), input_splits=(), *options, **named) -> dict:
    parts, expects = _split(size, input, input_splits), _split(size, output, output_splits)
    return _fields("all_to_all", input, options=[*options, *named.values()], parts=parts, expects=expects)


def _barrier(size: int, *options, **named) -> dict:
    return _fields("barrier", (), options=[*options, *named.values()])


def _monitored_barrier(size: int, *options, **named) -> dict:
    return _fields("monitored_barrier", ())


def _send(size: int, tensors: Sequence, peer: int, tag: int = 0) -> dict:
    return _fields("send", tensors, peer=int(peer), tag=int(tag))


def _recv(size: int, tensors: Sequence, peer: int, tag: int = 0) -> dict:
    return _fields("recv", tensors, peer=int(peer), tag=int(tag))


def _recv_any(size: int, tensors: Sequence, tag: int = 0) -> dict:
    return _fields("recv", tensors, peer=ANY_SOURCE, tag=int(tag))


OPERATIONS: dict[str, Callable[..., dict]] = {
    "allreduce": _all_reduce,
    "allreduce_coalesced": _all_reduce,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "allgather": _all_gather,
    "allgather_coalesced": _all_gather,
    "_allgather_base": _all_gather,
    "all_gather_single": _all_gather,
    "allgather_into_tensor_coalesced": _all_gather,
    "all_gather_single_coalesced": _all_gather,
    "gather": _gather,
    "gather_into_tensor": _gather_single,
    "gather_single": _gather_single,
    "scatter": _scatter,
    "reduce_scatter": _reduce_scatter,
    "_reduce_scatter_base": _reduce_scatter,
    "reduce_scatter_single": _reduce_scatter,
    "reduce_scatter_tensor_coalesced": _reduce_scatter,
    "reduce_scatter_single_coalesced": _reduce_scatter,
    "alltoall": _all_to_all,
    "alltoall_base": _all_to_all_single,
    "all_to_all_single": _all_to_all_single,
    "barrier": _barrier,
    "monitored_barrier": _monitored_barrier,
    "send": _send,
    "recv": _recv,
    "recv_anysource": _recv_any,
}
