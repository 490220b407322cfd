"""The check of compute_gradients: the mean loss of one rank's rows, and its gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from distlab.course.checks.data_parallel.common import (
    Tensors,
    copy_of,
    gradients_of,
    listed,
    make_batch,
    misconceptions,
    same_batch,
    times,
    weights_of,
    with_ranks,
)
from distlab.course.compare import compare, difference_by_rank
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import Trial
from distlab.models import mlp


def classifier(seed: int) -> nn.Module:
    """A plain model for batches of ``make_batch``; the same for the same seed."""
    return mlp(4, 5, 3, seed=seed, dtype=torch.float64)


def computed(compute_gradients, seed: int, sizes: list[int]) -> dict:
    """On a rank: what ``compute_gradients`` returns and leaves behind, for as many rows as ``sizes`` says."""
    model = classifier(seed)
    batch = make_batch(seed + dist.get_rank(), sizes[dist.get_rank()])
    given = copy_of(batch)
    loss = compute_gradients(model, *given)
    attached = isinstance(loss, torch.Tensor) and loss.requires_grad
    found = dict(loss=loss, gradients=gradients_of(model), weights=weights_of(model))
    return found | dict(attached=attached, kept=same_batch(batch, given))


def _right_gradients(seed: int, sizes: list[int], loss_of=F.cross_entropy) -> tuple[list, list[Tensors]]:
    """The losses and gradients by rank."""
    losses, gradients = [], []
    for rank, num_rows in enumerate(sizes):
        model = classifier(seed)
        x_BD, y_B = make_batch(seed + rank, num_rows)
        loss = loss_of(model(x_BD), y_B) if num_rows else model(x_BD).sum()
        loss.backward()
        losses.append(loss.detach())
        gradients.append(gradients_of(model))
    return losses, gradients


def _summed(logits_BC, y_B):
    return F.cross_entropy(logits_BC, y_B, reduction="sum")


def _softmax_twice(logits_BC, y_B):
    return F.cross_entropy(logits_BC.softmax(dim=-1), y_B)


def check_compute_gradients(learners: Callable, trial: Trial) -> str:
    """Tries ``compute_gradients`` on a few rows and on none."""
    for sizes in ([4], [3, 2], [2, 2, 0]):
        case = f"{with_ranks(len(sizes))} holding {listed(sizes)} rows"
        found = trial.run(case, computed, learners, trial.seed, sizes, ranks=len(sizes))
        _compare_computed(case, found, trial.seed, sizes)
    return "the mean loss of this rank's rows, detached, and its gradients; zeros on a rank without rows"


def _compare_computed(case: str, found: list[dict], seed: int, sizes: list[int]) -> None:
    losses, gradients = _right_gradients(seed, sizes)
    sums, twice = _right_gradients(seed, sizes, _summed), _right_gradients(seed, sizes, _softmax_twice)
    got = [one["loss"] for one in found]
    _refuse_nan(case, got, sizes)
    float32 = [loss if n else torch.tensor(0.0) for loss, n in zip(losses, sizes)]
    beliefs = {"sum": sums[0], "softmax-twice": twice[0], "float32-zero": float32}
    compare(f"{case}, the loss", got, losses, beliefs)
    none = [times(g, 0) for g in gradients]
    beliefs = {"sum": sums[1], "softmax-twice": twice[1], "no-backward": none}
    compare(f"{case}, the gradients", [one["gradients"] for one in found], gradients, beliefs)
    weights = [weights_of(classifier(seed))] * len(sizes)
    if detail := difference_by_rank([one["weights"] for one in found], weights):
        raise Wrong(f"{case}, the weights", detail, ("moves",))
    if any(one["attached"] for one in found):
        raise Wrong(f"{case}, the loss", "expected requires_grad False, got True", ("attached",))
    if not all(one["kept"] for one in found):
        raise Wrong(case, "expected the rows and labels as they were, got others")


def _refuse_nan(case: str, losses: list, sizes: list[int]) -> None:
    """``nan`` differs from everything, itself too, so that no comparison can name it."""
    for rank, loss in enumerate(losses):
        number = loss.sum().item() if isinstance(loss, torch.Tensor) else loss
        if number != number:
            known = () if sizes[rank] else ("nan",)
            raise Wrong(f"{case}, the loss", f"rank {rank}: expected a number, got nan", known, rank=rank)


COMPUTE_GRADIENTS = Exercise(
    "compute_gradients",
    check_compute_gradients,
    misconceptions=misconceptions(
        sum="The loss is the sum over this rank's rows; their mean is asked for.",
        softmax_twice="The softmax is taken twice: F.cross_entropy expects the model's output as it is.",
        float32_zero="The 0 of a rank without rows is float32 and the other losses are not: torch.tensor(0.0) is "
        "float32, and dtype=x_bD.dtype makes it like them.",
        no_backward="The loss is right, and there are no gradients: loss.backward() is missing, or they were "
        "cleared after it.",
        nan="Rank {rank} has no rows, and the mean of none is 0 / 0: its loss is to be 0.",
        moves="The weights have moved: that is the work of `update`.",
        attached="The loss still holds its graph, and with it all activations: return loss.detach().",
    ),
    hints=(
        "As on one process: loss = F.cross_entropy(…), loss.backward(), return loss.detach(). "
        "Then think of a rank without rows.",
        'F.cross_entropy(…, reduction="sum") of no rows is 0, and so are its gradients. Divide it by the number of '
        "rows, but at least by 1, and it is the mean.",
    ),
)
