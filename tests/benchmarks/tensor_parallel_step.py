"""A learner's tensor-parallel layer, lab 08's solution, against PyTorch's parallelize_module: a step on two ranks."""

import statistics
import time
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from distlab import run
from distlab.course.notebook import Notebook
from distlab.models import Block, attention_weights, join_heads, split_heads
from tests.benchmarks.table import Group, Row
from tests.benchmarks.timing import ROOT

NOTEBOOK = ROOT / "solutions" / "08_tensor_parallel.ipynb"
WIDTH, HEADS, ROWS, PLACES, TURNS, AIM = 512, 8, 4, 128, 9, 1.0
TITLE = f"one layer, width {WIDTH}, {ROWS} × {PLACES} places, forward and backward, one thread each"


class ThreeLinears(nn.Module):
    """An attention as PyTorch's plans want it: Q, K and V are layers of their own, and heads are those of a rank."""

    def __init__(self, fused):
        super().__init__()
        self.num_heads, self.out = fused.num_heads, fused.out
        for name, weight, bias in zip("qkv", fused.qkv.weight.chunk(3), fused.qkv.bias.chunk(3)):
            layer = nn.Linear(*reversed(weight.shape), dtype=weight.dtype)
            layer.weight, layer.bias = (nn.Parameter(part.detach().clone()) for part in (weight, bias))
            setattr(self, name, layer)

    def forward(self, x_BTD):
        heads = self.num_heads // dist.get_world_size()
        q, k, v = (split_heads(layer(x_BTD), heads) for layer in (self.q, self.k, self.v))
        return self.out(join_heads(attention_weights(q, k) @ v))


def by_pytorch(block, shares_its_input=True):
    """Cuts a Block by a plan; unless it says that Q, K and V share their input, each sums up a gradient of its own."""
    block.attention = ThreeLinears(block.attention)
    columns = {f"attention.{name}": ColwiseParallel() for name in "qkv"} | {"mlp.up": ColwiseParallel()}
    rows = {"attention.out": RowwiseParallel(), "mlp.down": RowwiseParallel()}
    shared = {"attention": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())}
    plan = columns | rows | (shared if shares_its_input else {})
    return parallelize_module(block, init_device_mesh("cpu", (dist.get_world_size(),)), plan)


def by_hand(attention_class, mlp_class, block):
    """Cuts a Block by the lab's classes."""
    block.attention, block.mlp = attention_class(block.attention), mlp_class(block.mlp)
    return block


def measure():
    if not NOTEBOOK.exists():
        return Group(TITLE, remarks=[f"skipped: there is no {NOTEBOOK.relative_to(ROOT)}"])
    lab = Notebook(NOTEBOOK).definitions()
    ours = partial(by_hand, lab["ParallelAttention"], lab["ParallelMLP"])
    settings = {"device": "cpu", "timeout": 300, "record": False}
    alone = run(take_turns, {"one process": lambda block: block}, ranks=1, **settings).values[0]
    together = run(take_turns, {"parallelize_module": by_pytorch, "lab 08": ours}, ranks=2, **settings).values[0]
    medians = {name: statistics.median(taken) for name, taken in (alone | together).items()}
    names = ("parallelize_module", "lab 08", "one process")
    group = Group(TITLE, [Row(name + (", 2 ranks" if name in together else ""), medians[name]) for name in names])
    ratio, best = (how(together["lab 08"]) / how(together["parallelize_module"]) for how in (statistics.median, min))
    group.remarks.append(
        f"lab 08 takes {ratio:.2f} × as long as parallelize_module, {best:.2f} × at best (aim: at most {AIM})"
    )
    return group


def take_turns(ways):
    """Returns the seconds of a step by each way on the slowest rank, the ways taking turns."""
    torch.set_num_threads(1)
    layers = {}
    for name, make in ways.items():
        torch.manual_seed(0)
        layers[name] = make(Block(WIDTH, HEADS))
    x_BTD = torch.randn(ROWS, PLACES, WIDTH, requires_grad=True)
    times = {name: [] for name in ways}
    for _ in range(TURNS + 2):
        for name, layer in layers.items():
            times[name].append(slowest(layer, x_BTD))
    return {name: taken[2:] for name, taken in times.items()}


def slowest(layer, x_BTD):
    dist.barrier()
    start = time.perf_counter()
    layer(x_BTD).sum().backward()
    taken = torch.tensor(time.perf_counter() - start)
    dist.all_reduce(taken, op=dist.ReduceOp.MAX)
    return taken.item()
