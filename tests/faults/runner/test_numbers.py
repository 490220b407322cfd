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
