"""Work is counted: FLOPs by formula, where torch's own registry has none too, and which operators are left without."""

from __future__ import annotations

import re
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from distlab.ranks.watching.counting import OperatorCounter, _formula_of

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
    with OperatorCounter() as counter:
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


def image() -> torch.Tensor:
    return torch.randn(3, 4, 8, 6, generator=torch.Generator().manual_seed(1))


def grid(*shape: int) -> torch.Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel()).view(shape)


def same_gru(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    return nn.GRU(6, 5)(x[0])[0]


# First those that have a program of other operators and a kernel of their own; then those that have only the program,
# or a Python one for torch's tracing.
LAYERS = {
    "SiLU": F.silu,
    "Mish": F.mish,
    "channel shuffle": lambda x: torch.native_channel_shuffle(x, 2),
    "batch norm": lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4), grid(4), grid(4), training=True),
    "batch norm, evaluated": lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4)),
    "nearest in 1D": lambda x: F.interpolate(x[0], scale_factor=1.7, mode="nearest"),
    "nearest in 2D": lambda x: F.interpolate(x, scale_factor=1.7, mode="nearest"),
    "nearest in 3D": lambda x: F.interpolate(x[None], scale_factor=1.7, mode="nearest"),
    "exact in 2D": lambda x: F.interpolate(x, scale_factor=1.7, mode="nearest-exact"),
    "bilinear": lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"),
    "linear": lambda x: F.linear(x, grid(7, 6), grid(7)),
    "matmul": lambda x: x @ grid(6, 5),
    "matmul of stacks": lambda x: x @ x.mT,
    "GRU": same_gru,
    "convolution": lambda x: F.conv2d(x, grid(6, 4, 3, 3)),
    "max pool": lambda x: F.max_pool2d(x, 2),
    "RMS norm": lambda x: F.rms_norm(x, (6,)),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
}


def results(layer, mode) -> list[torch.Tensor]:
    """A layer's output, and its input's gradient where gradients are kept."""
    x = image()
    with mode():
        x.requires_grad_(torch.is_grad_enabled() and layer is not LAYERS["channel shuffle"])
        out = layer(x)
        if out.requires_grad:
            (out * grid(*out.shape)).sum().backward()
    return [out.detach(), x.grad] if out.requires_grad else [out]


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
def test_counting_changes_no_bit_of_a_result(layer, mode):
    expected = results(layer, mode)
    with OperatorCounter() as counter:
        got = results(layer, mode)
    assert all(map(torch.equal, got, expected)) and counter.operators > 0


@pytest.mark.parametrize(("layer", "operators"), [(F.silu, 1), (F.mish, 1), (F.gelu, 1)])
def test_the_backward_of_an_activation_is_one_operator_that_touches_three_tensors(layer, operators):
    x = image().requires_grad_()
    y = layer(x)
    with OperatorCounter() as counter:
        torch.autograd.grad(y, x, torch.ones_like(x))
    ones_like = 2 * x.nbytes  # reads x, writes as much
    assert (counter.operators, counter.bytes) == (operators + 1, 3 * x.nbytes + ones_like)


def test_only_what_has_no_kernel_is_taken_apart():
    """torch's list of operators is the list of cases: what has a kernel for CPU is called as it is."""
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        packet = getattr(torch.ops.aten, base, None) if namespace == "aten" else None
        operator = getattr(packet, overload or "default", None)
        if operator and torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU"):
            call, _, _ = OperatorCounter()._learn(operator)
            assert call is operator._op, name


@pytest.mark.parametrize("layer", [nn.Linear(6, 4), nn.Bilinear(6, 6, 4), nn.Sequential(nn.Linear(6, 4), nn.ReLU())])
def test_products_in_inference_mode_have_flops(layer):
    args = [torch.ones(2, 6)] * (2 if isinstance(layer, nn.Bilinear) else 1)
    with torch.no_grad():
        expected = flops(lambda: layer(*args))
    with torch.inference_mode():
        assert flops(lambda: layer(*args)) == expected


