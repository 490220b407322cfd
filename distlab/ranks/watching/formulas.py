"""FLOPs of operators: torch's own formulas, and ours where torch has none (attention on CPU is one)."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch.utils.flop_counter import flop_registry

from distlab.ranks.torch_inside import Operator, name_of_operator


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


_OURS: dict[str, Callable] = {
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


def formula_of(operator: Operator) -> Callable | None:
    """What computes an operator's FLOPs from its arguments, and its result as ``out_val``; None if nothing does."""
    torchs = flop_registry.get(operator._overloadpacket)
    return _OURS.get(name_of_operator(operator)) or (_by_shapes(torchs) if torchs else None)


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
