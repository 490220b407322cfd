"""The check of RowParallelLinear: all outputs, each the sum of the ranks' parts."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from distlab.course.checks.tensor_parallel.column_parallel_linear import PLACES, whole_linear
from distlab.course.checks.tensor_parallel.common import (
    UNTRACKED,
    WORLDS,
    Groups,
    all_say,
    bytes_held,
    compare_memory,
    copies,
    count,
    enter,
    forward_and_backward,
    gradients,
    in_own_group,
    in_words,
    members,
    misconceptions,
    random,
    refuse_untracked,
    share_by_rank,
    watch,
)
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import Trial

NUM_IN, NUM_OUT = 7, 4


def driven(layer_class: type, seed: int, bias: bool, groups: Groups) -> dict:
    """On a rank: the layer's parameters and the bytes it keeps; if those are of the right shapes on all ranks, y and
    all gradients too, for this rank's part of the inputs."""
    whole, mine = whole_linear(seed, NUM_IN, NUM_OUT, bias), share_by_rank(NUM_IN, groups)[dist.get_rank()]
    layer = layer_class(whole, group=enter(groups))
    lent = {parameter.data_ptr() for parameter in whole.parameters()}
    shares = [name for name, parameter in layer.named_parameters() if parameter.data_ptr() in lent]
    found = dict(built=copies(layer), bytes=bytes_held(layer), shares=shares)
    shapes = {name: p.shape for name, p in whole.named_parameters()} | {"weight": (NUM_OUT, len(mine))}
    if all_say({name: p.shape for name, p in layer.named_parameters()} == shapes):
        x, grad_y = random(seed + 10, *PLACES, NUM_IN)[..., mine], random(seed + 11, *PLACES, NUM_OUT)
        found |= forward_and_backward(layer, x, grad_y) | dict(parameters=gradients(layer))
    return found


def check_row_parallel_linear(learners: type, trial: Trial) -> str:
    """Tries the layer's parameters first, then y, the gradients and the messages."""
    for groups in WORLDS:
        _try(learners, trial, groups, bias=True)
    _try(learners, trial, [[0, 1]], bias=False)
    return (
        "each rank holds its columns of the weight, y and all gradients are those of the whole layer, the bias counts "
        "once, and one all-reduce goes forward; on 1 to 3 ranks and in two groups, with inputs that don't divide"
    )


def _try(learners: type, trial: Trial, groups: Groups, bias: bool) -> None:
    case = f"{in_words(groups)} and {NUM_IN} inputs{'' if bias else ', without a bias'}"
    mine = share_by_rank(NUM_IN, groups)
    whole = whole_linear(trial.seed, NUM_IN, NUM_OUT, bias)
    arguments = learners, trial.seed, bias, groups
    run = watch(trial, case, driven, *arguments, groups=groups, no_bias="'NoneType'", rows="out of bounds|out of range")
    built, held = ([one[what] for one in run.values] for what in ("built", "bytes"))
    _compare_parameters(case, built, held, whole, mine, groups)
    for rank, one in enumerate(run.values):
        if one["shares"]:
            detail = f"rank {rank}: its {' and '.join(one['shares'])} lies where the whole layer's does"
            raise Wrong(f"{case}, the memory", detail, ("shares",))
    in_own_group(case, run, groups)
    _compare_results(case, run.values, whole, mine, groups, trial.seed)
    count(f"{case}, messages", run, "forward", {"all_reduce": 1}, PLACES[0] * PLACES[1] * NUM_OUT)
    count(f"{case}, messages", run, "backward", {}, 0)
    refuse_untracked(case, run.values)


def _compare_parameters(case: str, got: list, held: list, whole: nn.Linear, mine: list, groups: Groups) -> None:
    parameters, size, rows = copies(whole), len(groups[0]), share_by_rank(NUM_OUT, groups)
    want = [parameters | {"weight": parameters["weight"][:, columns]} for columns in mine]
    firsts = [["bias", "weight"] if rank == group[0] else ["weight"] for rank, group in enumerate(members(groups))]
    names, beliefs = [sorted(one) for one in got], {"bias-on-first": firsts} if "bias" in parameters else {}
    compare(f"{case}, the parameters", names, [sorted(one) for one in want], beliefs)
    weight = parameters["weight"]
    beliefs = {
        "whole": [weight] * len(mine),
        "rows": [weight[of_rank] for of_rank in rows],
        "first": [weight[:, mine[0]]] * len(mine),
    }
    weights = [one["weight"] for one in want]
    compare(f"{case}, the weight", [one["weight"] for one in got], weights, beliefs, ranks=size)
    if (bias := parameters.get("bias")) is not None:
        beliefs = {"bias-divided": [bias / size] * len(mine), "bias-cut": [bias[of_rank] for of_rank in rows]}
        compare(f"{case}, the bias", [one["bias"] for one in got], [bias] * len(mine), beliefs, ranks=size)
    compare_memory(case, held, [sum(p.numel() for p in of_rank.values()) for of_rank in want])


