"""Wrong numbers: what does not crash, and yet makes ranks differ, is named by compare_ranks."""

from __future__ import annotations

import contextlib
import random
import sys

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from distlab import RankError, compare_ranks, run

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def rank() -> int:
    return dist.get_rank()


def everywhere(fn, *args, ranks: int = 3) -> list[str]:
    """What fn returned, which must be the same on all ranks."""
    first, *others = run(fn, *args, ranks=ranks, device="cpu").values
    assert all(other == first for other in others)
    return first


def replicas_of_one_seed():
    return compare_ranks(nn.Linear(4, 2), random_state=True)


def weights_of_another_seed():
    torch.manual_seed(rank() == 1)
    return compare_ranks(nn.Linear(4, 2))


def only_the_bias_is_off():
    model = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2))
    with torch.no_grad():
        model[1].bias += 0.5 * (rank() == 2)
    return compare_ranks(model)


def running_means_of_local_batches():
    torch.manual_seed(rank())
    model = DistributedDataParallel(nn.BatchNorm1d(3))
    model(torch.randn(8, 3)).sum().backward()
    return compare_ranks(model.module)


def gradients_without_all_reduce():
    model = nn.Linear(1, 1, bias=False)
    (model.weight * (rank() + 1)).sum().backward()
    return compare_ranks({"weight.grad": model.weight.grad})


def moments_of_local_gradients():
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.Adam(model.parameters())
    model.weight.grad = torch.full((1, 1), float(rank()))
    optimizer.step()
    return compare_ranks(optimizer)


def random_numbers_drawn_on_one_rank():
    if rank() == 0:
        torch.rand(1)
        np.random.rand()
        random.random()
    return compare_ranks(random_state=True)


def dropout_drawn_on_one_rank():
    if rank() == 1:
        nn.functional.dropout(torch.ones(8))
    return compare_ranks(random_state=True)


def tied_embedding_updated_on_one_stage():
    weight = torch.ones(3, 2)
    for _ in range(2):
        weight -= 0.1 * (rank() == 0)
    return compare_ranks(weight, tolerance=1e-6)


def shapes_that_differ():
    return compare_ranks({"x": torch.ones(2 + (rank() == 1))})


def a_name_that_one_rank_lacks():
    return compare_ranks({"x": torch.ones(2)} if rank() else {"x": torch.ones(2), "extra": torch.ones(1)})


def a_nan_on_one_rank():
    return compare_ranks(torch.tensor([1.0, float("nan") if rank() == 2 else 2.0]))


def rounding_within_the_tolerance():
    return compare_ranks(torch.tensor([1.0 + 1e-7 * rank()]), tolerance=1e-6)


