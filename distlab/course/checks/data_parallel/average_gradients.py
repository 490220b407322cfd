"""The check of average_gradients: one process's gradients, weighted by rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from distlab.course.checks.data_parallel.common import (
    Tensors,
    bytes_sent,
    gradients_of,
    listed,
    mean_of,
    misconceptions,
    times,
    with_ranks,
)
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import RankFailed, Trial


def small_model(tied: bool = False, frozen: bool = False) -> nn.Sequential:
    """Two layers, on request with one weight for both and with a frozen bias."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).double()
    if tied:
        model[1].weight = model[0].weight
    if frozen:
        model[0].bias.requires_grad_(False)
    return model


def _coded(model: nn.Module, rank: int) -> Tensors:
    """Rank r's gradients: 1, 2, 3, … times 10^r, so that a digit says whose share it is; 0 for what is frozen."""
    sizes = [p.numel() for p in model.parameters()]
    numbers = (torch.arange(1, sum(sizes) + 1, dtype=torch.float64) * 10**rank).split(sizes)
    return {name: values.view_as(p) * p.requires_grad for (name, p), values in zip(model.named_parameters(), numbers)}


def _is_none(name: str, rank: int, rows: list[int], absent: bool) -> bool:
    return not rows[rank] or (absent and rank == 1 and name == "1.bias")


def averaged(average_gradients, rows: list[int], absent: bool, kind: dict) -> tuple[Tensors, bool]:
    """On a rank: its gradients after ``average_gradients``, and whether a frozen parameter got one.

    ``rows`` are every rank's; one without rows has no gradients. ``absent`` takes one away on rank 1.
    """
    rank = dist.get_rank()
    model = small_model(**kind)
    coded = _coded(model, rank)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not _is_none(name, rank, rows, absent):
            parameter.grad = coded[name]
    average_gradients(model, rows[rank])
    frozen_got_one = any(p.grad is not None for p in model.parameters() if not p.requires_grad)
    return gradients_of(model), frozen_got_one


def check_average_gradients(learners: Callable[[nn.Module, int], None], trial: Trial) -> str:
    """Tries ``average_gradients`` on even and uneven shards, then on models that make it hard."""
    for rows in ([2, 2, 2], [3, 2, 2], [5]):
        _try_average(learners, trial, rows)
    _try_average(learners, trial, [3, 3, 2, 2], tied=True, frozen=True)
    _try_average(learners, trial, [3, 2, 2], absent=True)
    _try_average(learners, trial, [1, 0])
    return (
        "on every rank, every gradient is the mean over the whole batch, weighted by rows; with 1 to 4 ranks, "
        "uneven and empty shards, tied and frozen parameters, and a parameter without a gradient"
    )


def _try_average(learners, trial: Trial, rows: list[int], absent: bool = False, **kind: bool) -> None:
    ranks, some_are_none = len(rows), absent or 0 in rows
    case = f"{with_ranks(ranks)} holding {listed(rows)} rows"
    if some_are_none:
        case += f", {'one .grad' if absent else 'every .grad'} None on rank 1"
    try:
        run = trial.watch(case, averaged, learners, rows, absent, kind, ranks=ranks)
    except RankFailed as failed:
        raise failed.because(*_why_none_fails(failed)) if some_are_none else failed from None
    model = small_model(**kind)
    own = [
        {n: g * (not _is_none(n, rank, rows, absent)) for n, g in _coded(model, rank).items()} for rank in range(ranks)
    ]
    gradients, frozen_got_one = zip(*run.values)
    wide = rows.index(min(rows))
    fields = dict(ranks=ranks, total=sum(rows), wide=wide)
    compare(f"{case}, the gradients", gradients, [mean_of(own, rows)] * ranks, _wrong_averages(own, rows), **fields)
    if any(frozen_got_one):
        raise Wrong(case, "a frozen parameter's .grad: expected None, got a tensor", ("frozen",))
    _count_bytes(case, bytes_sent(run.recording, {"all_reduce", "broadcast", "all_gather"}), model)


