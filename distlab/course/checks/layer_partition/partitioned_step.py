"""The check of partitioned_step: training equals one process's at every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from distlab.course.checks.layer_partition.common import Pair, misdirected, shown_by, stage_of
from distlab.course.exercise import Exercise
from distlab.course.kit.case import Case, Job, listed
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import gradients_of, misconceptions, shares, weights_of
from distlab.course.kit.outcome import Outcome

_WIDTHS = 5, 4, 6, 4, 3


def case(ranks: int, sizes: list[int], alone: bool = False, classes: int = _WIDTHS[-1]) -> Case:
    """Batches of so many rows, one after the other; rank 0 ``alone`` holds them. With one class the loss is 0."""
    words = f" and batches of {listed(sizes)} rows{', which rank 0 alone holds' * alone}"
    words += ", all of one class, of which the model knows no other" * (classes == 1)
    return Case(ranks, words, sizes=sizes, alone=alone, widths=(*_WIDTHS[:-1], classes))


def stages_of(job: Job) -> list[nn.Sequential]:
    """Every rank's."""
    return [stage_of(job, layers) for layers in shares(len(_WIDTHS) - 1, job.ranks)]


def batch_of(job: Job, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in as many classes as the model knows."""
    x_BD = job.random(job["sizes"][number], _WIDTHS[0], of=number)
    generator = torch.Generator().manual_seed(job.seed + number)
    return x_BD, torch.randint(job["widths"][-1], (len(x_BD),), generator=generator)


def history(step: Callable, job: Job, stages: Sequence[nn.Module]) -> list[dict]:
    """Of each stage: how often its optimizer stepped, its gradients then, its weights; of the last the loss too."""
    optimizer = torch.optim.SGD([p for stage in stages for p in stage.parameters()], lr=0.2, momentum=0.9)
    seen: list[list] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append([gradients_of(stage) for stage in stages]))
    notes: list[dict] = [{} for _ in stages]
    for number in range(len(job["sizes"])):
        seen.clear()
        loss, at = step(optimizer, *batch_of(job, number)), f"step {number + 1}, "
        for which, stage in enumerate(stages):
            gradients = seen[-1][which] if seen else {}
            notes[which] |= {f"{at}optimizer steps": len(seen), f"{at}the gradients": gradients}
            notes[which] |= {f"{at}the weights": weights_of(stage), f"{at}the loss": None}
        notes[-1][f"{at}the loss"] = loss.detach() if isinstance(loss, torch.Tensor) else loss
    return notes


def drive(lab, job: Job) -> dict:
    """On a rank: the history of its stage."""
    stage = stages_of(job)[dist.get_rank()]
    no_rows = torch.empty(0, stage[0].in_features, dtype=job.dtype)

    def step(optimizer, x_BD, y_B):
        mine = None if job["alone"] and dist.get_rank() else x_BD
        return call(lab.partitioned_step, stage, optimizer, mine, y_B, no_rows, changes=(0, 1))

    return history(step, job, [stage])[0]


@lru_cache(maxsize=4)
def right(job: Job) -> list[dict]:
    """One process's history, by stage."""
    stages = stages_of(job)

    def step(optimizer, x_BD, y_B):
        loss = F.cross_entropy(nn.Sequential(*stages)(x_BD), y_B)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return history(step, job, stages)


def judge(job: Job, outcome: Outcome):
    """One message each way over each cut at every step."""
    want: dict[Pair, list[int]] = {}
    for cut, layers in enumerate(shares(len(_WIDTHS) - 1, job.ranks)[1:]):
        sizes = [job.dtype.itemsize * rows * _WIDTHS[layers.start] for rows in job["sizes"]]
        want |= {(cut, cut + 1): sizes, (cut + 1, cut): sizes}
    yield from misdirected(outcome, want)


PARTITIONED_STEP = Exercise(
    "partitioned_step",
    Experiment(
        (case(2, [37, 3]), case(3, [4, 7]), case(1, [5, 3]), case(1, [2], classes=1), case(4, [7, 7, 2], alone=True)),
        drive,
        lambda job, _: right(job),
        judge=judge,
        shown=shown_by(judge),
        fields=lambda job, _: {"rows": job["sizes"][0]},
        holds="loss, gradients and weights of every stage equal one process's at every step; with 1 to 4 ranks, "
        "batches of different sizes, and one message each way over each cut a step; also with the rows on rank 0 alone",
    ),
    misconceptions=misconceptions(
        no_step="No optimizer took a step.",
        last_steps="Only the last rank's optimizer took a step. Each rank steps for its own stage; nobody else can.",
        no_clear="The gradients of the steps add up: clear them after each, with optimizer.zero_grad().",
        one_clears="Only one rank cleared its gradients. On the others those of the steps add up: every rank clears "
        "those of its own stage.",
        early="The optimizer stepped before there were gradients: the backward pass comes first.",
        cleared="The gradients were cleared before the optimizer's step: it found none. Clear them after it.",
        softmax="The outputs went through softmax before F.cross_entropy, which does that itself: it takes the "
        "outputs as they are.",
        len_of_batch="x_BD is None here: only rank 0 needs it. Every rank has the labels, and len(y_B) is the number "
        "of rows.",
        last_only="Only the last stage has gradients: loss.backward() ends at the cut. backward_stage carries the "
        "gradient over it, on every rank.",
        sum="The loss is the sum over the batch's {rows} rows; the mean is asked for, as F.cross_entropy gives it.",
        tensor="The loss is a tensor, and holds the whole graph of its stage; a float is asked for: .item() makes one.",
        truth="The loss is 0 here, and None was returned: `if loss` asks whether a number is other than 0. Ask which "
        "rank this is, or whether loss is None.",
        told="Every rank knows the loss, so it was sent to all. Nobody but the last rank needs it: return None "
        "elsewhere, and save the message.",
        messages="More was sent than an activation and a gradient over each cut and step. Shapes are agreed on once, "
        "before the training.",
        loss_everywhere="Ranks before the last return a number of their own. Only the last rank's outputs are the "
        "model's: elsewhere there is no loss, it is None.",
        fixed_rows="A message has another shape than the memory waiting for it: the number of rows may change from "
        "batch to batch, and it is len(y_B).",
        collective="A collective takes every rank of the world; here only neighbours talk, by send and recv.",
    ),
    hints=(
        "Five steps: forward_stage; on the last rank the loss, elsewhere None; backward_stage; the optimizer's step; "
        "clear the gradients.",
        "F.cross_entropy(outputs, y_B) on the last rank. len(y_B) is the number of rows. Return loss.item() on the "
        "last rank and None elsewhere.",
    ),
    uses=("forward_stage", "backward_stage"),
)
