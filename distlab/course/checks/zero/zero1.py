"""The checks of the two forms of stage 1: each rank updates its own part of the weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from distlab.course.checks.zero.common import (
    coded,
    divided,
    elements,
    in_words,
    inside,
    numbers,
    padded,
    part,
    same_memory,
    unit_of,
    wrong_constant,
)
from distlab.course.compare import compare, difference, difference_by_rank
from distlab.course.exercise import Exercise, Wrong
from distlab.course.kit.case import with_ranks
from distlab.course.kit.fixtures import misconceptions
from distlab.course.trial import RankFailed, Trial
from distlab.ranks.outcome import Run
from distlab.ranks.watching.spans import span

STEPS = (1, 2)
CASES = ((3, 6), (2, 4), (4, 10), (1, 3))  # ranks, numbers; on three a mistake by 2 or by 4 shows as what it is


def stepped(zero_step, count: int) -> dict:
    """On a rank: two steps of a unit of ``count`` numbers; the gradients its optimizer saw, and the weights after
    each."""
    unit = unit_of([numbers(count)])
    weights_P, notes = unit.weights_P, dict(weights=[], left=[], moved=[])
    for turn in STEPS:
        gradient = coded(count, dist.get_rank(), turn)
        unit.gradient_P = gradient_P = padded([gradient], dist.get_world_size())
        with span("step"):
            zero_step(unit)
        notes["weights"].append(unit.weights_P.detach().clone())
        notes["left"].append(gradient_P.clone())
        notes["moved"] += [] if same_memory(unit.weights_P, weights_P) else ["weights_P"]
        notes["moved"] += [] if same_memory(unit.gradient_P, gradient_P) else ["gradient_P"]
    return notes | dict(seen=unit.optimizer.seen)


def check_zero1_by_all_reduce(learners: Callable, trial: Trial) -> str:
    """Tries two steps, by weights alone."""
    sent = [_try_weights(learners, trial, ranks, count) for ranks, count in CASES]
    volume = _volume(sent[2], CASES[2][1], CASES[2][0])
    words = f"each rank sent {volume:.0f}Ψ (N − 1)/N elements a step"
    return f"weights equal one process's after every step, with 1 to 4 ranks, and {words}"


def check_zero1_step(learners: Callable, trial: Trial) -> str:
    """Tries two steps by weights, then by what was sent."""
    for ranks, count in CASES:
        run = _try_weights(learners, trial, ranks, count)
        length = len(padded([numbers(count)], ranks)) * len(STEPS)
        sizes = elements(inside(run.recording, 0, "step"))
        if ranks > 1 and dict(sizes) != {"reduce_scatter": length, "all_gather": length}:
            known = _known_sizes(sizes, length)
            detail = f"elements in two steps: expected reduce_scatter {length}, all_gather {length}, got "
            raise Wrong(with_ranks(ranks), detail + in_words(sizes), known)
        _own_place(f"{with_ranks(ranks)} and {count} numbers", run, ranks, count)
    return "weights equal one process's after every step, and 2Ψ (N − 1)/N elements were sent, with 1 to 4 ranks"


def _own_place(case: str, run: Run, ranks: int, count: int) -> None:
    """Raises Wrong if a rank's part of the sum was written into another rank's part of gradient_P."""
    total = sum(padded([coded(count, rank)], ranks) for rank in range(ranks))
    for rank, value in enumerate(run.values):
        for other in set(range(ranks)) - {rank}:
            for written in (part(total, rank, ranks), part(total, rank, ranks) / ranks):
                if not difference(part(value["left"][0], other, ranks), written):
                    detail = f"part {other} of rank {rank}'s gradient_P holds what belongs to part {rank}"
                    raise Wrong(case, detail, ("elsewhere",))


def _known_sizes(sizes, length: int) -> tuple[str, ...]:
    known = {
        "all-reduce": {"all_reduce": length, "all_gather": length},
        "both": {"all_reduce": length, "reduce_scatter": length, "all_gather": length},
        "two-all-reduces": {"all_reduce": 2 * length},
        "reduce-scatter-and-all-reduce": {"reduce_scatter": length, "all_reduce": length},
        "reduces": {"reduce": length, "all_gather": length},
    }
    return tuple(id for id, predicted in known.items() if dict(sizes) == predicted)


def _volume(run: Run, count: int, ranks: int) -> float:
    """Elements that a rank sends a step, as multiples of Ψ (N − 1)/N."""
    sizes = elements(inside(run.recording, 0, "step"))
    length = len(padded([numbers(count)], ranks)) * len(STEPS)
    return sum(size * (2 if kind == "all_reduce" else 1) for kind, size in sizes.items()) / length


def _try_weights(learners, trial: Trial, ranks: int, count: int) -> Run:
    case = f"{with_ranks(ranks)} and {count} numbers"
    try:
        run = trial.watch(case, stepped, learners, count, ranks=ranks)
    except RankFailed as failed:
        raise failed.because(*why_sizes_differ(failed)) from None
    seen, weights = [v["seen"] for v in run.values], [v["weights"] for v in run.values]
    own = [[padded([coded(count, rank, turn)], ranks) for turn in STEPS] for rank in range(ranks)]
    mean = [sum(by_rank) / ranks for by_rank in zip(*own)]
    beliefs = {
        "no-step": [[]] * ranks,
        "no-gradient": [[None, None]] * ranks,
        "sum": [[part(m, rank, ranks) * ranks for m in mean] for rank in range(ranks)],
        "own": [[part(g, rank, ranks) for g in own[rank]] for rank in range(ranks)],
        "own-divided": [[part(g, rank, ranks) / ranks for g in own[rank]] for rank in range(ranks)],
        "twice": [[part(m, rank, ranks) / ranks for m in mean] for rank in range(ranks)],
        "first-part": [[part(m, 0, ranks) for m in mean]] * ranks,
    }
    want = [[part(m, rank, ranks) for m in mean] for rank in range(ranks)]
    beliefs["only-rank-0"] = [want[0], *[[]] * (ranks - 1)]
    beliefs["neighbour"] = [want[(rank + 1) % ranks] for rank in range(ranks)]
    if constant := wrong_constant(seen, beliefs["sum"], ranks):
        beliefs["constant"] = divided(beliefs["sum"], constant)
    fields = dict(ranks=ranks, constant=constant)
    compare(f"{case}, the gradients that the optimizers got", seen, want, beliefs, **fields)
    start = padded([numbers(count)], ranks)
    right = [start - mean[0], start - mean[0] - mean[1]]
    beliefs = {
        "not-gathered": [_apart(start, mean, rank, ranks) for rank in range(ranks)],
        "gathered-first": _late(start, mean, ranks),
        "summed-weights": [_summed(start, mean, ranks)] * ranks,
    }
    if difference_by_rank(weights, [right] * ranks):
        compare(f"{case}, the weights after each step", weights, [right] * ranks, beliefs, ranks=ranks)
    for name in run.values[0]["moved"]:
        detail = f"unit.{name} is another tensor after the step; expected the same one, with new numbers in it"
        raise Wrong(case, detail, ("new-weights" if name == "weights_P" else "new-gradient",))
    return run


def why_sizes_differ(failed: RankFailed) -> tuple[str, ...]:
    """Which misconception shows as this failure of torch's: sizes that don't fit."""
    message = failed.error.failures[failed.error.rank].message
    if "assign a gradient of size" in message:
        return ("whole",)
    wrong_lengths = "invalid tensor size", "invalid output tensor", "outputShape"
    return ("swapped",) if any(words in message for words in wrong_lengths) else ()


def _apart(start: torch.Tensor, mean: list[torch.Tensor], rank: int, ranks: int) -> list[torch.Tensor]:
    """The weights of a rank that moves its own part, and never hears of the others'."""
    weights, history = start.clone(), []
    for gradient in mean:
        part(weights, rank, ranks).sub_(part(gradient, rank, ranks))
        history.append(weights.clone())
    return history


