"""Programs of the kinds that other people write compute the same watched and unwatched, and send what was foretold.

Beside each program stands what a rank sends in it: bytes by kind of message, as ``Message.bytes`` has them (of a
collective the whole array), counted by hand from the sizes below. A program says by ``counted()`` what is meant: what a
library sends to set itself up is left out.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import operator
import pickle
import shutil
import sys
import tempfile
import threading
from collections import Counter
from typing import NamedTuple

import cloudpickle
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from distlab import run, span
from distlab.events import Message, Span
from distlab.recording import Recording

cloudpickle.register_pickle_by_value(sys.modules[__name__])

F32, F16, I64, I32 = 4, 2, 8, 4  # bytes an element
B, D, H, T = 6, 8, 12, 5  # rows of a batch, width, hidden width, places of a sequence
COUNTED = "counted"
NET = D * H + H + H * D + D  # parameters of net()


def counted():
    return span(COUNTED)


def rank() -> int:
    return dist.get_rank()


def world() -> int:
    return dist.get_world_size()


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(D, H), nn.SiLU(), nn.Linear(H, D))


def batch(number: int = 0) -> torch.Tensor:
    """Another one on each rank."""
    return torch.randn(B, D, generator=torch.Generator().manual_seed(100 * number + rank()))


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters()]


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach() for parameter in model.parameters()]


# Attention over a ring: queries stay, keys and values travel.


def ring_attention():
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = torch.randn(3, T * world(), D, generator=generator).chunk(world(), 1)[rank()]
    top, total, out = torch.full((T, 1), -torch.inf), torch.zeros(T, 1), torch.zeros(T, D)
    with counted():
        for step in range(world()):
            scores = queries @ keys.T / D**0.5
            new_top = torch.maximum(top, scores.amax(1, keepdim=True))
            scale, parts = (top - new_top).exp(), (scores - new_top).exp()
            total, out, top = total * scale + parts.sum(1, keepdim=True), out * scale + parts @ values, new_top
            if step < world() - 1:
                keys, values = [passed_on(each) for each in (keys, values)]
    return out / total


def passed_on(mine: torch.Tensor) -> torch.Tensor:
    received = torch.empty_like(mine)
    works = [dist.isend(mine.contiguous(), (rank() + 1) % world()), dist.irecv(received, (rank() - 1) % world())]
    for work in works:
        work.wait()
    return received


def around_the_ring(rank: int, world: int) -> dict[str, int]:
    bytes = (world - 1) * 2 * F32 * T * D
    return {"send": bytes, "recv": bytes}


# Tensor parallelism as in Megatron.


class CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def tensor_parallel_mlp():
    whole, x = net(), torch.randn(B, D, generator=torch.Generator().manual_seed(1)).requires_grad_()
    up = nn.Parameter(whole[0].weight.detach().chunk(world(), 0)[rank()].clone())
    bias = nn.Parameter(whole[0].bias.detach().chunk(world(), 0)[rank()].clone())
    down = nn.Parameter(whole[2].weight.detach().chunk(world(), 1)[rank()].clone())
    with counted():
        hidden = F.silu(F.linear(CopyToRanks.apply(x), up, bias))
        y = SumOverRanks.apply(hidden @ down.T) + whole[2].bias
        y.square().sum().backward()
    return y, x.grad, up.grad, bias.grad, down.grad


def sum_of_outputs_and_of_input_gradients(rank: int, world: int) -> dict[str, int]:
    return {"all_reduce": 2 * F32 * B * D}


# A pipeline: all forwards, then all backwards.

MICRO_BATCHES, ROWS = 3, 2


def pipeline():
    torch.manual_seed(rank())
    stage, first, last = nn.Linear(D, D), rank() == 0, rank() == world() - 1
    kept, losses = [], []
    with counted():
        for number in range(MICRO_BATCHES):
            x = torch.full((ROWS, D), float(number)) if first else exchange(recv_from=rank() - 1)
            x.requires_grad_(not first)
            y = stage(x).tanh()
            kept.append((x, y))
            if not last:
                exchange(y.detach(), send_to=rank() + 1)
        for x, y in kept:
            if last:
                losses.append(y.square().sum())
                losses[-1].backward()
            else:
                y.backward(exchange(recv_from=rank() + 1))
            if not first:
                exchange(x.grad, send_to=rank() - 1)
    return gradients(stage), losses


def exchange(tensor: torch.Tensor | None = None, send_to: int = -1, recv_from: int = -1) -> torch.Tensor:
    received = torch.empty(ROWS, D)
    operations = [dist.P2POp(dist.isend, tensor, send_to)] if tensor is not None else []
    operations += [dist.P2POp(dist.irecv, received, recv_from)] if recv_from >= 0 else []
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return received


def micro_batches_to_each_neighbour(rank: int, world: int) -> dict[str, int]:
    neighbours = (rank > 0) + (rank < world - 1)
    bytes = neighbours * MICRO_BATCHES * F32 * ROWS * D
    return {"send": bytes, "recv": bytes}


# ZeRO, by hand and torch's.

STEPS = 2
PADDED = -(-NET // 3) * 3  # for three ranks


def zero_1():
    model = net()
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    flat = F.pad(flat, (0, PADDED - NET))
    shard = nn.Parameter(flat.chunk(world())[rank()].clone())
    optimizer = torch.optim.Adam([shard], lr=0.1)
    with counted():
        for step in range(STEPS):
            model.zero_grad()
            model(batch(step)).square().mean().backward()
            gradient = F.pad(torch.cat([each.flatten() for each in gradients(model)]), (0, PADDED - NET))
            shard.grad = torch.empty_like(shard)
            dist.reduce_scatter_tensor(shard.grad, gradient, op=dist.ReduceOp.SUM)
            optimizer.step()
            dist.all_gather_into_tensor(flat, shard.detach())
            nn.utils.vector_to_parameters(flat[:NET], model.parameters())
    return weights(model)


def gradients_scattered_and_weights_gathered(rank: int, world: int) -> dict[str, int]:
    return {"reduce_scatter": STEPS * F32 * PADDED, "all_gather": STEPS * F32 * PADDED}


def zero_redundancy_optimizer():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        with counted():
            optimizer.step()
    return weights(model)


def weights_broadcast(rank: int, world: int) -> dict[str, int]:
    return {"broadcast": STEPS * F32 * NET}


# DDP and what is made of it.


def ddp_no_sync():
    model = arranged(DistributedDataParallel(net()))
    with counted():
        for step in range(4):
            with contextlib.nullcontext() if step % 2 else model.no_sync():
                model(batch(step)).square().mean().backward()
    return gradients(model)


def arranged(model: DistributedDataParallel) -> DistributedDataParallel:
    """After its first backward DDP arranges its buckets anew, and tells all ranks how."""
    for _ in range(2):
        model(batch()).square().mean().backward()
    model.zero_grad()
    return model


def every_second_gradient(rank: int, world: int) -> dict[str, int]:
    return {"all_reduce": 2 * F32 * NET}


def uneven_inputs(divide: bool):
    model = DistributedDataParallel(net())
    with counted(), model.join(divide_by_initial_world_size=divide):
        for step in range(2 + rank()):
            model.zero_grad()
            model(batch(step)).square().mean().backward()
    return weights(model), gradients(model)


def ddp_join():
    return uneven_inputs(divide=True)


def ddp_join_divided_by_those_who_are_left():
    return uneven_inputs(divide=False)


def as_many_steps_as_the_longest(rank: int, world: int) -> dict[str, int]:
    steps = 2 + world - 1
    flags = F32 + F32  # in each step: who is still there, and whether gradients are shared
    bucket_sizes, of_buckets = I32 * (4 + 1), I32
    return {
        "all_reduce": steps * (flags + F32 * NET) + F32 + I64,  # at the end: nobody is there, and who was the last
        "broadcast": bucket_sizes + of_buckets + F32 * NET,  # and the last one's weights
    }


def ddp_with_a_hook_of_futures():
    def average(state, bucket):
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0] / world())

    return hooked(average, None)


def ddp_in_half_precision():
    return hooked(default_hooks.fp16_compress_hook, dist.group.WORLD)


def hooked(hook, state):
    model = DistributedDataParallel(net())
    model.register_comm_hook(state, hook)
    arranged(model)
    with counted():
        model(batch(1)).square().mean().backward()
    return gradients(model)


def all_gradients(rank: int, world: int) -> dict[str, int]:
    return {"all_reduce": F32 * NET}


def all_gradients_in_half_precision(rank: int, world: int) -> dict[str, int]:
    return {"all_reduce": F16 * NET}


def ddp_with_power_sgd():
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1.5
    )
    model = DistributedDataParallel(net())
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for step in range(3):
        with counted() if step == 2 else contextlib.nullcontext():
            model(batch(step)).square().mean().backward()
    return gradients(model)


def low_rank_factors_and_biases(rank: int, world: int) -> dict[str, int]:
    left, right, biases = H + D, D + H, H + D
    return {"all_reduce": F32 * (left + right + biases)}


def compiled_ddp():
    model = torch.compile(DistributedDataParallel(net()), backend="aot_eager")
    for step in range(2):
        with counted():
            model(batch(step)).square().mean().backward()
    return gradients(model)


def all_gradients_twice_and_the_new_buckets(rank: int, world: int) -> dict[str, int]:
    bucket_sizes, of_buckets = I32 * (4 + 1), I32  # how many parameters a bucket has, how many buckets
    return {"all_reduce": 2 * F32 * NET, "broadcast": bucket_sizes + of_buckets}


def overlapped_by_hooks():
    model, works = net(), []

    def share(parameter):
        works.append(dist.all_reduce(parameter.grad, async_op=True))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(share)
    with counted():
        model(batch()).square().mean().backward()
        for work in works:
            work.wait()
    return gradients(model)


def local_sgd():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with counted():
        for step in range(6):
            optimizer.zero_grad()
            model(batch(step)).square().mean().backward()
            optimizer.step()
            if step % 3 == 2:
                for parameter in model.parameters():
                    dist.all_reduce(parameter.data)
                    parameter.data /= world()
    return weights(model)


def all_weights_twice(rank: int, world: int) -> dict[str, int]:
    return {"all_reduce": 2 * F32 * NET}


# Sharded by torch.


def fsdp2():
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(D, D), nn.SiLU(), nn.Linear(D, D))
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with counted():
        for step in range(STEPS):
            optimizer.zero_grad()
            model(batch(step)).square().mean().backward()
            optimizer.step()
    return [parameter.to_local().detach() for parameter in model.parameters()]


def each_layer_gathered_twice_and_scattered(rank: int, world: int) -> dict[str, int]:
    layer = F32 * (D * D + D)
    return {"all_gather": STEPS * 2 * 2 * layer, "reduce_scatter": STEPS * 2 * layer}


def dtensor_mlp():
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (world(),))
    model = parallelize_module(net(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x = torch.randn(B, D, generator=torch.Generator().manual_seed(1)).requires_grad_()
    with counted():
        y = model(x)
        y.square().sum().backward()
    return y, x.grad, [gradient.to_local() for gradient in gradients(model)]


def schedule_1f1b():
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.manual_seed(rank())
    stage = PipelineStage(nn.Linear(D, D), rank(), world(), torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=lambda y, target: (y - target).square().sum())
    losses = []
    for step in range(2):  # stages tell each other their shapes in the first
        with counted() if step else contextlib.nullcontext():
            x, target = torch.full((MICRO_BATCHES * ROWS, D), 1.0 + step), torch.ones(MICRO_BATCHES * ROWS, D)
            if rank() == 0:
                schedule.step(x)
            elif rank() == world() - 1:
                schedule.step(target=target, losses=losses)
            else:
                schedule.step()
    return gradients(stage.submod), losses


def checkpoint_files():
    """Saved by all ranks together, once while they wait and once beside them; read again."""
    import torch.distributed.checkpoint as dcp

    model = net()
    folder = shared_folder()
    dcp.save({"model": model.state_dict()}, checkpoint_id=f"{folder}/now")
    saving = dcp.async_save(
        {"model": model.state_dict()}, checkpoint_id=f"{folder}/beside", process_group=dist.new_group(backend="gloo")
    )
    with counted():
        total = batch()
        dist.all_reduce(total)
    saving.result()
    found = []
    for name in ("now", "beside"):
        again = copy.deepcopy(model)
        for parameter in again.parameters():
            nn.init.zeros_(parameter)
        state = {"model": again.state_dict()}
        dcp.load(state, checkpoint_id=f"{folder}/{name}")
        found += state["model"].values()
    remove(folder)
    return total, found


def shared_folder() -> str:
    names = [tempfile.mkdtemp(prefix="distlab-test-") if rank() == 0 else None]
    dist.broadcast_object_list(names, src=0)
    return names[0]


def remove(folder: str) -> None:
    """Once no rank needs it."""
    dist.barrier()
    if rank() == 0:
        shutil.rmtree(folder)


def one_batch(rank: int, world: int) -> dict[str, int]:
    return {"all_reduce": F32 * B * D}


# Objects, scatter and gather, any source.

OBJECTS = ({"loss": 0.5}, ["some", "words"], None)


def object_collectives():
    mine = OBJECTS[rank()]
    with counted():
        everything, gathered = [None] * world(), [None] * world() if rank() == 0 else None
        dist.all_gather_object(everything, mine)
        dist.gather_object(mine, gathered, dst=0)
        sent = [mine, rank()]
        dist.broadcast_object_list(sent, src=1)
    return everything, gathered, sent


def pickled_objects(rank: int, world: int) -> dict[str, int]:
    sizes = [len(pickle.dumps(each)) for each in OBJECTS]
    lengths = I64 * world
    sent = [len(pickle.dumps(each)) for each in (OBJECTS[1], 1)]
    return {
        "all_gather": 2 * lengths
        + world * max(sizes),  # both gather the lengths from all first, then pad to the longest
        "gather": world * max(sizes),
        "broadcast": I64 * len(sent) + sum(sent),
    }


def scattered_k_means():
    points = torch.randn(4 * world(), D, generator=torch.Generator().manual_seed(2))
    mine, centres = torch.empty(4, D), torch.empty(2, D)
    with counted():
        dist.scatter(mine, list(points.chunk(world())) if rank() == 0 else None, src=0)
        centres.copy_(points[:2])
        for _ in range(2):
            dist.broadcast(centres, src=0)
            nearest = torch.cdist(mine, centres).argmin(1)
            sums = torch.zeros(2, D).index_add_(0, nearest, mine)
            counts = torch.bincount(nearest, minlength=2).float()
            dist.reduce(sums, dst=0)
            dist.reduce(counts, dst=0)
            if rank() == 0:
                centres = sums / counts.clamp(min=1)[:, None]
        labels = [torch.empty_like(nearest) for _ in range(world())] if rank() == 0 else None
        dist.gather(nearest, labels, dst=0)
    return (centres, labels) if rank() == 0 else nearest


def points_centres_and_labels(rank: int, world: int) -> dict[str, int]:
    return {
        "scatter": F32 * 4 * world * D,
        "broadcast": 2 * F32 * 2 * D,
        "reduce": 2 * F32 * (2 * D + 2),
        "gather": I64 * 4 * world,
    }


def parameter_server():
    """Rank 0 adds up what comes from any worker, and answers the one it came from."""
    weight = torch.zeros(D)
    with counted():
        if rank() == 0:
            for _ in range(2 * (world() - 1)):
                gradient = torch.empty(D)
                worker = dist.recv(gradient)
                weight += gradient
                dist.send(torch.ones(D), worker)
            return weight
        for step in range(2):
            dist.send(torch.full((D,), float(2 ** (2 * rank() + step))), 0)
            dist.recv(weight, 0)
        return weight


def gradients_and_answers(rank: int, world: int) -> dict[str, int]:
    bytes = 2 * F32 * D * (world - 1 if rank == 0 else 1)
    return {"send": bytes, "recv": bytes}


# Experts: rank r sends (r + e) % 3 + 1 tokens to expert e.


def to_expert(source: int, expert: int) -> int:
    return (source + expert) % 3 + 1


def mixture_of_experts():
    sent = [to_expert(rank(), expert) for expert in range(world())]
    received = [to_expert(source, rank()) for source in range(world())]
    tokens = torch.randn(sum(sent), D, generator=torch.Generator().manual_seed(rank()))
    with counted():
        counts = torch.empty(world(), dtype=torch.int64)
        dist.all_to_all_single(counts, torch.tensor(sent))
        inputs, outputs = torch.empty(sum(received), D), torch.empty_like(tokens)
        dist.all_to_all_single(inputs, tokens, counts.tolist(), sent)
        dist.all_to_all_single(outputs, F.silu(inputs) * (rank() + 1), sent, received)
    return counts, outputs


def counts_tokens_and_results(rank: int, world: int) -> dict[str, int]:
    sent = sum(to_expert(rank, expert) for expert in range(world))
    received = sum(to_expert(source, rank) for source in range(world))
    return {"all_to_all": I64 * world + F32 * D * (sent + received)}


# Groups.


def mesh_of_two_axes():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    x = torch.full((B,), float(rank()))
    with counted():
        dist.all_reduce(x, group=mesh["data"].get_group())
        parts = torch.empty(2 * B)
        dist.all_gather_into_tensor(parts, x, group=mesh.get_group("model"))
    return parts, mesh.get_coordinate()


def a_sum_and_a_gathering(rank: int, world: int) -> dict[str, int]:
    return {"all_reduce": F32 * B, "all_gather": 2 * F32 * B}


def futures_then():
    x = torch.full((D,), float(rank() + 1))
    with counted():
        future = dist.all_reduce(x, async_op=True).get_future()
        return future.then(lambda done: done.value()[0] * 2).wait()


def one_row(rank: int, world: int) -> dict[str, int]:
    return {"all_reduce": F32 * D}


def a_second_world():
    first, folder = torch.ones(D), shared_folder()
    mine, size = rank(), world()
    with counted():
        dist.all_reduce(first)
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=mine, world_size=size)
    pair = dist.new_group([0, 1])
    second = torch.ones(D)
    with counted():
        dist.all_reduce(second)
        if mine < 2:
            dist.all_reduce(second, group=pair)
    remove(folder)
    return first, second


def rows_of_both_worlds(rank: int, world: int) -> dict[str, int]:
    return {"all_reduce": F32 * D * (3 if rank < 2 else 2)}


def a_thread_with_a_group_of_its_own():
    beside = dist.new_group()
    total, found = torch.full((D,), float(rank())), []

    def check_in():
        for _ in range(3):
            mark = torch.ones(1)
            dist.all_reduce(mark, group=beside)
            found.append(mark)

    thread = threading.Thread(target=check_in)
    thread.start()
    with counted():
        for _ in range(3):
            dist.all_reduce(total)
    thread.join()
    return total, found


def three_rows(rank: int, world: int) -> dict[str, int]:
    return {"all_reduce": 3 * F32 * D}


def counted_by_torch():
    """torch's own counting of collectives, and a tensor of a kind that torch makes itself."""
    import torch.distributed._functional_collectives as functional
    from torch.distributed.tensor.debug import CommDebugMode

    x = torch.ones(D)
    with CommDebugMode() as mode, counted():
        dist.all_reduce(x)
        later = functional.all_reduce(x, "sum", dist.group.WORLD)
        dist.all_reduce(x.clone())
        y = later + 1
    return mode.get_total_counts(), x, y


