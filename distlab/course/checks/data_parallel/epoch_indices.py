"""The check of epoch_indices: a shuffle that all ranks agree on."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from distlab.course.exercise import Exercise, Wrong
from distlab.course.kit.case import with_ranks
from distlab.course.kit.fixtures import misconceptions, shares
from distlab.course.trial import Trial


def shuffled(epoch_indices, num_rows: int) -> dict:
    """On a rank: orders asked for while all ranks' random states are alike, and one when they no longer are."""
    orders = dict(
        alike=epoch_indices(num_rows, 0),
        again=epoch_indices(num_rows, 0),
        later=epoch_indices(num_rows, 1),
        other_seed=epoch_indices(num_rows, 0, seed=7),
    )
    torch.rand(dist.get_rank() + 1)
    state = torch.get_rng_state()
    orders["unlike"] = epoch_indices(num_rows, 0)
    return orders | dict(left_alone=torch.equal(state, torch.get_rng_state()))


def check_epoch_indices(learners: Callable, trial: Trial) -> str:
    """Looks at the orders that one rank, three and four get."""
    for ranks, num_rows in ((1, 50), (3, 100), (4, 99)):
        case = f"{with_ranks(ranks)} and {num_rows} rows"
        by_rank = trial.run(case, shuffled, learners, num_rows, ranks=ranks)
        for rank, orders in enumerate(by_rank):
            _check_form(f"{case}, rank {rank}", orders["alike"], num_rows, ranks)
        _check_agreement(case, by_rank, num_rows)
        _check_change(case, by_rank[0])
    return "all ranks get the same order of all rows, a new one each epoch, and the global random state is left alone"


def _check_form(case: str, order, num_rows: int, ranks: int) -> None:
    """Raises Wrong unless ``order`` is a permutation of all rows."""
    if not isinstance(order, torch.Tensor) or order.dtype != torch.long or order.dim() != 1:
        got = f"{order.dtype}, shape {tuple(order.shape)}" if isinstance(order, torch.Tensor) else type(order).__name__
        raise Wrong(case, f"expected a tensor, torch.int64, shape ({num_rows},), got {got}", ("no-tensor",))
    extra = len(order) - num_rows
    if extra:
        is_share = ranks > 1 and abs(len(order) - num_rows / ranks) < 1
        known = ("padded",) if extra > 0 else ("own-share",) if is_share else ()
        detail = f"expected {num_rows} numbers, got {len(order)}"
        raise Wrong(case, detail, known, num_rows=num_rows, ranks=ranks, extra=extra)
    absent = sorted(set(range(num_rows)) - set(order.tolist()))
    if absent:
        detail = f"expected every row once; {len(absent)} never come, row {absent[0]} for instance"
        raise Wrong(case, detail, ("repeats",))


def _check_agreement(case: str, by_rank: list[dict], num_rows: int) -> None:
    """Raises Wrong unless all ranks have the same order, whatever else they drew."""
    first = by_rank[0]
    repeats = torch.equal(first["alike"], first["again"])
    alike = all(torch.equal(orders["alike"], first["alike"]) for orders in by_rank)
    unlike = all(torch.equal(orders["unlike"], first["alike"]) for orders in by_rank)
    if not alike:
        lost = _lost(by_rank, num_rows)
        detail = f"expected one order for all ranks, got several: {lost} of {num_rows} rows are in no rank's shard"
        raise Wrong(case, detail, ("rank-in-seed",) if repeats else (), lost=lost)
    if not (repeats and unlike):
        detail = "expected the same order for the same epoch, got another after other random numbers were drawn"
        raise Wrong(case, detail, ("global-state",))
    if not all(orders["left_alone"] for orders in by_rank):
        raise Wrong(case, "expected torch's global random state as it was, got another", ("reseeds",))


def _lost(by_rank: list[dict], num_rows: int) -> int:
    """How many rows nobody has when each rank takes its shard of its own order."""
    shards = shares(num_rows, len(by_rank))
    return num_rows - len(
        {row for orders, shard in zip(by_rank, shards) for row in orders["alike"][list(shard)].tolist()}
    )


def _check_change(case: str, orders: dict) -> None:
    """Raises Wrong unless epochs and seeds make a difference."""
    if torch.equal(orders["alike"], torch.arange(len(orders["alike"]))):
        raise Wrong(case, "expected a random order, got 0, 1, 2, …", ("unshuffled",))
    if torch.equal(orders["alike"], orders["later"]):
        raise Wrong(case, "expected another order in epoch 1 than in epoch 0, got the same", ("no-epoch",))
    if torch.equal(orders["alike"], orders["other_seed"]):
        raise Wrong(case, "expected another order for seed 7 than for seed 0, got the same", ("no-seed",))


EPOCH_INDICES = Exercise(
    "epoch_indices",
    check_epoch_indices,
    misconceptions=misconceptions(
        no_tensor="The order is to be a tensor of whole numbers, so that x_ND[order] takes rows in this order.",
        padded="There are {extra} too many: rows were repeated until {ranks} divides them, and nobody is told. "
        "train_step needs no padding.",
        own_share="This is one rank's share; the order of all rows is asked for. train_step cuts each batch later.",
        repeats="This is no permutation, some rows come twice and others never: torch.randperm makes one.",
        global_state="The order hangs on more than seed and epoch, on the global random state perhaps, and ranks "
        "that have drawn different amounts from that disagree: make a torch.Generator of its own "
        "and pass it, generator=….",
        rank_in_seed="The rank is in the seed, so each rank has an order of its own: {lost} rows are used by nobody, "
        "and others several times.",
        reseeds="It sets torch's global random state, and so changes what others draw: seed a torch.Generator of "
        "its own.",
        unshuffled="The rows come in the order in which they are stored.",
        no_epoch="Every epoch has the same order: let the epoch into the seed.",
        no_seed="The seed makes no difference: let it in beside the epoch.",
    ),
    hints=(
        "All ranks must get the same order without a message: let it follow from seed and epoch alone. "
        "torch.Generator() has a random state of its own, apart from the global one.",
        'torch.Generator().manual_seed(seed + epoch), then torch.randperm(num_rows, generator=…, device="cpu").',
    ),
)
