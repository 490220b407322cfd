"""Counts compute instead of timing it: FLOPs of operators that have a formula, bytes that each operator touches.

Views cost nothing. What runs in a thread that the learner started is not seen and counts as nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from distlab.ranks import torch_inside
from distlab.ranks.watching.formulas import formula_of
from distlab.ranks.watching.uncompiled import uncompiled

_UNCOUNTED_NAMESPACES = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "profiler", "prim"}
_PLAIN = frozenset({int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout})
_LISTS = (list, tuple)
_FREE = ("empty", "new_empty", "detach", "alias", "lift_fresh", "_local_scalar_dense", "set_", "resize_")


def _bytes_of(values) -> int:
    """Bytes of the tensors among values. Every operator comes here: what is common goes first."""
    total = 0
    for value in values:
        kind = type(value)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            total += _size(value)
        elif kind in _PLAIN:
            continue
        elif isinstance(value, _LISTS):
            total += _bytes_of(value)
        elif isinstance(value, torch.Tensor):
            total += _size(value)
    return total


def _size(tensor: torch.Tensor) -> int:
    try:
        return tensor.nbytes
    except RuntimeError:  # a sparse one: as if it were not
        return tensor.numel() * tensor.element_size()


class OperatorCounter(TorchDispatchMode):
    """Adds up, until it is asked, what the operators of this thread do. Costs up to 5 µs an operator."""

    supports_higher_order_operators = True

    def __init__(self):
        super().__init__()
        torch_inside.import_dynamo()
        self.flops = self.bytes = 0.0
        self.operators = 0
        self.products: dict[tuple[float, int], int] = {}  # by FLOPs and bytes, how many
        self.before_operator: Callable | None = None  # called with (operator, args, kwargs) of all that is counted
        self._alone, self._among_others = _Hiding(self, torch_inside.PYTHON_KEYS), _Hiding(self, ())
        self.hidings = 0  # how many of them are open, one in the other
        # How to call an operator, how to count it, and the operator, by its id: its own hash is slow.
        self._known: dict[int, tuple[Callable, Callable | bool, object]] = {}

    def take(self) -> tuple[float, float, int, tuple[tuple[float, float, int], ...]]:
        """FLOPs, bytes, operators and products since the last call, as Compute has them."""
        products = tuple((*size, count) for size, count in self.products.items())
        taken = self.flops, self.bytes, self.operators, products
        self.flops, self.bytes, self.operators = 0.0, 0.0, 0
        self.products.clear()
        return taken

    def hidden(self) -> AbstractContextManager:
        """A context in which this counter counts nothing; what else watches operators sees them as if uncounted.

        For what a backend does inside a message. Costs less than 1 µs. In a thread that the learner started it does
        nothing: nobody counts there.
        """
        num_modes = torch_inside.num_dispatch_modes()
        if not num_modes or torch_inside.dispatch_mode_at(0) is not self:  # a rank begins with it: others are above
            return _NOTHING
        return self._alone if num_modes == 1 else self._among_others

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Yes: otherwise torch.compile would compile nothing, or raise, where it does not if nobody counts."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would do it by a wrapper, at 1 µs a call; ``uncompiled`` costs nothing."""
        return False

    @uncompiled
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        for kind in types:
            if kind is not torch.Tensor and kind is not torch.nn.Parameter:
                return self._with_subclass(func, kind, args, kwargs or {})
        if self.hidings or not types and torch_inside.makes_fake_tensors():
            return func(*args, **kwargs) if kwargs else func(*args)
        known = self._known.get(id(func))
        call, formula, _ = known if known else self._learn(func)
        if self.before_operator is not None and formula is not False:
            self.before_operator(func, args, kwargs or {})
        result = call(*args, **kwargs) if kwargs else call(*args)
        if formula is False:
            return result
        self.operators += 1
        if formula is True:
            self.bytes += _bytes_of((*args, result))
        else:
            flops = formula(*args, **kwargs, out_val=result) if kwargs else formula(*args, out_val=result)
            self.flops += flops
            size = flops, _bytes_of((*args, result))
            self.products[size] = self.products.get(size, 0) + 1
        return result

    @staticmethod
    def _with_subclass(func, kind: type, args: tuple, kwargs: dict):
        """DTensor and its like call operators on their local tensors, which are counted; fake tensors do no work.

        Where DDP has a part of itself compiled, torch leaves this mode on, and functional tensors come by: the next
        mode takes them, but only from an operator that was called again.
        """
        if issubclass(kind, torch_inside.NO_WORK):
            return func(*args, **kwargs)
        return NotImplemented

    def _learn(self, func) -> tuple[Callable, Callable | bool, object]:
        call, formula = (
            getattr(func, "_op", func),
            _formula_of(func),
        )  # _op: what func would call
        if formula is True and _is_composite(func.name()):
            call, formula = partial(self._decomposed, func), False
        self._known[id(func)] = call, formula, func
        return self._known[id(func)]

    def _decomposed(self, func, *args, **kwargs):
        """Inference mode leaves operators whole that others take apart: their parts are what is counted."""
        with self:
            return torch_inside.run_composite(func, *args, **kwargs)


class _Hiding:
    """A context in which a counter is blind. Where no other mode is there to see operators, they pass by Python's
    dispatch ``keys`` altogether, which is faster; a tensor of a subclass brings the keys along itself.
    """

    def __init__(self, counter: OperatorCounter, keys: tuple):
        self._counter, self._keys = counter, keys

    def __enter__(self):
        self._counter.hidings += 1
        for key in self._keys:
            torch_inside.include_key(key, False)

    def __exit__(self, *error):
        self._counter.hidings -= 1
        for key in self._keys:
            torch_inside.include_key(key, True)


_NOTHING = nullcontext()


def _is_composite(name: str) -> bool:
    """Whether an operator is but a program of others on every device, so that only these can be counted.

    Some have such a program and a kernel of their own besides (SiLU's backward): the kernel computes other bits.
    """
    has_kernel = partial(torch_inside.has_kernel, name)
    return has_kernel(torch_inside.COMPOSITE_KEY) and not has_kernel("CPU") and not has_kernel("CUDA")


def _formula_of(func) -> Callable | bool:
    """How an operator is counted: a formula for FLOPs, True for bytes, False for not at all."""
    if not isinstance(func, torch_inside.Operator) or func.is_view or func.namespace in _UNCOUNTED_NAMESPACES:
        return False
    name = torch_inside.name_of_operator(func)
    if name.partition("::")[2].startswith(_FREE):
        return False
    return formula_of(func) or True
