"""Work is counted: FLOPs by formula, where torch's own registry has none too, and which operators are left without."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from distlab.ranks.counting import Counter, _formula_of

BATCH, TIME, WIDTH = 2, 5, 16
TOKENS = BATCH * TIME
LSTM = 2 * TOKENS * 2 * 4 * WIDTH * WIDTH
ATTENTION = 2 * TOKENS * 4 * WIDTH**2 + 4 * TOKENS * TIME * WIDTH

# Products of matrices on CPU that still have no formula, and count as bytes.
WITHOUT = {
    "_cdist_backward",
    "_cdist_forward",
    "_compute_linear_combination",
    "_foreach_mm",
    "_grouped_mm",
    "_scaled_addmm",
    "_scaled_grouped_mm",
    "_trilinear",
    "conv_tbc",
    "linear_backward",
    "matmul_backward",
    "slow_conv3d_forward",
    "slow_conv_dilated2d",
    "slow_conv_dilated3d",
    "slow_conv_transpose2d",
    "slow_conv_transpose3d",
    "_slow_conv2d_backward",
}
PRODUCTS = re.compile("mm$|mv$|addr|dot|matmul|linear|conv|attention|rnn|lstm|gru|encoder")
NOT_HERE = re.compile(
    "cudnn|miopen|mps|mkldnn_(conv|linear|reorder)|nnpack|triton|sparse|cslt|hspmm|int|quant|mixed_dtypes|thnn"
    "|depthwise|flash|overrideable|upsample|convert"
)


def flops(fn) -> float:
    with Counter() as counter:
        fn()
    return counter.flops


@pytest.mark.parametrize(
    ("layer", "training", "expected"),
    [
        (nn.LSTM(WIDTH, WIDTH, batch_first=True), True, LSTM),
        (nn.LSTM(WIDTH, WIDTH, batch_first=True), False, LSTM),
        (nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, batch_first=True), False, ATTENTION + 16 * TOKENS * WIDTH**2),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_fused_layers_have_a_formula(layer, training, expected):
    layer.train(training)
    x = torch.randn(BATCH, TIME, WIDTH)
    with torch.set_grad_enabled(training):
        assert flops(lambda: layer(x)) == expected


def test_fused_attention_has_a_formula():
    layer, x = nn.MultiheadAttention(WIDTH, 2, batch_first=True).eval(), torch.randn(BATCH, TIME, WIDTH)
    with torch.no_grad():
        assert flops(lambda: layer(x, x, x, need_weights=False)) == ATTENTION


def test_an_lstms_backward_costs_twice_its_forward():
    x = torch.randn(BATCH, TIME, WIDTH, requires_grad=True)
    assert flops(lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True)(x)[0].sum().backward()) == 3 * LSTM


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda: torch.vdot(torch.ones(7), torch.ones(7)), 14),
        (lambda: torch.addr(torch.ones(3, 5), torch.ones(3), torch.ones(5)), 30),
        (lambda: torch.addbmm(torch.ones(3, 5), torch.ones(2, 3, 4), torch.ones(2, 4, 5)), 2 * 2 * 3 * 4 * 5),
        (lambda: torch.ones(3, 4) @ torch.ones(4), 24),
    ],
)
def test_small_products_have_a_formula(fn, expected):
    assert flops(fn) == expected


def test_products_without_a_formula_are_known():
    found = set()
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        packet = getattr(torch.ops.aten, base, None) if namespace == "aten" else None
        operator = getattr(packet, overload or "default", None)
        if operator and PRODUCTS.search(base) and not NOT_HERE.search(base) and not base.endswith("_"):
            if "out" not in overload and _formula_of(operator) is True and not operator._can_decompose():
                found.add(base)
    assert found <= WITHOUT
