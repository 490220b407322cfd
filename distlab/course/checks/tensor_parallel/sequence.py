"""What the checks of gather_sequence and reduce_scatter_sequence share: both ways of a conjugate pair."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from distlab.course.checks.tensor_parallel.common import (
    Groups,
    count,
    enter,
    forward_and_backward,
    in_own_group,
    members,
    random,
)
from distlab.course.compare import compare
from distlab.course.exercise import Wrong
from distlab.course.trial import Trial
from distlab.ranks.outcome import Run

NUM_ROWS, NUM_PLACES, WIDTH = 2, 6, 3
WHOLE = NUM_ROWS, NUM_PLACES, WIDTH
WORLDS: tuple[Groups, ...] = ([[0, 1]], [[0, 1, 2]], [[0]], [[0, 1], [2, 3]])


def parts_of(x: torch.Tensor, groups: Groups) -> list[torch.Tensor]:
    """By rank, its places of x, which is whole or has a whole x for each rank."""
    parts = []
    for rank, group in enumerate(members(groups)):
        size, place = NUM_PLACES // len(group), group.index(rank)
        parts.append(x[:, place * size : (place + 1) * size])
    return parts


def own(seed: int, rank: int) -> torch.Tensor:
    """A whole tensor of a rank's own."""
    return random(seed + 100 * rank, *WHOLE)


def sums(seed: int, groups: Groups) -> list[torch.Tensor]:
    """By rank, the sum of its group's whole tensors."""
    return [sum(own(seed, rank) for rank in group) for group in members(groups)]


def driven(function: Callable, seed: int, groups: Groups, gathers: bool) -> dict:
    """On a rank: what comes forward and back. Gathering, x is a part of what all ranks share, and each rank's gradient
    is its own; scattering, the other way round."""
    group, rank = enter(groups), dist.get_rank()
    part = parts_of(random(seed, *WHOLE), groups)[rank]
    x, grad_y = (part, own(seed + 1, rank)) if gathers else (own(seed + 1, rank), part)
    return forward_and_backward(function if group is None else lambda x: function(x, group), x, grad_y)


def torn(function: Callable) -> str:
    """On a rank: what it says to five places; "" if it says nothing."""
    try:
        function(torch.ones(1, 5, 2))
    except ValueError as refusal:
        return str(refusal)
    return ""


def check_messages(case: str, run: Run, groups: Groups, ways: dict[str, str]) -> None:
    """Raises Wrong unless the one message each way is of the right kind; an all-reduce is named."""
    for name, kind in ways.items():
        reduced = [m for m in run.recording.messages(0, "all_reduce") if m.elements]
        if reduced and len(groups[0]) > 1:
            detail = f"expected {kind} {name}, got all_reduce of {reduced[0].elements} elements"
            raise Wrong(f"{case}, messages", detail, ("all-reduce",))
        count(f"{case}, messages", run, name, {kind: 1}, NUM_ROWS * NUM_PLACES * WIDTH)


def whole_from(parts: list[torch.Tensor], groups: Groups) -> list[torch.Tensor]:
    return [torch.cat([parts[rank] for rank in group], dim=1) for group in members(groups)]


def compare_both(
    case: str, found: list[dict], y: list, grad_x: list, wrong_y: dict, wrong_grad: dict, **fields
) -> None:
    """Compares what came forward and back."""
    compare(f"{case}, y", [one["y"] for one in found], y, wrong_y, **fields)
    compare(f"{case}, the gradient of x", [one["grad_x"] for one in found], grad_x, wrong_grad, **fields)
    if not all(one["kept"] for one in found):
        raise Wrong(case, "expected x and the gradient of y as they were, got others", ("writes",))


def run_on(trial: Trial, case: str, learners: Callable, groups: Groups, gathers: bool) -> Run:
    """Runs ``driven``, and raises Wrong if a message went through another group."""
    run = trial.watch(case, driven, learners, trial.seed, groups, gathers, ranks=sum(map(len, groups)))
    in_own_group(case, run, groups)
    return run
