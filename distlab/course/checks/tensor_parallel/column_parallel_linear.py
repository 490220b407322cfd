"""The check of ColumnParallelLinear: some of the outputs, each complete."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from distlab.course.checks.tensor_parallel.common import (
    WORLDS,
    Groups,
    all_say,
    bytes_held,
    compare_memory,
    copies,
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

NUM_IN, NUM_OUT, PLACES = 4, 7, (2, 3)
ODD_ROWS = [5, 0]  # which some ask for by number


def whole_linear(seed: int, num_in: int = NUM_IN, num_out: int = NUM_OUT, bias: bool = True) -> nn.Linear:
    return filled(nn.Linear(num_in, num_out, bias=bias), seed)


def driven(layer_class: type, seed: int, options: dict, groups: Groups, rows: list[int] | None) -> dict:
    """On a rank: the layer's parameters and the bytes it keeps; if those are of the right shapes on all ranks, y, the
    gradients of x and of the parameters too, and whether x and the whole layer are as they were."""
    whole = whole_linear(seed, **options)
    before = copies(whole)
    mine = share_by_rank(NUM_OUT, groups)[dist.get_rank()] if rows is None else rows
    layer = layer_class(whole, **({} if rows is None else {"rows": rows}), group=enter(groups))
    found = dict(built=copies(layer), bytes=bytes_held(layer))
    shapes = {name: parameter.detach()[mine].shape for name, parameter in whole.named_parameters()}
    if all_say({name: p.shape for name, p in layer.named_parameters()} == shapes):
        x, grad_y = random(seed + 10, *PLACES, NUM_IN), random(seed + 11, *PLACES, NUM_OUT)[..., mine]
        found |= forward_and_backward(layer, x, grad_y)
        found["kept"] &= all(torch.equal(before[name], now) for name, now in copies(whole).items())
        found["parameters"] = gradients(layer)
    return found


def check_column_parallel_linear(learners: type, trial: Trial) -> str:
    """Tries the layer's parameters first, then y, the gradients and the messages."""
    for groups in WORLDS:
        _try(learners, trial, groups, {}, None)
    _try(learners, trial, [[0, 1]], {"bias": False}, ODD_ROWS)
    return (
        "each rank holds its rows of the weight, the outputs and all gradients are those of the whole layer, and one "
        "all-reduce goes backward; on 1 to 3 ranks and in two groups, with outputs that don't divide"
    )


def _try(learners: type, trial: Trial, groups: Groups, options: dict, rows: list[int] | None) -> None:
    case = f"{in_words(groups)} and {NUM_OUT} outputs{'' if rows is None else f', rows {rows}'}"
    case += "" if options.get("bias", True) else ", without a bias"
    mine = share_by_rank(NUM_OUT, groups) if rows is None else [rows] * len(groups[0])
    whole = whole_linear(trial.seed, **options)
    arguments = learners, trial.seed, options, groups, rows
    run = watch(
        trial, case, driven, *arguments, groups=groups, no_bias="'NoneType'", columns="out of bounds|out of range"
    )
    built, held = ([one[what] for one in run.values] for what in ("built", "bytes"))
    _compare_parameters(case, built, held, whole, mine, rows)
    in_own_group(case, run, groups)
    _compare_results(case, run.values, whole, mine, trial.seed)
    size = PLACES[0] * PLACES[1] * NUM_IN
    count(f"{case}, messages", run, "forward", {}, 0)
    count(f"{case}, messages", run, "backward", {"all_reduce": 1}, size)