def _count_bytes(case: str, sent: int, model: nn.Module) -> None:
    """Raises Wrong if more was sent than each trainable parameter once; a bucket may hold the number of rows too."""
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    listed_twice = sum(p.numel() for layer in model for p in layer.parameters() if p.requires_grad)
    frozen = sum(p.numel() for p in model.parameters()) - trainable
    wanted = 8 * trainable
    if sent > wanted + 8:
        known = {8 * (trainable + frozen): ("frozen",)} if frozen else {}
        known |= {8 * listed_twice: ("tied-twice",)} if listed_twice > trainable else {}
        detail = f"bytes of gradients that rank 0 sent: expected {wanted}, got {sent}"
        raise Wrong(case, detail, known.get(sent, ()))


def _wrong_averages(own: list[Tensors], rows: list[int]) -> dict[str, list[Tensors]]:
    """What each misconception would have left, by rank."""
    ranks = len(rows)
    mean, mean_of_means = mean_of(own, rows), mean_of(own)
    return {
        "sum": [times(mean_of_means, ranks)] * ranks,
        "weighted-sum": [times(mean, sum(rows))] * ranks,
        "halved": [times(mean_of_means, ranks / 2)] * ranks,
        "mean-of-means": [mean_of_means] * ranks,
        "divided-twice": [times(mean, 1 / ranks)] * ranks,
        "by-ranks": [times(mean, sum(rows) / ranks)] * ranks,
        "own-rows": [times(mean, sum(rows) / max(n, 1)) for n in rows],
        "kept": own,
        "rank-0": [own[0]] * ranks,
    }


def _why_none_fails(failed: RankFailed) -> tuple[str, ...]:
    """Which misconception about a .grad of None shows as this failure, if one does."""
    cause, verdict = failed.error.failures[failed.error.rank], failed.error.verdict
    if cause.kind == "raised" and "NoneType" in cause.message:
        return ("none-raises",)
    if "different dtypes" in verdict or "dtype" in cause.message:
        return ("float32-zeros",)
    if cause.kind == "raised":
        return ()
    return ("leaves-idle",) if "never joined all_reduce #1," in verdict else ("skips-none",)


AVERAGE_GRADIENTS = Exercise(
    "average_gradients",
    check_average_gradients,
    misconceptions=misconceptions(
        sum="Every gradient is {ranks} times too large: summed over {ranks} ranks, never divided.",
        weighted_sum="Every gradient is {total} times too large: summed over {total} rows, never divided.",
        halved="The sum is divided by 2, however many ranks there are; here it is {ranks}.",
        mean_of_means="This is the mean of the {ranks} ranks' means. A row on rank {wide} counts for more in it "
        "than a row on rank 0, which has more of them: weight each gradient by its number of rows.",
        divided_twice="Every gradient is {ranks} times too small: a mean over all rows, and then divided by {ranks} "
        "ranks too.",
        by_ranks="The sum over rows is divided by the {ranks} ranks; divide it by the {total} rows of all ranks.",
        own_rows="The sum over rows is divided by this rank's own number of rows; divide it by the {total} of all "
        "ranks.",
        kept="Every rank still has its own gradients: what was sent did not arrive in .grad.",
        rank_0="Every rank has rank 0's gradients; those of the others are lost.",
        skips_none="A rank skipped a parameter because its .grad is None there, and the others waited for it in "
        "vain: all ranks must make the same calls, so None counts as zeros.",
        leaves_idle="A rank without rows returned before the first all_reduce, and the others waited for it in vain: "
        "it has zeros to give, and takes part.",
        float32_zeros="The zeros for a .grad of None have another dtype than the gradients: use "
        "torch.zeros_like(parameter).",
        none_raises="A .grad is None where no row of this rank used the parameter: it counts as zeros.",
        tied_twice="Tied weights were sent once for each layer that uses them: model.parameters() lists them once.",
        frozen="A frozen parameter (requires_grad=False) was averaged too: bytes sent for nothing, and now an "
        "optimizer may move it.",
    ),
    hints=(
        "The mean over all rows is (Σ rows × gradient) / (Σ rows). Both sums run over the ranks: dist.all_reduce "
        "makes such a sum, in place, on every rank.",
        "First all_reduce a tensor that holds num_rows: that is the total. Then, for each parameter with "
        "requires_grad: put zeros where .grad is None, multiply it by num_rows, all_reduce it, divide it by the total.",
    ),
)
