"""The check of run_backward: the whole batch's gradients, and nothing kept longer than needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from distlab.course.checks.pipeline.common import (
    WIDTH,
    micro_batches,
    misconceptions,
    module,
    right_forward,
    with_ranks,
)
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import RankFailed, Trial


def gradients_of(layers: nn.Module) -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in layers.named_parameters()}


def backward_alone(forward, backward, make_stage, number: int, num_stages: int, sizes: Sequence[int], seed: int):
    """One stage by itself: all forwards, then all backwards, the first micro-batch first, with made-up gradients."""
    stage = make_stage(module(number, num_stages, seed), number, num_stages, WIDTH)
    batches, back = micro_batches(sizes, seed), []
    for k, (x_bD, y_b) in enumerate(batches):
        forward(stage, k, x_bD, y_b, sum(sizes))
    for k, (gradient, _) in enumerate(micro_batches(sizes, seed + 1)):
        back.append(backward(stage, k, None if stage.is_last else gradient))
    return {"back": back if number else [], "gradients": gradients_of(stage.module), "kept": len(stage.kept)}


def on_a_rank(forward, backward, make_stage, sizes: Sequence[int], seed: int) -> dict:
    """On a rank: the stage of its number by itself."""
    return backward_alone(forward, backward, make_stage, dist.get_rank(), dist.get_world_size(), sizes, seed)


def together(forward, backward, make_stage, sizes: Sequence[int], seed: int) -> dict:
    """On a rank: its stage's gradients of a whole step with all stages, by messages that block."""
    number, num_stages = dist.get_rank(), dist.get_world_size()
    stage = make_stage(module(number, num_stages, seed), number, num_stages, WIDTH)
    for k, (x_bD, y_b) in enumerate(micro_batches(sizes, seed)):
        if number > 0:
            x_bD = torch.empty_like(x_bD)
            dist.recv(x_bD, number - 1)
        out = forward(stage, k, x_bD, y_b, sum(sizes))
        if number < num_stages - 1:
            dist.send(out, number + 1)
    for k, num_rows in enumerate(sizes):
        gradient = None
        if number < num_stages - 1:
            gradient = torch.empty(num_rows, WIDTH, dtype=torch.float64)
            dist.recv(gradient, number + 1)
        back = backward(stage, k, gradient)
        if number > 0:
            dist.send(back, number - 1)
    return gradients_of(stage.module)


# --- what people write instead, on the right run_forward ---------------------------------------


def right(stage, micro, gradient):
    x_bD, out = stage.kept.pop(micro)
    out.backward(gradient)
    return x_bD.grad


def _ones(stage, micro, gradient):
    x_bD, out = stage.kept.pop(micro)
    out.sum().backward()
    return x_bD.grad


def _last_in(stage, micro, gradient):
    _, (x_bD, out) = stage.kept.popitem()
    out.backward(gradient)
    return x_bD.grad


def _clears(stage, micro, gradient):
    stage.module.zero_grad()
    return right(stage, micro, gradient)


def _nothing(stage, micro, gradient):
    right(stage, micro, gradient)


def _passes_on(stage, micro, gradient):
    right(stage, micro, gradient)
    return gradient


WRONG = {
    "ones": _ones,
    "last-in": _last_in,
    "clears": _clears,
    "nothing": _nothing,
    "passes-on": _passes_on,
}


def check_run_backward(learners: Callable, trial: Trial) -> str:
    """Tries each stage by itself, then all together against autograd on the whole model."""
    for ranks, sizes in ((3, [2, 2, 2]), (2, [2, 2, 1, 1, 1]), (1, [3, 2])):
        _try_alone(learners, trial, ranks, sizes)
    for ranks, sizes in ((4, [2, 2, 2, 1, 1]), (3, [3, 2]), (2, [2, 2, 1]), (1, [2, 1])):
        _try_together(learners, trial, ranks, sizes)
    return (
        "gradients equal the whole batch's on every stage, and nothing stays in stage.kept; on 1 to 4 stages, with "
        "equal and unequal micro-batches, more and fewer than stages"
    )