def _summed(start: torch.Tensor, mean: list[torch.Tensor], ranks: int) -> list[torch.Tensor]:
    """The weights if all ranks', of which each has moved its own part, are added up."""
    first = ranks * start - mean[0]
    return [first, ranks * first - mean[1]]


def _late(start: torch.Tensor, mean: list[torch.Tensor], ranks: int) -> list[list[torch.Tensor]]:
    """Every rank's weights if they gather before they update."""
    weights = [start.clone() for _ in range(ranks)]
    histories: list[list[torch.Tensor]] = [[] for _ in range(ranks)]
    for gradient in mean:
        gathered = torch.cat([part(w, rank, ranks) for rank, w in enumerate(weights)])
        weights = [gathered.clone() for _ in range(ranks)]
        for rank, history in enumerate(histories):
            part(weights[rank], rank, ranks).sub_(part(gradient, rank, ranks))
            history.append(weights[rank].clone())
    return histories


COMMON = dict(
    no_step="No optimizer took a step: call unit.optimizer.step().",
    only_rank_0="Only rank 0's optimizer stepped: every rank has a shard of its own, which nobody else moves.",
    no_gradient="The optimizer stepped without a gradient: put this rank's part into unit.shard_S.grad before it.",
    sum="The gradients are {ranks} times too large: summed over {ranks} ranks, never divided.",
    own="Every rank stepped with its own gradients: what the others computed never arrived in them.",
    own_divided="Every rank's own gradients were divided by {ranks}, and never added up: the sum went into another "
    "tensor than the one that is used.",
    twice="The gradients are {ranks} times too small: divided by the number of ranks twice.",
    first_part="Every rank's optimizer got the first part of the gradient; rank r's part is the r-th.",
    neighbour="Every rank's optimizer got the next rank's part of the gradient; rank r's part is the r-th.",
    constant="The sum over {ranks} ranks was divided by {constant}: divide by the world size, whatever it is.",
    whole="The shard was given the whole gradient. It has one part of the weights, and wants the same part of the "
    "gradient: 1/N of the optimizer's states is the point.",
    swapped="The two tensors of a collective stand the wrong way round, or one is of the wrong length: "
    "all_gather(where P numbers go, the S of this rank), reduce_scatter(where S numbers go, the P of this rank).",
    not_gathered="Each rank has moved its own part of the weights, and has the old numbers everywhere else: gather "
    "the parts after the step.",
    gathered_first="The weights are one step behind: they were gathered before the update, not after it.",
    summed_weights="The weights of all ranks were added up. Every rank has one part that is right: an all_gather puts "
    "the parts side by side, an all-reduce sums.",
    new_weights="The new weights are in a new tensor, and the model's parameters are views of the old one: they never "
    "see them. Gather into the weights_P that is there.",
    new_gradient="unit.gradient_P is a new tensor now, and the parameters' .grad are views of the old one, which "
    "nobody sets to zero any more: the next gradients are added to it. Divide in place: unit.gradient_P /= n.",
)

