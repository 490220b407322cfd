"""What a rank holds is found by kind, at spans and messages, and looking changes nothing."""

from __future__ import annotations

import contextlib
import functools
import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from distlab import run, span
from distlab.events import Memory
from distlab.ranks.launch import Settings, launch
from distlab.ranks.limits import WorkLimit

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def settled(test):
    """Tries a test up to five times: gloo may hold a tensor for a moment after its message is over."""

    @functools.wraps(test)
    def try_again(*args, **kwargs):
        for _ in range(4):
            with contextlib.suppress(AssertionError):
                return test(*args, **kwargs)
        return test(*args, **kwargs)

    return try_again


def looks(fn, *args, ranks: int = 2, record: bool | str = True) -> list[Memory]:
    """What rank 0 noted."""
    return launch(fn, args, Settings(ranks, record=record), WorkLimit(10), quiet=True).recording.events(Memory, 0)


@settled
def test_inside_a_span_a_message_shows_its_buffer_when_it_is_issued_and_outside_it_costs_nothing():
    def share():
        dist.all_reduce(torch.ones(1000))
        with span("share"):
            dist.all_reduce(torch.ones(1000))

    begin, issued, _ = looks(share)  # at the end gloo may still hold the buffer, or not
    assert [(m.buffers, m.other) for m in (begin, issued)] == [(0, 0), (4000, 0)]


@settled
def test_what_was_made_beside_an_async_message_is_seen_when_it_is_done():
    def share():
        with span("share"):
            work = dist.all_reduce(torch.ones(1000), async_op=True)
            beside = torch.ones(500)
            work.wait()
            return beside

    assert [(m.buffers, m.other) for m in looks(share)][1:3] == [(4000, 0), (4000, 2000)]


@settled
def test_what_is_sent_keeps_its_own_kind_and_a_view_of_it_counts_once():
    def share():
        layer = nn.Linear(10, 10, bias=False)
        layer(torch.ones(1, 10)).sum().backward()
        dist.all_reduce(layer.weight.grad)
        dist.broadcast(layer.weight.data[:5], src=0)
        with span("end"):
            pass

    last = looks(share)[-1]
    assert (last.parameters, last.gradients, last.buffers) == (400, 400, 0)


@settled
def test_a_copy_that_an_optimizer_moves_is_the_optimizers_and_a_plain_tensor_that_learns_is_a_parameter():
    def update():
        master, weight = torch.zeros(100), torch.zeros(50, requires_grad=True)
        optimizer = torch.optim.Adam([master, weight])
        master.grad, weight.grad = torch.ones(100), torch.ones(50)
        optimizer.step()
        with span("end"):
            pass

    last = looks(update)[-1]
    assert (last.parameters, last.gradients, last.optimizer) == (200, 600, 400 + 2 * 600)


@settled
def test_what_backward_keeps_is_seen_though_no_name_holds_it_and_goes_with_the_backward_pass():
    def train():
        x = torch.ones(8, 100, requires_grad=True)
        y = x.exp().exp().sum()
        with span("B"):
            y.backward()

    before, after = looks(train)
    assert (before.activations, after.activations) == (2 * 3200, 0)


@settled
def test_an_emptied_storage_holds_nothing_whatever_looks_at_it():
    def release():
        flat = torch.zeros(100)
        view = flat[10:]
        flat.untyped_storage().resize_(0)
        with span("gone"):
            pass
        return view.shape

    assert looks(release)[0].other == 0


@settled
def test_memory_is_noted_in_full_recordings_only():
    def share():
        with span("end"):
            dist.all_reduce(torch.ones(1))

    assert looks(share, record="messages") == [] and len(looks(share)) == 3


@settled
def test_looking_does_not_change_what_is_held():
    def hold():
        kept = [torch.ones(10) for _ in range(5)]
        for _ in range(20):
            with span("look"):
                dist.barrier()
        return kept

    noted = looks(hold)
    assert len(noted) == 60 and {m._replace(time=0.0) for m in noted} == {Memory(other=200)}


@settled
def test_a_budget_bounds_the_looking_at_messages_and_the_recording_says_so():
    def chatter():
        from distlab.ranks.watching import memory

        memory.BUDGET = 3_000
        with span("chatter"):
            for _ in range(200):
                dist.barrier()

    recording = run(chatter, ranks=2).recording
    noted = recording.events(Memory, 0)
    assert 4 < len(noted) < 150 and "memory is noted where spans begin and end only" in recording.notes[0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@settled
def test_what_is_found_is_what_the_allocator_gave_out():
    def train():
        model = nn.Linear(1024, 1024)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            with span("step"):
                model(torch.ones(256, 1024)).square().sum().backward()
                optimizer.step()

    for noted in looks(train, ranks=1)[2:]:
        assert noted.total <= noted.allocator <= 1.05 * noted.total + 2**20


@settled
def test_a_look_finds_dtensors_and_passes_over_tensors_without_memory():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    def hold():
        mesh = init_device_mesh("cpu", (2,))
        sharded = distribute_tensor(torch.ones(8, 10), mesh, [Shard(0)])
        kept = [nn.Parameter(sharded), torch.empty(10**6, device="meta"), torch.ones(3).to_sparse()]
        with span("end"):
            pass
        return len(kept)

    assert looks(hold)[-1].parameters == 160


class Wrapper(torch.Tensor):
    """Holds another tensor, and no memory of its own."""

    @staticmethod
    def __new__(cls, inner):
        wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        wrapper.inner = inner
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*[arg.inner if isinstance(arg, cls) else arg for arg in args], **kwargs or {})