def _compare_results(case: str, found: list[dict], whole: nn.Linear, mine: list, groups: Groups, seed: int) -> None:
    x, grad_y = random(seed + 10, *PLACES, NUM_IN).requires_grad_(), random(seed + 11, *PLACES, NUM_OUT)
    y = whole(x)
    y.backward(grad_y)
    y, size = y.detach(), len(groups[0])
    bias = 0 if whole.bias is None else whole.bias.detach()
    parts = [F.linear(x.detach()[..., c], whole.weight.detach()[:, c]) + bias for c in mine]
    beliefs = {"no-sum": parts}
    if whole.bias is not None:
        beliefs |= {"bias-each": [y + (size - 1) * bias] * len(mine), "no-bias-added": [y - bias] * len(mine)}
    compare(f"{case}, y", [one["y"] for one in found], [y] * len(mine), beliefs, ranks=size, more=size - 1)
    want = [x.grad[..., c] for c in mine]
    got = [one["grad_x"] for one in found]
    beliefs = {"both-ways": [size * one for one in want], "cut-off": [torch.zeros_like(one) for one in want]}
    compare(f"{case}, the gradient of x", got, want, beliefs, ranks=size)
    grads = {name: p.grad for name, p in whole.named_parameters()}
    want = [grads | {"weight": grads["weight"][:, c]} for c in mine]
    got = [one["parameters"] for one in found]
    beliefs = {}
    if whole.bias is not None:
        none = torch.zeros_like(bias)
        beliefs["bias-split"] = [one | {"bias": one["bias"] / size} for one in want]
        beliefs["bias-on-first"] = [
            one if rank == group[0] else one | {"bias": none}
            for rank, (one, group) in enumerate(zip(want, members(groups)))
        ]
    compare(f"{case}, the parameters' gradients", got, want, beliefs, ranks=size)
    if not all(one["kept"] for one in found):
        raise Wrong(case, "expected x as it was, got another")


ROW_PARALLEL_LINEAR = Exercise(
    "RowParallelLinear",
    check_row_parallel_linear,
    misconceptions=misconceptions(
        whole="Each rank holds the whole weight: nothing is cut. Take the columns that meet this rank's inputs.",
        rows="The weight is cut along its outputs. nn.Linear keeps it as (outputs, inputs): a row of A is a column "
        "of weight, so this rank's inputs meet columns of it.",
        first="All {ranks} ranks hold the first rank's columns; each is to take its own.",
        bias_divided="The bias is divided by {ranks}, to be right again in the sum. The numbers are, and training goes "
        "wrong: each rank's part gets the whole gradient, so their sum moves {ranks} times as far. Add the whole bias "
        "once, after the sum.",
        bias_split="The bias's gradient is 1/{ranks} of what it should be: each rank added 1/{ranks} of the bias to "
        "its part, before the sum. Add the whole bias once, after the sum.",
        bias_cut="The bias is cut, and every rank has all outputs: it needs the whole bias.",
        bias_on_first="Only the first rank has the bias, or its gradient. After the sum all ranks hold y alike, and "
        "all add the same bias; so each of them can update it, and they stay equal.",
        no_bias="The layer has no bias (whole.bias is None): then there is nothing to add.",
        no_bias_added="The bias is missing in y.",
        keeps_whole="The whole layer stays in memory on this rank: a slice shares the memory of what it was cut from, "
        "and so does a whole layer that is kept. Index with the list of columns, or clone the slice.",
        shares="It is the whole layer's own memory: who changes one changes the other. A part of the model needs a "
        "Parameter of its own: nn.Parameter of a detached clone.",
        no_sum="Each rank has only its own part of every sum: y goes through reduce_from_group.",
        bias_each="The bias is in y {ranks} times: each rank added it to its part, and then the parts were added up. "
        "y is too large by {more} × b. Add it after the sum.",
        both_ways="The gradient of x is {ranks} times too large: it was added up on the way back as well.",
        cut_off="No gradient comes back to x: it was detached before the sum, or the sum is not made by "
        "reduce_from_group, which knows the way back.",
        untracked=f"{UNTRACKED}Use reduce_from_group.",
        world="The sum runs over all ranks, and not over the group: hand self.group on to reduce_from_group.",
    ),
    hints=(
        "Column i of whole.weight meets input i: tensor[:, columns] with a list takes those, as a copy. A "
        "rank's product is a part of every sum. When may the bias be added?",
        "self.weight = nn.Parameter(whole.weight.detach()[:, self.columns]); the bias whole, a clone, unless it is "
        "None. forward: y = reduce_from_group(F.linear(x_BTc, self.weight), self.group), then add the bias.",
    ),
    uses=("reduce_from_group",),
)