ZERO1_BY_ALL_REDUCE = Exercise(
    "zero1_by_all_reduce",
    check_zero1_by_all_reduce,
    misconceptions=misconceptions(**COMMON),
    hints=(
        "Four lines of thought: average the gradient as in data parallelism; hand this rank's part of it to the "
        "optimizer; step; collect everybody's parts of the weights.",
        "dist.all_reduce(unit.gradient_P), divide by the world size, unit.shard_S.grad = "
        "unit.gradient_P.chunk(world)[rank], unit.optimizer.step(), all_gather(unit.weights_P, unit.shard_S).",
    ),
)

ZERO1_STEP = Exercise(
    "zero1_step",
    check_zero1_step,
    misconceptions=misconceptions(
        **COMMON,
        all_reduce="The weights are right, and 3Ψ were sent: the all-reduce brings every rank the whole averaged "
        "gradient, of which it uses one part. A reduce-scatter brings that part alone: 2Ψ.",
        both="The gradient was reduced twice, by a reduce-scatter and by an all-reduce: the first is enough.",
        two_all_reduces="The weights are right, but went through an all-reduce, which costs two all-gathers: every "
        "rank has one part that is right, so all_gather them.",
        reduce_scatter_and_all_reduce="The gradient goes the short way, by reduce-scatter; but the weights went "
        "through an all-reduce, which costs two all-gathers.",
        reduces="The parts were reduced one by one, each to its rank: one reduce_scatter does all of it.",
        elsewhere="reduce_scatter wrote into another part of the tensor that it reads than the rank's own. It may do "
        "so only in its own part, chunk(n)[rank]: what else it overwrites, somebody may still have to read.",
    ),
    hints=(
        "An all-reduce is a reduce-scatter and an all-gather. Between the two, each rank holds its own part of the "
        "sum: the update belongs there.",
        "part_S = unit.gradient_P.chunk(world)[rank]; reduce_scatter(part_S, unit.gradient_P) writes this rank's part "
        "of the sum there. Divide it, give it to the shard, step, and all_gather the weights as before.",
    ),
)
