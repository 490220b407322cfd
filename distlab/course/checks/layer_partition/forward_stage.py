"""The check of forward_stage: one process's activations at every cut, and one message over each."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from distlab.course.checks.layer_partition.common import misdirected, shape_at, shown_by, sizes_of, stage_of
from distlab.course.exercise import Exercise
from distlab.course.kit.case import Case, Job
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import misconceptions
from distlab.course.kit.outcome import Outcome

RUNS = "how often its stage ran"
_PAIR = "two tensors, (inputs, outputs)"


class AsNumbers(nn.Module):
    """Stands before a first layer whose batch holds whole numbers, as a text does."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype

    def forward(self, x):
        return x.to(self.dtype) / 4


class Turned(nn.Module):
    """Gives what it gets, lying column by column in memory."""

    def forward(self, x):
        return x.transpose(0, 1).contiguous().transpose(0, 1)


def case(widths: list[int], rows: int, *, axes: tuple[int, ...] = (), turned: bool = False, whole: bool = False):
    """As many stages as cuts make; ``axes`` are those of a row before its last one.

    ``turned`` stages give what is not contiguous; a ``whole`` batch is of whole numbers, and rank 0's alone.
    """
    words = f" and {rows} rows" + (f" of {axes[0]} × {widths[0]} numbers" if axes else "")
    words += ", outputs that are not contiguous" * turned + " of whole numbers, which rank 0 alone holds" * whole
    return Case(len(widths) - 1, words, widths=widths, rows=rows, axes=axes, turned=turned, whole=whole)


def given_to(job: Job, rank: int) -> tuple[nn.Sequential, torch.Tensor | None, int, torch.Tensor]:
    """What a rank's forward_stage is called with."""
    stage, x = stage_of(job, [rank]), job.random(*shape_at(job, 0))
    if job["whole"]:
        x = (4 * x).round().long()
        stage = stage if rank else nn.Sequential(AsNumbers(job.dtype), *stage)
    if job["turned"]:
        stage.append(Turned())
    no_rows = torch.empty(0, *shape_at(job, rank)[1:], dtype=job.dtype if rank else x.dtype)
    return stage, None if job["whole"] and rank else x, job["rows"], no_rows


def _look(inputs: torch.Tensor, outputs: torch.Tensor, runs: int = 1) -> dict:
    notes = {"what is returned": _PAIR, "the outputs": outputs.detach().clone(), "the inputs": inputs.detach().clone()}
    notes |= {"outputs.requires_grad": outputs.requires_grad, "inputs.requires_grad": inputs.requires_grad}
    if outputs.requires_grad and inputs.requires_grad:
        outputs.sum().backward()
    gradient = inputs.grad if inputs.is_leaf else None
    return notes | {"inputs.grad after outputs.sum().backward()": gradient, RUNS: runs}


def drive(lab, job: Job) -> dict:
    """On a rank: what its stage took in and gave out, and whether a gradient gets through."""
    stage, *others = given_to(job, dist.get_rank())
    runs: list[int] = []
    stage[0].register_forward_hook(lambda *_: runs.append(1))
    came = call(lab.forward_stage, stage, *others)
    if not isinstance(came, tuple | list) or len(came) != 2 or not all(isinstance(h, torch.Tensor) for h in came):
        return {"what is returned": type(came).__name__}
    return _look(*came, len(runs))


def expect(job: Job, came: list[dict]) -> list[dict]:
    """One process's inputs and outputs at every cut."""
    want, inputs = [], given_to(job, 0)[1]
    for rank in range(job.ranks):
        outputs = given_to(job, rank)[0](inputs)
        want.append(_look(inputs, outputs))
        inputs = outputs.detach().contiguous().requires_grad_()
    return want


def judge(job: Job, outcome: Outcome):
    """One message over each cut, of the activation's size."""
    yield from misdirected(outcome, {(cut, cut + 1): [size] for cut, size in enumerate(sizes_of(job))})


FORWARD_STAGE = Exercise(
    "forward_stage",
    Experiment(
        (
            case([4, 4, 4], 3),
            case([3, 5, 2], 6),
            case([4, 4, 4, 4], 5, axes=(2,), turned=True),
            case([4, 3], 2),
            case([4, 3, 5, 2, 3], 7, whole=True),
        ),
        drive,
        expect,
        judge=judge,
        shown=shown_by(judge),
        named={RUNS: "runs-again"},
        holds="inputs and outputs of every stage are one process's; one message over each cut, of the activation's "
        "size; with 1 to 4 ranks, with rows of two axes, with outputs that are not contiguous, and with a batch of "
        "whole numbers on rank 0 alone",
    ),
    misconceptions=misconceptions(
        pixels="Every stage worked on the batch itself, and nothing was sent: only rank 0's stage takes x_BD, the "
        "others take what the rank before sends.",
        ran_on_batch="The stage ran on x_BD, not on what was received: only rank 0's inputs are the batch.",
        not_received="A rank returned without receiving what the rank before sends to it. Only rank 0's inputs are "
        "the batch: every other rank receives its own.",
        two_ranks="This is right with two ranks only: a rank receives from rank - 1 and sends to rank + 1, not from "
        "rank 0 or to the last rank.",
        len_of_batch="x_BD is None here: only rank 0 needs the batch. How many rows it has stands in num_rows.",
        asks="Rank 0's inputs are asked to require grad. They are the batch, which nobody trains, and a batch of whole "
        "numbers cannot require grad: leave it as it is.",
        swapped="The two are swapped: return (inputs, outputs).",
        sends_inputs="Every stage sent its inputs on instead of its outputs, so each stage worked on the batch itself.",
        no_graph="The outputs have no graph, so no gradient can come back through this stage: return what the stage "
        "gave, not what was sent, and run it outside of torch.no_grad().",
        other_inputs="The inputs that you return are not the tensor that went through the stage: their .grad stays "
        "None, and there would be nothing to send back.",
        runs_again="The stage ran more than once. What is sent on and what is kept for the backward pass must come of "
        "one run: a second one costs as much again, and with dropout it gives other numbers.",
        outputs_only="Both are asked for, inputs and outputs: the backward pass starts at the outputs and ends at the "
        "inputs.",
        last_sends="The last rank has nobody to send to: its outputs stay, for the loss.",
        first_receives="Rank 0 has nobody before it: its inputs are the batch.",
        wrong_way="Outputs go on to the rank after this one, rank + 1; it is gradients that go to the rank before.",
        ring="The last rank sends its outputs to rank 0, which does not wait for them. This is a line, not a ring.",
        in_vain="A rank waits for an activation that is never sent: every rank but the last sends its outputs on, and "
        "every rank but the first receives once for each batch.",
        messages="More messages crossed a cut than the one activation. What shapes look like was agreed on before.",
        collective="A collective takes every rank of the world; an activation goes to one: send_activation.",
    ),
    hints=(
        "Three steps: get the inputs (rank 0 has them, the others receive them), run the stage, and send the outputs "
        "on (all but the last rank).",
        "inputs = x_BD if rank == 0 else recv_activation(no_rows_0D, num_rows, rank - 1). Return (inputs, outputs).",
    ),
    uses=("send_activation", "recv_activation"),
)