def learns_for_a_step(model: nn.Module, loss) -> list[str]:
    """What differs after a step on inputs that differ."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loss(torch.full((1, 2), rank() + 1.0)).backward()
    optimizer.step()
    return compare_ranks(model)


def a_parameter_put_in_after_the_wrap():
    model = DistributedDataParallel(nn.Linear(2, 1))
    model.module.scale = nn.Parameter(torch.ones(1))
    return learns_for_a_step(model, lambda x: (model(x) + model.module.scale * x.sum()).sum())


def a_layer_put_in_after_the_wrap():
    model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2)))
    model.module.append(nn.Linear(2, 1, bias=False))
    return learns_for_a_step(model, lambda x: model(x).sum())


def a_parameter_put_in_on_one_rank_after_the_wrap():
    model = DistributedDataParallel(nn.Linear(2, 1))
    if rank() == 1:
        model.module.extra = nn.Parameter(torch.ones(1))
    return compare_ranks(model)


def a_parameter_that_ddp_was_told_to_leave_alone():
    model = nn.Sequential(nn.Linear(2, 1))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["0.bias"])
    model = DistributedDataParallel(model)
    return learns_for_a_step(model, lambda x: (model(x) * x.sum()).sum())


def shards_drawn_from_one_seed():
    return compare_ranks(should_differ=torch.randn(4))


def shards_of_which_two_are_the_same():
    torch.manual_seed(rank() // 2)
    return compare_ranks(torch.ones(1), should_differ=(torch.arange(4) + rank(), {"inputs": torch.randn(4)}))


def sharded_weights_made_from_one_seed():
    return compare_ranks(should_differ=[nn.Linear(2, 2, bias=False)])


def dropout_masks_from_one_seed():
    return compare_ranks(should_differ=torch.get_rng_state())


def shards_of_their_own():
    data = torch.arange(12).reshape(4, 3)
    return compare_ranks(should_differ=(data[:, rank()], data[4 * rank() :]))


def both_at_once():
    return compare_ranks(torch.full((1,), rank()), should_differ=torch.zeros(1))


@pytest.mark.parametrize(
    ("fn", "starts"),
    [
        (replicas_of_one_seed, []),
        (
            weights_of_another_seed,
            [
                'parameter "bias" differs: ranks 0 and 2 against rank 1, rank 1 from rank 0 by up to ',
                'parameter "weight" differs: ranks 0 and 2 against rank 1, rank 1 from rank 0 by up to ',
            ],
        ),
        (
            only_the_bias_is_off,
            ['parameter "1.bias" differs: ranks 0 and 1 against rank 2, rank 2 from rank 0 by up to 0.5'],
        ),
        (
            running_means_of_local_batches,
            [
                'buffer "running_mean" differs: rank 0 against rank 1 against rank 2, rank ',
                'buffer "running_var" differs: rank 0 against rank 1 against rank 2, rank ',
            ],
        ),
        (
            gradients_without_all_reduce,
            [
                'tensor "weight.grad" differs: rank 0 against rank 1 against rank 2, rank 2 from rank 0 by up to 2',
            ],
        ),
        (moments_of_local_gradients, ['optimizer state "0.exp_avg" differs', 'optimizer state "0.exp_avg_sq" differs']),
        (
            random_numbers_drawn_on_one_rank,
            [f"random state of {name} differs: rank 0 against ranks 1 and 2" for name in ("numpy", "random", "torch")],
        ),
        (dropout_drawn_on_one_rank, ["random state of torch differs: ranks 0 and 2 against rank 1"]),
        (
            tied_embedding_updated_on_one_stage,
            ['tensor "0" differs: rank 0 against ranks 1 and 2, rank 2 from rank 0 by up to 0.2'],
        ),
        (shapes_that_differ, ['tensor "x" differs: ranks 0 and 2 have float32[2], rank 1 has float32[3]']),
        (a_name_that_one_rank_lacks, ['tensor "extra" is missing on ranks 1 and 2']),
        (a_nan_on_one_rank, ['tensor "0" differs: ranks 0 and 1 against rank 2, rank 2 from rank 0 by up to inf']),
        (rounding_within_the_tolerance, []),
        (
            a_parameter_put_in_after_the_wrap,
            [
                'parameter "module.scale" differs: rank 0 against rank 1 against rank 2, rank 2 from rank 0 by up to '
                "4; it was put into the module after the DDP wrap, so nobody averages its gradient"
            ],
        ),
        (a_layer_put_in_after_the_wrap, ['parameter "module.1.weight" differs: ']),
        (
            a_parameter_put_in_on_one_rank_after_the_wrap,
            ['parameter "module.extra" is missing on ranks 0 and 2; it was put into the module after the DDP wrap'],
        ),
        (a_parameter_that_ddp_was_told_to_leave_alone, ['parameter "module.0.bias" differs: rank 0 against']),
        (
            shards_drawn_from_one_seed,
            ['tensor "0" is the same on ranks 0-2 and ought to differ: did every rank draw from one seed'],
        ),
        (shards_of_which_two_are_the_same, ['tensor "inputs" is the same on ranks 0 and 1 and ought to differ']),
        (sharded_weights_made_from_one_seed, ['parameter "weight" is the same on ranks 0-2 and ought to differ']),
        (dropout_masks_from_one_seed, ['tensor "0" is the same on ranks 0-2 and ought to differ']),
        (shards_of_their_own, []),
        (both_at_once, ['tensor "0" differs', 'tensor "0" is the same on ranks 0-2 and ought to differ']),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_differs_between_ranks_is_named(fn, starts):
    lines = everywhere(fn)
    assert len(lines) == len(starts) and all(map(str.startswith, lines, starts)), lines


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(
        RankError, match="compare_ranks expects modules, optimizers, tensors or dicts of tensors, got 3"
    ):
        run(lambda: compare_ranks(3), ranks=2, device="cpu")
    with pytest.raises(RankError, match="compare_ranks expects modules, .* got 'shard'"):
        run(lambda: compare_ranks(should_differ="shard"), ranks=2, device="cpu")


def test_a_parameter_that_ddp_was_told_to_leave_alone_was_not_put_in_late():
    (line,) = everywhere(a_parameter_that_ddp_was_told_to_leave_alone)
    assert "after the DDP wrap" not in line


def test_a_forgotten_set_epoch_repeats_the_order():
    def orders(sets_epoch: bool):
        sampler = DistributedSampler(range(11))
        found = []
        for epoch in (0, 1):
            if sets_epoch:
                sampler.set_epoch(epoch)
            found.append(list(sampler))
        return found

    assert all(first == second for first, second in run(orders, False, ranks=2, device="cpu").values)
    assert all(first != second for first, second in run(orders, True, ranks=2, device="cpu").values)


def test_gradients_averaged_at_every_micro_batch_show_in_the_recording():
    def accumulate(waits_for_the_last: bool):
        model = DistributedDataParallel(nn.Linear(1, 1))
        for step in range(4):
            with model.no_sync() if waits_for_the_last and step < 3 else contextlib.nullcontext():
                model(torch.ones(1, 1)).sum().backward()

    def all_reduces(waits_for_the_last: bool) -> int:
        recording = run(accumulate, waits_for_the_last, ranks=2, device="cpu").recording
        return len(recording.messages(0, "all_reduce"))

    assert (all_reduces(True), all_reduces(False)) == (1, 4)