def _compare_parameters(case: str, got: list, held: list, whole: nn.Linear, mine: list, rows) -> None:
    want = [{name: p.detach()[of_rank] for name, p in whole.named_parameters()} for of_rank in mine]
    compare(f"{case}, the parameters", [sorted(one) for one in got], [sorted(one) for one in want])
    ranks, everyone = len(mine), [list(range(len(mine)))]
    for name, parameter in copies(whole).items():
        beliefs = {
            "whole" if name == "weight" else "bias-whole": [parameter] * ranks,
            "ignores-rows": [parameter[of_rank] for of_rank in share_by_rank(NUM_OUT, everyone)],
        }
        if name == "weight":
            beliefs["columns"] = [parameter[:, of_rank] for of_rank in share_by_rank(NUM_IN, everyone)]
        values = [one[name] for one in got]
        alike = all(_same(value, values[0]) and not _same(value, parameter) for value in values)
        if rows is None and len(mine[0]) < NUM_OUT and alike:
            beliefs["same"] = values
        compare(f"{case}, the {name}", values, [one[name] for one in want], beliefs, ranks=ranks)
    compare_memory(case, held, [sum(p.numel() for p in parameters.values()) for parameters in want])


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def _compare_results(case: str, found: list[dict], whole: nn.Linear, mine: list, seed: int) -> None:
    x, grad_y = random(seed + 10, *PLACES, NUM_IN).requires_grad_(), random(seed + 11, *PLACES, NUM_OUT)
    y = whole(x)
    y.backward(grad_y)
    y, weight = y.detach(), whole.weight.detach()
    ranks = range(len(mine))
    # ODD_ROWS are asked for on both ranks, and the whole gradient of x then holds them twice
    parts = [F.linear(grad_y[..., of_rank], weight[of_rank].T) for of_rank in mine]
    totals = [sum(parts[r] for r in _together(mine, rank)) for rank in ranks]
    unbiased = [F.linear(x.detach(), weight[of_rank]) for of_rank in mine]
    compare(f"{case}, y", [one["y"] for one in found], [y[..., of_rank] for of_rank in mine],
            {"gathers": [y] * len(mine), "no-bias-added": unbiased})  # fmt: skip
    got = [one["grad_x"] for one in found]
    compare(f"{case}, the gradient of x", got, totals, {"no-f": parts}, ranks=len(mine))
    want = [{name: p.grad[of_rank] for name, p in whole.named_parameters()} for of_rank in mine]
    compare(f"{case}, the parameters' gradients", [one["parameters"] for one in found], want)
    if not all(one["kept"] for one in found):
        raise Wrong(case, "expected x and the whole layer as they were, got others")


def _together(mine: list, rank: int) -> list[int]:
    """The ranks whose parts make up the whole with a rank's: two groups of two hold the same."""
    return list(range(len(mine))) if len(mine) < 4 else [rank // 2 * 2, rank // 2 * 2 + 1]


COLUMN_PARALLEL_LINEAR = Exercise(
    "ColumnParallelLinear",
    check_column_parallel_linear,
    misconceptions=misconceptions(
        whole="Each rank holds the whole weight: nothing is cut. Take the rows of this rank only.",
        columns="The weight is cut along its inputs. nn.Linear keeps it as (outputs, inputs): a column of A is a row "
        "of weight, so this rank's outputs are rows of it.",
        bias_whole="The bias is whole, and the weight is cut: an output's bias belongs to the rank of that output.",
        same="All {ranks} ranks hold the same part of the weight, and the rest of it is nowhere: each is to take its "
        "own rows of the whole layer.",
        ignores_rows="The rows that were asked for by number are not those that it took.",
        no_bias="The layer has no bias (whole.bias is None): then this rank has none either.",
        no_bias_added="The bias is missing in y.",
        keeps_whole="The whole layer stays in memory on this rank: a slice shares the memory of what it was cut from, "
        "and so does a whole layer that is kept. Index with the list of rows, or clone the slice.",
        gathers="y was gathered: every rank has all outputs. The next layer needs this rank's only, and to send them "
        "costs more than the sum that comes later.",
        no_f="The gradient of x is only what this rank's outputs want of it. All {ranks} ranks' parts are to be added "
        "up: x goes through copy_to_group before it is multiplied.",
        world="The sum runs over all ranks, and not over the group: hand self.group on to copy_to_group.",
    ),
    hints=(
        "Row i of whole.weight makes output i. tensor[rows] with the list self.rows takes those rows, as a "
        "copy; wrap it in nn.Parameter. In forward: where do the parts of x's gradient meet?",
        "nn.Parameter(whole.weight.detach()[…]), with the numbers in self.rows; the bias too, unless it is None. "
        "forward: F.linear of x, but x goes through f first, with self.group.",
    ),
    uses=("copy_to_group",),
)
