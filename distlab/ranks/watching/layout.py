"""How the tensors of a message lie in memory, and where a backend would misread them.

gloo and NCCL take some tensors as they lie: they know where the first element is and how many there are, not the
strides. Others they copy into a row first. Tried on gloo, every operation by every layout (torch 2.13).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

_AS_THEY_LIE = frozenset({"allreduce", "broadcast", "reduce", "scatter"})  # right if dense, and alike on all ranks
_WRITTEN_IN_A_ROW = frozenset({"reduce_scatter", "alltoall_base", "all_to_all_single"})
_IN_PLACE = frozenset({"allreduce", "allreduce_coalesced", "broadcast", "reduce"})


class Tensors(NamedTuple):
    """The tensors that a message reads, and those that it writes; in place it does both to one."""

    read: list[torch.Tensor]
    written: list[torch.Tensor]


def tensors_of(method: str, args: Sequence, kwargs: dict, is_root: bool) -> Tensors:
    """The tensors among the arguments of a process group's method, by what the message does to them on this rank."""
    first, second = (list(_flat(given)) for given in ([*args, *kwargs.values()] + [(), ()])[:2])
    if method == "send" or (method == "broadcast" and is_root):
        return Tensors(first, [])
    if method in _IN_PLACE:
        return Tensors(first, first)
    return Tensors([], first) if method.startswith("recv") else Tensors(second, first)


def _flat(given) -> Iterator[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, list | tuple):
        for item in given:
            yield from _flat(item)


def strides_of(method: str, kind: str, tensors: Tensors) -> tuple[int, ...]:
    """The strides of what the backend takes as it lies, axes of one element left out; () if it lies in a row.

    ``kind`` is the operation's name in messages. Raises ValueError where the backend would read or write other
    elements than the tensors', or where two outputs are one memory.
    """
    _refuse_one_memory(kind, tensors.written)
    if method in _WRITTEN_IN_A_ROW:
        for tensor in tensors.written:
            if not tensor.is_contiguous():
                raise _misread(kind, tensor, "let it write into a new tensor y, and then x.copy_(y)")
    if method not in _AS_THEY_LIE:
        return ()
    found = {_strides(kind, tensor) for tensor in (*tensors.written, *tensors.read)}
    if len(found) > 1:
        raise ValueError(
            f"{kind} got tensors of which some lie in memory row by row and others do not (strides "
            f"{' and '.join(str(list(strides)) for strides in sorted(found) if strides)}): use x.contiguous() for each"
        )
    return found.pop() if found else ()


def _strides(kind: str, tensor: torch.Tensor) -> tuple[int, ...]:
    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return ()
    axes = [(stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size > 1]
    following = 1
    for stride, size in sorted(axes):
        if stride != following:
            raise _misread(kind, tensor, "send y = x.contiguous(), and where a result comes back, x.copy_(y)")
        following *= size
    return tuple(stride for stride, _ in axes)


def _misread(kind: str, tensor: torch.Tensor, remedy: str) -> ValueError:
    return ValueError(
        f"{kind} got a tensor x whose elements do not lie in a row (shape {list(tensor.shape)}, strides "
        f"{list(tensor.stride())}): the backend would take other elements than these, and say nothing. Instead {remedy}"
    )


def _refuse_one_memory(kind: str, written: Sequence[torch.Tensor]) -> None:
    if len(written) < 2:
        return
    spans = sorted((tensor.data_ptr(), _end(tensor)) for tensor in written if tensor.numel())
    for (begin, end), (following, _) in zip(spans, spans[1:]):
        if following == begin or following < end:
            raise ValueError(
                f"{kind} got several outputs that share memory, so that one would overwrite another: make each by "
                "itself, as in [torch.empty_like(x) for _ in range(world_size)], not [torch.empty_like(x)] * world_size"
            )


def _end(tensor: torch.Tensor) -> int:
    """Where a tensor ends that lies in a row; one that does not may interleave with others, and counts as its start."""
    return tensor.data_ptr() + (tensor.nbytes if tensor.is_contiguous() else 0)