class Seeing(TorchDispatchMode):
    """A mode of one's own, that writes down the operators it sees."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **kwargs or {})


def a_mode_of_ones_own():
    x = torch.ones(D)
    with Seeing() as mode, counted():
        dist.all_reduce(x)
        work = dist.all_reduce(x, async_op=True)
        y = torch.ones(3)
        work.wait()
        dist.all_reduce(x)
    return [*mode.seen, x, y]


def a_tensor_that_waits_by_itself_in_a_collective():
    import torch.distributed._functional_collectives as functional

    x = torch.full((D,), float(rank()))
    with counted():
        later = functional.all_reduce(x, "sum", dist.group.WORLD)
        twice = functional.all_reduce(later, "sum", dist.group.WORLD)
        thrice = functional.all_reduce(twice * 2, "max", dist.group.WORLD)
        return (thrice + later).clone()


class Case(NamedTuple):
    program: object
    ranks: int
    by_hand: object
    beside: int | None = None  # the number of a group on which another thread sends what is not counted


CASES = [
    Case(ring_attention, 3, around_the_ring),
    Case(tensor_parallel_mlp, 2, sum_of_outputs_and_of_input_gradients),
    Case(pipeline, 3, micro_batches_to_each_neighbour),
    Case(zero_1, 3, gradients_scattered_and_weights_gathered),
    Case(zero_redundancy_optimizer, 2, weights_broadcast),
    Case(ddp_no_sync, 2, every_second_gradient),
    Case(ddp_join, 2, as_many_steps_as_the_longest),
    Case(ddp_join_divided_by_those_who_are_left, 2, as_many_steps_as_the_longest),
    Case(ddp_with_a_hook_of_futures, 2, all_gradients),
    Case(ddp_in_half_precision, 2, all_gradients_in_half_precision),
    Case(ddp_with_power_sgd, 2, low_rank_factors_and_biases),
    Case(compiled_ddp, 2, all_gradients_twice_and_the_new_buckets),
    Case(overlapped_by_hooks, 2, all_gradients),
    Case(local_sgd, 3, all_weights_twice),
    Case(fsdp2, 2, each_layer_gathered_twice_and_scattered),
    Case(dtensor_mlp, 2, sum_of_outputs_and_of_input_gradients),
    Case(schedule_1f1b, 3, micro_batches_to_each_neighbour),
    Case(checkpoint_files, 2, one_batch, beside=1),
    Case(object_collectives, 3, pickled_objects),
    Case(scattered_k_means, 3, points_centres_and_labels),
    Case(parameter_server, 3, gradients_and_answers),
    Case(mixture_of_experts, 4, counts_tokens_and_results),
    Case(mesh_of_two_axes, 4, a_sum_and_a_gathering),
    Case(futures_then, 2, one_row),
    Case(a_second_world, 3, rows_of_both_worlds),
    Case(a_thread_with_a_group_of_its_own, 2, three_rows, beside=1),
    Case(counted_by_torch, 2, three_rows),
    Case(a_mode_of_ones_own, 2, three_rows),
    Case(a_tensor_that_waits_by_itself_in_a_collective, 2, three_rows),
]


def same(one, other) -> bool:
    """Whether two values are equal bit by bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def bytes_counted(recording: Recording, rank: int, beside: int | None) -> dict[str, int]:
    """Bytes by kind of the messages that a rank issued inside the spans that count."""
    found, names = Counter(), []
    for event in recording.ranks[rank]:
        if type(event) is Span:
            names = [*names, event.name] if event.name else names[:-1]
        elif type(event) is Message and COUNTED in names and event.group != beside:
            found[event.kind] += event.bytes
    return dict(found)


@functools.cache
def unrecorded(program, ranks: int) -> list:
    return run(program, ranks=ranks, record=False).values


@pytest.mark.parametrize("record", [True, "messages"])
@pytest.mark.parametrize("case", CASES, ids=operator.attrgetter("program.__name__"))
def test_a_program_computes_the_same_watched_and_sends_what_was_counted_by_hand(case, record):
    watched = run(case.program, ranks=case.ranks, record=record)
    assert same(watched.values, unrecorded(case.program, case.ranks))
    by_hand = [case.by_hand(rank, case.ranks) for rank in range(case.ranks)]
    assert [bytes_counted(watched.recording, rank, case.beside) for rank in range(case.ranks)] == by_hand
