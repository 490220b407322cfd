"""The check of epoch_indices: a shuffle that all ranks agree on."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist

from distlab.course.exercise import Exercise, Wrong
from distlab.course.kit.case import with_ranks
from distlab.course.kit.driving import differ_in_hashes
from distlab.course.kit.fixtures import misconceptions, shares
from distlab.course.trial import Trial

_EPOCHS = 5


def shuffled(epoch_indices, num_rows: int) -> dict:
    """On a rank: orders asked for while all ranks' random states are alike, and some when they no longer are."""
    _seed(0)
    alike = epoch_indices(num_rows, 0)
    _seed(0)
    orders = dict(
        alike=alike.clone() if isinstance(alike, torch.Tensor) else alike,
        again=epoch_indices(num_rows, 0),
        later=[epoch_indices(num_rows, epoch) for epoch in range(1, _EPOCHS)],
        other_seed=epoch_indices(num_rows, 0, seed=7),
    )
    _seed(1 + dist.get_rank())
    states = _states()
    with mock.patch("time.time", return_value=1e9 + dist.get_rank()):
        orders["unlike"] = epoch_indices(num_rows, 0)
    orders["left_alone"] = _states() == states
    differ_in_hashes([epoch_indices])
    return orders | dict(hashed=epoch_indices(num_rows, 0))


def _seed(seed: int) -> None:
    torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)


def _states() -> list[str]:
    """The global random states of torch, Python and NumPy."""
    return [str(state) for state in (torch.get_rng_state().tolist(), random.getstate(), np.random.get_state())]


def check_epoch_indices(learners: Callable, trial: Trial) -> str:
    """Looks at the orders that one rank, three and four get."""
    for ranks, num_rows in ((1, 50), (3, 100), (4, 99)):
        case = f"{with_ranks(ranks)} and {num_rows} rows"
        by_rank = trial.run(case, shuffled, learners, num_rows, ranks=ranks)
        for rank, orders in enumerate(by_rank):
            for order in (orders["alike"], *orders["later"], orders["other_seed"], orders["unlike"]):
                _check_form(f"{case}, rank {rank}", order, num_rows, ranks)
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
    hashed = all(torch.equal(orders["hashed"], first["alike"]) for orders in by_rank)
    alike = all(torch.equal(orders["alike"], first["alike"]) for orders in by_rank)
    unlike = all(torch.equal(orders["unlike"], first["alike"]) for orders in by_rank)
    if not alike:
        lost = _lost(by_rank, num_rows)
        detail = f"expected one order for all ranks, got several: {lost} of {num_rows} rows are in no rank's shard"
        raise Wrong(case, detail, ("rank-in-seed",) if repeats else (), lost=lost)
    if not repeats:
        detail = "expected the same order for the same epoch, got another at the second call"
        raise Wrong(case, detail, ("goes-on",))
    if not unlike:
        detail = (
            "expected the same order for the same epoch, got another at another time, with other random numbers drawn"
        )
        raise Wrong(case, detail, ("global-state",))
    if not all(orders["left_alone"] for orders in by_rank):
        raise Wrong(case, "expected the global random state as it was, got another", ("reseeds",))
    if not hashed:
        raise Wrong(case, "expected one order in all processes, got another where Python's hashes differ", ("hash",))


def _lost(by_rank: list[dict], num_rows: int) -> int:
    """How many rows nobody has when each rank takes its shard of its own order."""
    shards = shares(num_rows, len(by_rank))
    return num_rows - len(
        {row for orders, shard in zip(by_rank, shards) for row in orders["alike"][list(shard)].tolist()}
    )


def _share(condition: torch.Tensor) -> float:
    return condition.float().mean().item()


def _pairs(order: torch.Tensor) -> set[tuple[int, int]]:
    """Which rows stand beside each other, the last beside the first."""
    return {(min(pair), max(pair)) for pair in zip(order.tolist(), order.roll(1).tolist())}


def _related(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether an order is the other rolled, turned round, shifted or hardly changed; two shuffles have little alike."""
    shifts = (one - other) % len(one)
    return len(_pairs(one) & _pairs(other)) > len(one) / 3 or _share(shifts == shifts.mode().values) > 1 / 3


def _check_change(case: str, orders: dict) -> None:
    """Raises Wrong unless epochs and seeds make a difference, to the whole order."""
    if torch.equal(orders["alike"], torch.arange(len(orders["alike"]))):
        raise Wrong(case, "expected a random order, got 0, 1, 2, …", ("unshuffled",))
    epochs = list(enumerate([orders["alike"], *orders["later"]]))
    for (earlier, one), (later, other) in itertools.combinations(epochs, 2):
        if torch.equal(one, other):
            detail = f"expected another order in epoch {later} than in epoch {earlier}, got the same"
            raise Wrong(case, detail, ("no-epoch",) if (earlier, later) == (0, 1) else ("comes-back",))
        if _related(one, other):
            detail = f"expected a new order in epoch {later}, got the one of epoch {earlier} with small changes"
            raise Wrong(case, detail, ("related",))
    if torch.equal(orders["alike"], orders["other_seed"]):
        raise Wrong(case, "expected another order for seed 7 than for seed 0, got the same", ("no-seed",))
    if _related(orders["alike"], orders["other_seed"]):
        raise Wrong(case, "expected a new order for seed 7, got that for seed 0 with small changes", ("related",))


EPOCH_INDICES = Exercise(
    "epoch_indices",
    check_epoch_indices,
    misconceptions=misconceptions(
        no_tensor="The order is to be a tensor of whole numbers, so that x_ND[order] takes rows in this order.",
        padded="There are {extra} too many: rows were repeated until {ranks} divides them, and nobody is told. "
        "train_step needs no padding.",
        own_share="This is one rank's share; the order of all rows is asked for. train_step cuts each batch later.",
        repeats="This is no permutation, some rows come twice and others never: torch.randperm makes one.",
        global_state="The order hangs on more than seed and epoch, on the time or the global random state perhaps, and "
        "ranks that have drawn different amounts from that disagree: make a torch.Generator of its own "
        "and pass it, generator=….",
        goes_on="The second call goes on where the first one stopped: something is kept, a generator perhaps. Make and "
        "seed it anew at each call, so that an epoch can be had again.",
        hash="hash() of a text is another number in every process that Python starts, so ranks disagree: combine the "
        "numbers themselves.",
        comes_back="An epoch has the order of an earlier one: let its whole number into the seed.",
        related="Each epoch and each seed must shuffle anew: here an order is another one with small changes, so that "
        "batches hold nearly the same rows.",
        rank_in_seed="The rank is in the seed, so each rank has an order of its own: {lost} rows are used by nobody, "
        "and others several times.",
        reseeds="It sets the global random state, and so changes what others draw: seed a torch.Generator of its own.",
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
