"""Counts compute instead of timing it: FLOPs of operators that have a formula, bytes touched by the others.

Views cost nothing. What runs in a thread that the learner started is not seen and counts as nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import torch
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

_UNCOUNTED_NAMESPACES = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "profiler", "prim"}
_PLAIN = frozenset({int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout})
_LISTS = (list, tuple)
_FREE = ("empty", "new_empty", "detach", "alias", "lift_fresh", "_local_scalar_dense", "set_", "resize_")


def _product(a, b, *rest, **named) -> int:
    """(… × m × k)(k × n): 2·m·k·n for every pair of matrices; torch's own formula, which looks at every argument."""
    return 2 * a.numel() * b.shape[-1]


def _biased_product(bias, a, b, *rest, **named) -> int:
    return 2 * a.numel() * b.shape[-1]


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


def _outer_product(matrix, a, b, *rest, **named) -> int:
    return 2 * a.numel() * b.numel()


def _sum_of_products(matrix, a, b, *rest, **named) -> int:
    return _product(a, b)


def _recurrent_layer(x, of_input, of_state, *rest, **named) -> int:
    """At each place of x of shape (time, batch, width), a product with the weights of the input and of the state."""
    return 2 * prod(x.shape[:-1]) * (of_input.numel() + of_state.numel())


def _recurrent_layer_backward(x, of_input, of_state, *rest, **named) -> int:
    return 2 * _recurrent_layer(x, of_input, of_state)


def _fused_attention(query, key, value, width, num_heads, qkv, qkv_bias, projection, *rest, **named) -> int:
    """The four projections, and two products between the s places of a sequence: 8·b·s·w² + 4·b·s²·w."""
    return 2 * prod(query.shape[:-1]) * (qkv.numel() + projection.numel() + 2 * key.shape[-2] * width)


def _fused_encoder_layer(x, width, num_heads, *weights, **named) -> int:
    """Attention, and the two layers after it. The weights: QKV's and the projection's with their biases, use_gelu,
    norm_first, eps, two pairs of layer norm, and the two layers' with their biases."""
    up, down = weights[11], weights[13]
    attention = _fused_attention(x, x, x, width, num_heads, *weights[:3])
    return attention + 2 * prod(x.shape[:-1]) * (up.numel() + down.numel())


_OURS = {
    "aten::mm": _product,
    "aten::bmm": _product,
    "aten::addmm": _biased_product,
    "aten::baddbmm": _biased_product,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "aten::mv": _matrix_vector,
    "aten::addmv": _add_matrix_vector,
    "aten::dot": lambda a, b, **named: 2 * a.numel(),
    "aten::vdot": lambda a, b, **named: 2 * a.numel(),
    "aten::addr": _outer_product,
    "aten::addbmm": _sum_of_products,
    "aten::mkldnn_rnn_layer": _recurrent_layer,
    "aten::mkldnn_rnn_layer_backward": _recurrent_layer_backward,
    "aten::_native_multi_head_attention": _fused_attention,
    "aten::_transformer_encoder_layer_fwd": _fused_encoder_layer,
}


def _by_shapes(formula: Callable) -> Callable:
    """Calls a formula of torch's with the shapes of its operator's arguments, as torch does by a slower way."""
    of_shapes = getattr(formula, "__wrapped__", None)
    if of_shapes is None:  # it wants the tensors
        return formula

    def count(*args, out_val, **named) -> int:
        named = {name: _shape(value) for name, value in named.items()}
        return of_shapes(*[_shape(value) for value in args], out_shape=_shape(out_val), **named)

    return count


def _shape(value):
    return value.shape if isinstance(value, torch.Tensor) else value


def _bytes_of(values) -> int:
    """Bytes of the tensors among values. Every operator without a formula comes here: what is common goes first."""
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


class Counter(TorchDispatchMode):
    """Adds up, until it is asked, what the operators of this thread do. Costs up to 5 µs an operator."""

    supports_higher_order_operators = True

    def __init__(self):
        super().__init__()
        import torch._dynamo  # noqa: F401 - optimizers do at first: once, where ranks are warmed up, takes a second less

        self.flops = self.bytes = 0.0
        self.operators = 0
        # How to call an operator, how to count it, and the operator, by its id: its own hash is slow.
        self._known: dict[int, tuple[Callable, Callable | bool, object]] = {}

    def take(self) -> tuple[float, float, int]:
        """FLOPs, bytes and operators since the last call."""
        taken = self.flops, self.bytes, self.operators
        self.flops, self.bytes, self.operators = 0.0, 0.0, 0
        return taken

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Yes: otherwise torch.compile would compile nothing, or raise, where it does not if nobody counts."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would do it by a wrapper, at 1 µs a call; set_code_exec_strategy, below, costs nothing."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        for kind in types:
            if kind is not torch.Tensor and kind is not torch.nn.Parameter:
                return self._with_subclass(func, kind, args, kwargs or {})
        known = self._known.get(id(func))
        call, formula, _ = known if known else self._learn(func)
        result = call(*args, **kwargs) if kwargs else call(*args)
        if formula is False:
            return result
        self.operators += 1
        if formula is True:
            self.bytes += _bytes_of((*args, result))
        else:
            self.flops += formula(*args, **kwargs, out_val=result) if kwargs else formula(*args, out_val=result)
        return result

    @staticmethod
    def _with_subclass(func, kind: type, args: tuple, kwargs: dict):
        """DTensor and its like call operators on their local tensors, which are counted; fake tensors do no work."""
        if issubclass(kind, torch._subclasses.FakeTensor):
            return func(*args, **kwargs)
        return NotImplemented

    def _learn(self, func) -> tuple[Callable, Callable | bool, object]:
        call, formula = getattr(func, "_op", func), _formula_of(func)
        if formula is True and func._can_decompose():
            call, formula = partial(self._decomposed, func), False
        self._known[id(func)] = call, formula, func
        return self._known[id(func)]

    def _decomposed(self, func, *args, **kwargs):
        """Inference mode leaves operators whole that others take apart: their parts are what is counted."""
        with self:
            return func.decompose(*args, **kwargs)


# torch.compile shall not look into what counts, nor into what that calls.
_SKIP = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
set_code_exec_strategy(Counter.__torch_dispatch__.__code__, _SKIP)


def _formula_of(func) -> Callable | bool:
    """How an operator is counted: a formula for FLOPs, True for bytes, False for not at all."""
    if not isinstance(func, torch._ops.OpOverload) or func.is_view or func.namespace in _UNCOUNTED_NAMESPACES:
        return False
    name = func._schema.name
    if name.partition("::")[2].startswith(_FREE):
        return False
    torchs = flop_registry.get(func._overloadpacket)
    return _OURS.get(name) or (torchs and _by_shapes(torchs)) or True
