"""Counts compute instead of timing it: FLOPs of operators that have a formula, bytes touched by the others.

Views cost nothing. What runs in a thread that the learner started is not seen and counts as nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

_UNCOUNTED_NAMESPACES = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "profiler", "prim"}
_FREE = ("empty", "new_empty", "detach", "alias", "lift_fresh", "_local_scalar_dense", "set_", "resize_")


def _attention(query, key, value, *rest, **named) -> int:
    """Two products of (s × d) and (d × s) shapes for every head: 4·b·h·s_q·s_k·d."""
    *batch, num_queries, width = query.shape
    return 2 * prod(batch) * num_queries * key.shape[-2] * (width + value.shape[-1])


def _attention_backward(grad, query, key, value, *rest, **named) -> int:
    """Five products instead of two: the scores are computed again."""
    return _attention(query, key, value) * 5 // 2


def _matrix_vector(matrix, vector, *rest, **named) -> int:
    return 2 * matrix.numel()


def _add_matrix_vector(bias, matrix, vector, *rest, **named) -> int:
    return 2 * matrix.numel()


_OURS = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "aten::mv": _matrix_vector,
    "aten::addmv": _add_matrix_vector,
    "aten::dot": lambda a, b, **named: 2 * a.numel(),
}


def _bytes_of(*values) -> int:
    total = 0
    for value in values:
        if isinstance(value, torch.Tensor):
            total += value.numel() * value.element_size()
        elif isinstance(value, list | tuple):
            total += _bytes_of(*value)
    return total


class Counter(TorchDispatchMode):
    """Adds up, until it is asked, what the operators of this thread do."""

    def __init__(self):
        super().__init__()
        self.flops = self.bytes = 0.0
        self.operators = 0
        self._formulas: dict[object, Callable | bool] = {}

    def take(self) -> tuple[float, float, int]:
        """FLOPs, bytes and operators since the last call."""
        taken = self.flops, self.bytes, self.operators
        self.flops, self.bytes, self.operators = 0.0, 0.0, 0
        return taken

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        formula = self._formulas.get(func)
        if formula is None:
            formula = self._formulas[func] = _formula_of(func)
        for kind in types:
            if kind is not torch.Tensor and kind is not torch.nn.Parameter:
                return self._with_subclass(func, kind, args, kwargs or {})
        result = func(*args, **kwargs) if kwargs else func(*args)
        if formula is False:
            return result
        self.operators += 1
        if formula is True:
            self.bytes += _bytes_of(args, result)
        else:
            self.flops += formula(*args, **(kwargs or {}), out_val=result)
        return result

    @staticmethod
    def _with_subclass(func, kind: type, args: tuple, kwargs: dict):
        """DTensor and its like call operators on their local tensors, which are counted; fake tensors do no work."""
        if issubclass(kind, torch._subclasses.FakeTensor):
            return func(*args, **kwargs)
        return NotImplemented


def _formula_of(func) -> Callable | bool:
    """How an operator is counted: a formula for FLOPs, True for bytes, False for not at all."""
    if not isinstance(func, torch._ops.OpOverload) or func.is_view or func.namespace in _UNCOUNTED_NAMESPACES:
        return False
    name = func._schema.name
    if name.partition("::")[2].startswith(_FREE):
        return False
    return _OURS.get(name) or flop_registry.get(func._overloadpacket) or True
