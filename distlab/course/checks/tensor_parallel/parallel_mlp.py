"""The check of ParallelMLP: a column cut, GELU, a row cut, and one all-reduce each way."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from distlab.course.checks.tensor_parallel.common import (
    Groups,
    bytes_held,
    compare_memory,
    count,
    enter,
    filled,
    forward_and_backward,
    gradients,
    in_own_group,
    in_words,
    misconceptions,
    random,
    share_by_rank,
    watch,
)
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import Trial
from distlab.models import MLP
from distlab.ranks.outcome import Run

PLACES = 2, 3
CASES: tuple[tuple[Groups, int], ...] = (([[0, 1]], 6), ([[0, 1, 2]], 5), ([[0]], 5), ([[0, 1], [2, 3]], 5))


def size_of(width: int) -> int:
    """The elements of x."""
    return PLACES[0] * PLACES[1] * width


def driven(mlp_class: type, seed: int, groups: Groups, width: int) -> dict:
    """On a rank: y and all gradients, and the bytes that the rank's part keeps."""
    layer = mlp_class(filled(MLP(width), seed), group=enter(groups))
    held = bytes_held(layer)
    found = forward_and_backward(layer, random(seed + 10, *PLACES, width), random(seed + 11, *PLACES, width))
    return found | dict(parameters=gradients(layer), bytes=held)


def check_parallel_mlp(learners: type, trial: Trial) -> str:
    """Tries ``ParallelMLP`` against the whole MLP."""
    for groups, width in CASES:
        case, sums = f"{in_words(groups)} and width {width}", size_of(width)
        because = dict(group_as_rows="is not iterable")
        if len(groups) == 1:
            because["swapped"] = "mat1 and mat2"
        run = watch(trial, case, driven, learners, trial.seed, groups, width, groups=groups, **because)
        _refuse_gathering(case, run, sums)
        in_own_group(case, run, groups)
        _compare(case, run.values, groups, width, trial.seed)
        for name in ("forward", "backward"):
            count(f"{case}, messages", run, name, {"all_reduce": 1}, sums)
    return (
        "y and all gradients are those of the whole MLP, with one all-reduce forward and one backward; on 1 to 3 ranks "
        "and in two groups"
    )


def _refuse_gathering(case: str, run: Run, sums: int) -> None:
    """Raises Wrong if something was gathered; an all-reduce sends twice what an all-gather of its size does."""
    gathered = [m.elements for m in run.recording.messages(0, "all_gather")]
    if gathered:
        known = ("gathers",) if sum(gathered) == 5 * sums else ()
        detail = f"expected one all-reduce forward, got all_gather of {' and '.join(map(str, gathered))} elements"
        raise Wrong(f"{case}, messages", detail, known, ratio=f"{5 * sums / (2 * sums):g}")


def _compare(case: str, found: list[dict], groups: Groups, width: int, seed: int) -> None:
    whole, x = filled(MLP(width), seed), random(seed + 10, *PLACES, width).requires_grad_()
    y = whole(x)
    y.backward(random(seed + 11, *PLACES, width))
    ranks, size = len(found), len(groups[0])
    with torch.no_grad():
        beliefs = {
            "no-gelu": [whole.down(whole.up(x))] * ranks,
            "gelu-late": [F.gelu(whole.down(whole.up(x)))] * ranks,
            "other-curve": [whole.down(F.relu(whole.up(x)))] * ranks,
            "sums-twice": [size * y] * ranks,
        }
    compare(f"{case}, y", [one["y"] for one in found], [y.detach()] * ranks, beliefs, ranks=size)
    got = [one["grad_x"] for one in found]
    beliefs = {"back-twice": [size * x.grad] * ranks}
    compare(f"{case}, the gradient of x", got, [x.grad] * ranks, beliefs, ranks=size)
    mine = share_by_rank(4 * width, groups)
    want = [width * len(part) + len(part) + width * len(part) + width for part in mine]
    numbers = [sum(gradient.numel() for gradient in one["parameters"].values()) for one in found]
    everything = [sum(p.numel() for p in whole.parameters())] * ranks
    compare(f"{case}, the number of parameters", numbers, want, {"whole": everything})
    compare_memory(case, [one["bytes"] for one in found], want)
    grads = {name: p.grad for name, p in whole.named_parameters()}
    cut = {"up.weight": 0, "up.bias": 0, "down.weight": 1}
    want = [{name: _part(grad, cut.get(name), part) for name, grad in grads.items()} for part in mine]
    compare(f"{case}, the parameters' gradients", [one["parameters"] for one in found], want)


def _part(tensor: torch.Tensor, axis: int | None, part: list[int]) -> torch.Tensor:
    """A rank's part of a tensor along an axis; all of it if there is none."""
    return tensor if axis is None else tensor.index_select(axis, torch.tensor(part))


PARALLEL_MLP = Exercise(
    "ParallelMLP",
    check_parallel_mlp,
    misconceptions=misconceptions(
        no_gelu="GELU is missing: without it the two layers are a single one.",
        gelu_late="GELU comes after the second layer; it belongs between the two, on this rank's columns.",
        other_curve="Between the layers stands ReLU; the whole MLP has GELU.",
        sums_twice="The sum over the group is taken twice, so with {ranks} ranks it is {ranks} times too large: "
        "RowParallelLinear has taken it already.",
        back_twice="The gradient of x is {ranks} times too large: ColumnParallelLinear has added it up already.",
        gathers="The numbers are right, and they cost {ratio} times what they need to: both layers are cut by columns, "
        "and all outputs are gathered after each, 4 BTD and then BTD elements. Cut the second one by rows: it wants "
        "just those inputs that the rank has.",
        whole="Each rank holds all parameters: nothing is cut.",
        keeps_whole="The whole MLP stays in memory on this rank, although its parameters are not registered: keep the "
        "two cut layers only.",
        swapped="The shapes don't fit. A column cut takes all inputs and gives this rank's outputs; a row cut takes "
        "this rank's inputs and gives all outputs. So up is cut by columns, and down by rows.",
        group_as_rows="The group landed in rows, which is the second argument of ColumnParallelLinear: write "
        "group=group.",
        world="The sum runs over all ranks, and not over the group: hand group on to both layers.",
    ),
    hints=(
        "Which cut needs no message between the two layers? GELU works on each column for itself.",
        "self.up is a ColumnParallelLinear of whole.up, with group=group, self.down a RowParallelLinear of whole.down. "
        "forward: up, F.gelu, down, as in the whole MLP.",
    ),
    uses=("copy_to_group", "reduce_from_group", "ColumnParallelLinear", "RowParallelLinear"),
)