def _try_alone(learners: Callable, trial: Trial, ranks: int, sizes: list[int]) -> None:
    case = f"{with_ranks(ranks)} and micro-batches of {', '.join(map(str, sizes))} rows, each stage by itself"
    make_stage, forward = learners.__globals__["Stage"], learners.__globals__["run_forward"]
    try:
        found = trial.run(case, on_a_rank, forward, learners, make_stage, sizes, trial.seed, ranks=ranks)
    except RankFailed as failed:
        raise failed.because(*(["no-gradient"] if "scalar outputs" in failed.detail else [])) from None

    def simulated(backward: Callable, what: str) -> list:
        arguments = right_forward, backward, make_stage
        return [backward_alone(*arguments, n, ranks, sizes, trial.seed)[what] for n in range(ranks)]

    for what, words in (("back", "what is returned"), ("gradients", "the gradients")):
        came, want = [of_rank[what] for of_rank in found], simulated(right, what)
        try:
            compare(f"{case}, {words}", came, want)
        except Wrong:  # only now is it worth working out what the misconceptions would have given
            equal = len(set(sizes)) == 1
            wrong = {id: simulated(f, what) for id, f in WRONG.items() if equal or id != "last-in"}
            compare(f"{case}, {words}", came, want, wrong, m=len(sizes))
    for rank, of_rank in enumerate(found):
        if of_rank["kept"]:
            detail = f"rank {rank}, entries in stage.kept after the last backward: expected 0, got {of_rank['kept']}"
            raise Wrong(case, detail, ("keeps",))


def _try_together(learners: Callable, trial: Trial, ranks: int, sizes: list[int]) -> None:
    case = f"{with_ranks(ranks)} and {len(sizes)} micro-batches, all stages together, the gradients"
    lab = learners.__globals__
    arguments = lab["run_forward"], learners, lab["Stage"], sizes, trial.seed
    came = trial.run(case, together, *arguments, ranks=ranks)
    stages = [module(number, ranks, trial.seed) for number in range(ranks)]
    batches = micro_batches(sizes, trial.seed)
    x_BD, y_B = torch.cat([x_bD for x_bD, _ in batches]), torch.cat([y_b for _, y_b in batches])
    F.cross_entropy(nn.Sequential(*stages)(x_BD), y_B).backward()
    compare(case, came, [gradients_of(stage) for stage in stages])


RUN_BACKWARD = Exercise(
    "run_backward",
    check_run_backward,
    misconceptions=misconceptions(
        ones="These are gradients of the sum of the stage's outputs: the gradient that came from the next stage was "
        "not used. out.backward(gradient) starts from it.",
        no_gradient="backward() alone can start only from one number, the loss. On the stages before the last, start "
        "from the gradient that came: out.backward(gradient).",
        last_in="The micro-batch that was kept last was taken, whichever was asked for: first in, first out is this "
        "schedule's order. Take stage.kept[micro].",
        clears="The gradients are those of the last micro-batch alone: each backward adds to .grad, and nothing may "
        "clear it before all {m} are done.",
        keeps="Micro-batches stay in stage.kept after their backward, and with them their activations: pop them.",
        nothing="Nothing is returned: the stage before waits for the gradient of its output, which is that of this "
        "stage's input.",
        passes_on="The gradient that came in is returned as it came: what goes back is the gradient of this stage's "
        "input, x_bD.grad.",
    ),
    hints=(
        "stage.kept has the pair for this micro-batch, an input and an output. Take it out of there, go backward from "
        "the output, and look at the input's .grad.",
        "x_bD, out = stage.kept.pop(micro), then out.backward(gradient). With None, on the last stage, that is the "
        "same as out.backward().",
    ),
    uses=("run_forward",),
)