def asynchronous(tensor):
    return functional.AsyncCollectiveTensor(tensor)


def jagged(tensor):
    return torch.nested.nested_tensor_from_jagged(tensor, torch.tensor([0, 400, 1000], dtype=torch.int32))


def fake(tensor):
    with FakeTensorMode() as mode:
        return tensor, mode.from_tensor(tensor)


@pytest.mark.parametrize(("wrap", "more"), [(Wrapper, 0), (asynchronous, 0), (jagged, 3 * 4), (fake, 0)])
@settled
def test_a_tensor_that_wraps_another_holds_no_bytes_besides(wrap, more):
    def hold():
        kept = wrap(torch.ones(1000))
        with span("end"):
            pass
        del kept

    assert looks(hold, ranks=1)[-1].other == 4000 + more


BLOCK_INPUT = 4 * 8 * 100  # bytes of x below


def exp_three_times(x: torch.Tensor) -> torch.Tensor:
    """Keeps the three results where nobody computes them again."""
    return x.exp().exp().exp()


def checkpointed(reentrant: bool, fn=exp_three_times) -> list[Memory]:
    """Rank 0's looks before and after the backward of two checkpointed blocks, one upon the other."""

    def train():
        x = -torch.ones(8, 100, requires_grad=True)
        y = -checkpoint(fn, x, use_reentrant=reentrant)
        y = checkpoint(fn, y, use_reentrant=reentrant)
        with span("B"):
            y.sum().backward()

    return looks(train, ranks=1)


@pytest.mark.parametrize("reentrant", [False, True])
@settled
def test_the_input_of_a_checkpointed_block_is_an_activation_and_its_inside_is_not_kept(reentrant):
    before, after = checkpointed(reentrant)
    leaf, result = BLOCK_INPUT, BLOCK_INPUT
    random_states = 2 * torch.get_rng_state().nbytes
    assert (before.activations, before.other) == (2 * BLOCK_INPUT, leaf + result + random_states)
    assert after.activations == 0


@settled
def test_without_a_checkpoint_every_result_is_an_activation():
    def train():
        x = -torch.ones(8, 100, requires_grad=True)
        y = exp_three_times(-exp_three_times(x))
        with span("B"):
            y.sum().backward()

    before, after = looks(train, ranks=1)
    assert (before.activations, after.activations) == (6 * BLOCK_INPUT, 0)


@settled
def test_a_checkpoint_in_a_checkpoint_keeps_nothing_of_its_own():
    def nested(x):
        return checkpoint(exp_three_times, -x, use_reentrant=False)

    before, after = checkpointed(False, nested)
    assert (before.activations, after.activations) == (2 * BLOCK_INPUT, 0)


@settled
def test_what_a_checkpointed_block_takes_by_name_or_in_a_list_is_kept_too():
    def train():
        x, masks, scale = torch.ones(8, 100, requires_grad=True), [torch.ones(100), torch.ones(50)], torch.ones(8, 1)
        y = checkpoint(masked, -x, masks, scale=scale, use_reentrant=False, preserve_rng_state=False)
        with span("B"):
            y.sum().backward()

    def masked(x, masks, scale):
        return (x * masks[0] * scale).exp()

    assert looks(train, ranks=1)[0].activations == BLOCK_INPUT + 4 * (100 + 50) + 4 * 8


@settled
def test_in_its_backward_a_checkpointed_block_is_computed_again_and_kept_until_it_is_used():
    def train():
        x = -torch.ones(8, 100, requires_grad=True)
        y = checkpoint(announced, x, use_reentrant=False, preserve_rng_state=False)
        y.sum().backward()

    def announced(x):
        first = x.exp()
        first.register_hook(look)
        return first.exp().exp()

    def look(gradient):
        with span("B"):
            pass

    # Of the three results that were computed again, the backward has used two when the hook of the first looks.
    first, *_ = looks(train, ranks=1)
    assert first.activations == BLOCK_INPUT + BLOCK_INPUT


@settled
def test_what_a_selective_checkpoint_need_not_compute_again_is_an_activation():
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(ctx, operator, *args, **kwargs):
        is_product = str(operator) == "aten.mm.default"
        return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE

    def train():
        weight, x = nn.Parameter(torch.ones(100, 50)), torch.ones(8, 100)
        context = functools.partial(create_selective_checkpoint_contexts, policy)
        y = checkpoint(lambda x: (x @ weight).exp().exp(), x, use_reentrant=False, context_fn=context)
        with span("B"):
            y.sum().backward()

    assert looks(train, ranks=1)[0].activations == BLOCK_INPUT + 4 * 8 * 50


class Packed:
    def __init__(self, tensor):
        self.tensor = tensor


@pytest.mark.parametrize(
    "pack",
    [Packed, lambda t: {"of": [t]}, lambda t: lambda: t, lambda t: functools.partial(len, t)],
    ids=["an object", "a dict", "a closure", "a partial"],
)
@settled
def test_what_a_hook_packs_a_tensor_into_is_looked_through(pack):
    def train():
        x = torch.ones(8, 100, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: pack(tensor.half()), len):
            y = exp_three_times(x)
        with span("F"):
            pass
        return len(y)

    assert looks(train, ranks=1)[0].activations == 3 * BLOCK_INPUT / 2


@settled
def test_what_an_autograd_function_keeps_as_an_attribute_is_an_activation():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.doubled = 2 * x
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.doubled

    def train():
        y = Square.apply(torch.ones(8, 100, requires_grad=True))
        with span("F"):
            pass
        return len(y)

    assert looks(train, ranks=1)[0].activations == BLOCK_INPUT