class Seeing(TorchDispatchMode):
    """A learner's own mode."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.overloadpacket.__name__)
        return func(*args, **kwargs or {})


class Wrapper(torch.Tensor):
    """A learner's own kind of tensor, which holds another and none of its bytes."""

    @staticmethod
    def __new__(cls, inner):
        wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        wrapper.inner = inner
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return cls(func(*[arg.inner if isinstance(arg, cls) else arg for arg in args], **kwargs or {}))


def work() -> None:
    torch.ones(3, 4) @ torch.ones(4, 5)


def test_what_is_hidden_is_not_counted_and_what_follows_is():
    with OperatorCounter() as counter:
        with counter.hidden():
            work()
        assert counter.take() == (0, 0, 0, ())
        work()
        assert counter.flops == 2 * 3 * 4 * 5


def test_a_mode_of_the_learners_sees_what_is_hidden_from_the_counter():
    with OperatorCounter() as counter, Seeing() as mode, counter.hidden():
        work()
    assert mode.seen == ["ones", "ones", "mm"] and counter.take() == (0, 0, 0, ())


def test_a_mode_that_is_entered_while_hidden_in_another_sees_too():
    with OperatorCounter() as counter, Seeing() as outer, counter.hidden(), Seeing() as inner:
        work()
    assert inner.seen == outer.seen == ["ones", "ones", "mm"] and counter.take() == (0, 0, 0, ())


def test_a_tensor_of_the_learners_own_kind_does_hidden_what_it_always_does():
    with OperatorCounter() as counter:
        wrapper = Wrapper(torch.ones(3))
        counter.take()
        with counter.hidden():
            assert torch.equal((wrapper + 1).inner, torch.full((3,), 2.0))
            torch.ones(3)
        assert counter.take() == (0, 0, 0, ())
        assert type(wrapper + 1) is Wrapper
        assert counter.take()[2] == 1


def test_hidings_nest_and_end_with_an_error():
    with OperatorCounter() as counter:
        with pytest.raises(KeyError), counter.hidden(), counter.hidden():
            raise KeyError
        with counter.hidden():
            with counter.hidden():
                work()
            work()
        assert counter.take() == (0, 0, 0, ())
        work()
        assert counter.take()[2] == 3


def test_what_is_hidden_inside_a_learners_mode_is_counted_again_afterwards():
    class Hiding(Seeing):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            with counter.hidden():
                return super().__torch_dispatch__(func, types, args, kwargs)

    with OperatorCounter() as counter:
        with Hiding() as mode:
            work()
        assert mode.seen == ["ones", "ones", "mm"] and counter.take() == (0, 0, 0, ())
        work()
        assert counter.take()[2] == 3


def test_hiding_is_harmless_where_nobody_counts():
    counter = OperatorCounter()
    with counter.hidden(), Seeing() as mode:
        work()
    assert len(mode.seen) == 3


def test_another_thread_hides_nothing_from_the_thread_that_counts():
    is_hiding, is_counted = threading.Event(), threading.Event()

    def hide():
        with counter.hidden():
            is_hiding.set()
            is_counted.wait()

    with OperatorCounter() as counter:
        thread = threading.Thread(target=hide)
        thread.start()
        is_hiding.wait()
        work()
        is_counted.set()
        thread.join()
    assert counter.take()[2] == 3


def test_fake_tensors_do_no_work():
    from torch._subclasses import FakeTensorMode

    with OperatorCounter() as counter, FakeTensorMode():
        nn.Linear(3, 4)(torch.ones(2, 3)).sum().backward()
    assert counter.take() == (0, 0, 0, ())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_to_compile_is_no_work_and_what_was_compiled_has_the_flops_of_its_products(backend):
    torch._dynamo.reset()
    layer = nn.Linear(3, 4)
    compiled = torch.compile(layer, backend=backend)
    expected = flops(lambda: layer(torch.ones(2, 3)).sum().backward())
    assert [flops(lambda: compiled(torch.ones(2, 3)).sum().backward()) for _ in range(2)] == [expected] * 2
