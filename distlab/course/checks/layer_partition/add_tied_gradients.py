"""The check of add_tied_gradients: two copies of one weight get the sum of their gradients, and stay equal."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from distlab.course.checks.layer_partition.common import misconceptions, named, with_ranks
from distlab.course.compare import compare, difference
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import RankFailed, Trial
from distlab.events import Message
from distlab.ranks.output import name_ranks

_SHAPE = (3, 2)


def _own(rank: int, step: int) -> torch.Tensor:
    """Rank r's gradient at a step: 1, 2, 3, … times 10^r, so that a digit says whose part it is."""
    numbers = torch.arange(1, 7, dtype=torch.float64).view(_SHAPE)
    return numbers * 10**rank * (step + 1)


def tied(add_tied_gradients, holders: list[int], num_steps: int, absent: bool) -> list[dict]:
    """On a rank: its copy of a weight that the ``holders`` hold, and its gradient, step by step.

    ``absent``: at step 1, the last of them has not used the weight.
    """
    rank, last = dist.get_rank(), holders[-1]
    group = dist.new_group(holders)
    weight = nn.Parameter(torch.ones(_SHAPE, dtype=torch.float64)) if rank in holders else None
    steps = []
    for step in range(num_steps):
        if weight is not None:
            weight.grad = None if absent and rank == last and step == 0 else _own(rank, step)
        add_tied_gradients(weight, group)
        if weight is not None:
            steps.append(dict(gradient=weight.grad.clone(), weight=weight.detach().clone()))
            with torch.no_grad():
                weight -= 0.1 * weight.grad
    return steps


def check_add_tied_gradients(learners: Callable, trial: Trial) -> str:
    """Tries ``add_tied_gradients`` where all ranks hold the weight, where some do not, and on one rank."""
    for ranks, holders, absent in (
        (2, [0, 1], False),
        (3, [0, 2], False),
        (1, [0], False),
        (4, [1, 2], False),
        (2, [0, 1], True),
    ):
        _try_tied(learners, trial, ranks, holders, absent)
    return (
        "both copies get the sum of both gradients, and are equal after every step; ranks without a copy take no part; "
        "with 1 to 4 ranks, and whichever of them hold a copy"
    )


def _try_tied(learners, trial: Trial, ranks: int, holders: list[int], absent: bool) -> None:
    num_steps = 1 if absent else 2
    case = f"{with_ranks(ranks)}, the weight on {name_ranks(holders)}"
    case += f", .grad None on rank {holders[-1]}" if absent else ""
    try:
        run = trial.watch(case, tied, learners, holders, num_steps, absent, ranks=ranks)
    except RankFailed as failed:
        cause = failed.error.failures[failed.error.rank]
        if cause.kind == "raised" and absent:
            raise failed.because("none-raises") from None
        raise named(failed, _words(ranks)) from None

    def by_rank(values: list) -> list:
        """One value for each holder, spread over the ranks; None elsewhere."""
        return [values[holders.index(rank)] if rank in holders else None for rank in range(ranks)]

    for step in range(num_steps):
        parts = [_own(rank, step) * (not absent or rank == holders[0]) for rank in holders]
        came = [run.values[rank][step]["gradient"] for rank in holders]
        want = [sum(parts)] * len(holders)
        first, last = parts[0], parts[-1]
        beliefs = {
            "kept": parts,
            "mean": [sum(parts) / ranks] * len(holders),
            "one-side": [sum(parts), last],
            "first-copied": [first] * len(holders),
        }
        if run.recording.messages(kind="reduce") and not difference(came[0], want[0]):
            beliefs["one-side"] = came  # what reduce leaves elsewhere is nobody's promise
        beliefs = {id: by_rank(values) for id, values in beliefs.items() if len(values) == len(holders)}
        compare(f"{case}, step {step + 1}, the gradients of the copies", by_rank(came), by_rank(want), beliefs)
        weights = [run.values[rank][step]["weight"] for rank in holders]
        expected = torch.ones(_SHAPE, dtype=torch.float64)
        for done in range(step):
            expected = expected - 0.1 * sum(_own(rank, done) for rank in holders)
        right, mixed = by_rank([expected] * len(holders)), by_rank([expected * len(holders)] * len(holders))
        compare(f"{case}, step {step + 1}, the weight", by_rank(weights), right, {"weights": mixed})
    _count(case, run.recording, holders, num_steps)


def _count(case: str, recording, holders: list[int], num_steps: int) -> None:
    for rank, history in enumerate(recording.ranks):
        moved = [e for e in history if isinstance(e, Message) and e.bytes]
        want = num_steps if rank in holders else 0
        if rank not in holders and moved:
            detail = f"rank {rank} holds no copy: expected no messages of it, got {len(moved)}"
            raise Wrong(case, detail, ("everyone",))
        if len(moved) > want and len(holders) > 1:
            detail = f"messages and collectives of rank {rank}: expected {want}, one a step, got {len(moved)}"
            raise Wrong(case, detail, ())
    outside = next((note for note in recording.notes if "on a group that it is not in" in note), None)
    if outside:
        raise Wrong(case, outside, ("outside",))


def _words(ranks: int) -> dict[str, str | None]:
    return {
        "everyone": "1 returned and never joined" if ranks > 2 else None,
        "none": "'NoneType' object has no attribute",
    }


ADD_TIED_GRADIENTS = Exercise(
    "add_tied_gradients",
    check_add_tied_gradients,
    misconceptions=misconceptions(
        kept="Each copy keeps its own part of the gradient. The weight is used at both ends, so its gradient is the "
        "sum of the two parts; like this the copies drift apart.",
        mean="The sum was divided, as for a mean. The copies are no replicas that saw different rows: one weight was "
        "used twice, and its gradient is the sum of both parts.",
        one_side="Only rank 0 has the sum: the copies are equal now, and drift apart with the next step. Both need it, "
        "and all_reduce leaves it on both.",
        first_copied="Both copies have rank 0's part; that of the last rank is lost.",
        weights="The weights were added up, not their gradients.",
        outside="A rank without a copy called a collective of a group that it is not in. Nothing happens there, by "
        "luck: where weight is None, return.",
        everyone="The ranks without a copy take no part. Say which group the collective is for: group=group.",
        none="A rank without a copy has None for a weight, and nothing to do. Which ranks those are depends on the "
        "group: ask whether weight is None.",
        none_raises="A .grad is None where the weight was not used: it counts as zeros, and the other rank waits.",
    ),
    hints=(
        "One collective makes a sum and leaves it on every member of a group. Ranks without a copy skip it.",
        "dist.all_reduce(weight.grad, group=group). Before it, on the ranks that hold a copy, put "
        "torch.zeros_like(weight) where .grad is None.",
    ),
    further=True,
)
