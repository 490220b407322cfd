"""What a learner may do with tensors: each story looks at awkward moments."""

from __future__ import annotations

import functools
import gc

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from distlab.models import gpt
from tests.ranks.test_memory import Wrapper, asynchronous, exp_three_times, fake, jagged


def numpy_memory(look):
    array = np.ones(1000, dtype=np.float32)
    first, second = torch.from_numpy(array), torch.from_numpy(array[:500])
    look()
    del first
    look()
    return second


def bare_storages(look):
    storage = torch.ones(1000).untyped_storage()
    look()
    tensor = torch.empty(0).set_(storage)
    look()
    storage.resize_(8000)
    look()
    storage.resize_(0)
    look()
    return tensor


def swapped_data(look):
    layer = nn.Linear(10, 10)
    look()
    layer.weight.data = torch.ones(20, 10)
    look()
    layer.weight.sum().backward()
    look()
    layer.weight.grad.data = torch.ones(20, 10, dtype=torch.float16).float()
    look()


def train_a_step(model, optimizer, look):
    optimizer.zero_grad()
    look()
    loss = model(torch.ones(2, 8, dtype=torch.int64)).square().mean()
    look()
    loss.backward()
    look()
    optimizer.step()
    look()


def training(look):
    model = gpt(width=16, num_layers=2)
    optimizer = torch.optim.Adam(model.parameters())
    next(iter(model.parameters())).register_hook(lambda gradient: look())
    for _ in range(3):
        train_a_step(model, optimizer, look)
    del optimizer
    look()
    del model
    look()


def made_in_cpp(look):
    x = torch.ones(100, requires_grad=True)
    y = x.exp().exp().sum()
    look()  # sees what was saved, for which there was no Python object
    y.backward()
    look()  # the same with the gradient
    gradient = x.grad
    x.grad = None
    look()
    return gradient


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, None)
        ctx.twice = [2 * x]
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.twice[0]


def a_learners_function(look):
    x = torch.ones(100, requires_grad=True)
    y = Square.apply(Square.apply(x))
    y.register_hook(lambda gradient: look())
    x.register_hook(lambda gradient: look())
    look()
    y.sum().backward(retain_graph=True)
    look()
    y.sum().backward()
    look()


class Named(torch.Tensor):
    pass


class NamedParameter(nn.Parameter):
    pass


def other_tensors(look):
    kept = [torch.ones(10).as_subclass(Named), NamedParameter(torch.ones(20))]
    look()
    kept += [torch.ones(3).to_sparse(), torch.empty(10**6, device="meta"), torch.ones(0), torch.ones(4, 4)[1]]
    kept += [torch.eye(3).to_sparse_csr(), torch.ones(3).to_mkldnn(), torch.nested.nested_tensor([torch.ones(7)])]
    gc.collect()
    look()
    kept += [Wrapper(torch.ones(30)), asynchronous(torch.ones(40)), jagged(torch.ones(1000)), fake(torch.ones(50))]
    look()
    kept.reverse()
    del kept[2:5]
    look()


def checkpoints(look, reentrant: bool):
    x = -torch.ones(8, 100, requires_grad=True)
    y = checkpoint(exp_three_times, x, use_reentrant=reentrant)
    look()
    y.register_hook(lambda gradient: look())
    x.register_hook(lambda gradient: look())
    gc.collect()
    y.sum().backward()
    look()


def a_selective_checkpoint(look):
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(ctx, operator, *args, **kwargs):
        is_product = str(operator) == "aten.mm.default"
        return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE

    weight, x = nn.Parameter(torch.ones(100, 50)), torch.ones(8, 100)
    context = functools.partial(create_selective_checkpoint_contexts, policy)
    y = checkpoint(lambda x: (x @ weight).exp().exp(), x, use_reentrant=False, context_fn=context)
    gc.collect(0)
    look()
    y.sum().backward()
    look()


ALL = [
    numpy_memory,
    bare_storages,
    swapped_data,
    training,
    made_in_cpp,
    a_learners_function,
    other_tensors,
    a_selective_checkpoint,
]
STORIES = {story.__name__: story for story in ALL} | {
    f"a checkpoint, reentrant: {yes}": functools.partial(checkpoints, reentrant=yes) for yes in (True, False)
}
