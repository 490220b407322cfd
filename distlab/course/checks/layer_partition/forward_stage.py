"""The check of forward_stage: one process's activations at every cut, and one message over each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from distlab.course.checks.layer_partition.common import (
    given,
    make_part,
    misconceptions,
    named,
    no_such_rank,
    the_cuts,
    with_ranks,
)
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import ASIDE, RankFailed, Trial

_ARRIVED = f"{ASIDE}a message has arrived"


class AsNumbers(nn.Module):
    """Stands before a first stage whose batch holds whole numbers, as a text does."""

    def forward(self, x):
        return x.double() / 4


def batch_and_parts(widths: list[int], num_rows: int, seed: int, whole: bool, ranks: int):
    """The batch, and every rank's stage; ``whole`` for a batch of whole numbers."""
    x = given(num_rows, widths[0], seed)
    parts = [make_part(widths, rank, seed) for rank in range(ranks)]
    return ((4 * x).round().long(), [nn.Sequential(AsNumbers(), parts[0]), *parts[1:]]) if whole else (x, parts)


@contextmanager
def telling_receives() -> Iterator[None]:
    """On a rank: prints a line for each message that has arrived."""
    real = dist.recv

    def recv(*args, **kwargs):
        source = real(*args, **kwargs)
        print(_ARRIVED)
        return source

    dist.recv = recv
    try:
        yield
    finally:
        dist.recv = real


def passed_on(forward_stage, widths: list[int], num_rows: int, seed: int, only_first: bool) -> dict:
    """On a rank: what its stage took in and gave out, and whether a gradient would get through.

    ``only_first``: rank 0 alone holds the batch, and it is of whole numbers.
    """
    rank = dist.get_rank()
    batch, parts = batch_and_parts(widths, num_rows, seed, only_first, dist.get_world_size())
    stage, x = parts[rank], None if only_first and rank > 0 else batch.clone()
    calls = []
    stage.register_forward_hook(lambda *_: calls.append(1))
    no_rows = torch.empty(0, widths[rank], dtype=batch.dtype if rank == 0 else torch.float64)
    with telling_receives():
        came = forward_stage(stage, x, num_rows, no_rows)
    if not isinstance(came, tuple) or len(came) != 2 or not all(isinstance(h, torch.Tensor) for h in came):
        return dict(type=repr(type(came).__name__))
    inputs, outputs = came
    notes = dict(type="", inputs=inputs.detach().clone(), outputs=outputs.detach().clone(), calls=len(calls))
    notes |= dict(has_graph=outputs.requires_grad, reaches=rank == 0)
    notes["asks"] = inputs.requires_grad
    if outputs.requires_grad and rank > 0:
        outputs.sum().backward()
        notes["reaches"] = inputs.is_leaf and inputs.grad is not None
    return notes | dict(kept=x is None or torch.equal(x, batch))


def check_forward_stage(learners: Callable, trial: Trial) -> str:
    """Tries ``forward_stage`` on stages of one width, then of many with whole numbers on rank 0 alone."""
    for ranks, widths, num_rows, only_first in (
        (2, [4, 4, 4], 3, False),
        (3, [4, 4, 4, 4], 3, False),
        (1, [4, 3], 2, False),
        (4, [4, 3, 5, 2, 3], 7, True),
    ):
        _try_forward(learners, trial, ranks, widths, num_rows, only_first)
    return (
        "inputs and outputs of every stage are one process's; one message over each cut, of the activation's size; "
        "with 1 to 4 ranks, and with a batch of whole numbers on rank 0 alone"
    )


def _try_forward(learners, trial: Trial, ranks: int, widths: list[int], num_rows: int, only_first: bool) -> None:
    case = f"{with_ranks(ranks)} and {num_rows} rows" + (" of whole numbers, which rank 0 alone holds" * only_first)
    try:
        run = trial.watch(case, passed_on, learners, widths, num_rows, trial.seed, only_first, ranks=ranks)
    except RankFailed as failed:
        arrived = any(_ARRIVED in failed.error.output[rank] for rank in failed.error.failures)
        raise named(failed, _words(ranks, arrived)) from None
    came = run.values
    for rank, notes in enumerate(came):
        if notes["type"]:
            detail = f"rank {rank}: expected two tensors, (inputs, outputs), got {notes['type']}"
            raise Wrong(case, detail, ("outputs-only",) if notes["type"] == "'Tensor'" else ())
    right, beliefs = _right_and_wrong(widths, num_rows, trial.seed, only_first, ranks)
    if not run.recording.messages(kind="send"):
        beliefs["pixels"] = beliefs.pop("sends-inputs", right)
    got = [dict(outputs=notes["outputs"], inputs=notes["inputs"]) for notes in came]
    compare(case, got, right, beliefs)
    _check_graph(case, came)
    sizes = [8 * num_rows * width for width in widths[1:ranks]]
    the_cuts(case, run.recording, sizes, [0] * ranks)


def _right_and_wrong(widths: list[int], num_rows: int, seed: int, whole: bool, ranks: int) -> tuple[list, dict]:
    """One process's outputs and inputs by stage, and what each misconception would have given."""
    x, parts = batch_and_parts(widths, num_rows, seed, whole, ranks)
    inputs, outputs = [], []
    with torch.no_grad():
        for part in parts:
            inputs.append(outputs[-1] if outputs else x)
            outputs.append(part(inputs[-1]))
        alone = [part(x) for part in parts] if len(set(widths)) == 1 and ranks > 1 else []

    def pairs(outputs: list, inputs: list) -> list[dict]:
        return [dict(outputs=gave, inputs=took) for gave, took in zip(outputs, inputs)]

    wrong = {"swapped": pairs(inputs, outputs)}
    if alone:
        wrong |= {"sends-inputs": pairs(alone, [x] * ranks), "ran-on-batch": pairs(alone, [x, *alone[:-1]])}
    return pairs(outputs, inputs), wrong


def _check_graph(case: str, came: list[dict]) -> None:
    for rank, notes in enumerate(came):
        if not notes["has_graph"]:
            detail = f"rank {rank}, outputs.requires_grad: expected True, got False"
            raise Wrong(case, detail, ("no-graph",))
        if not notes["reaches"]:
            detail = f"rank {rank}: after outputs.sum().backward(), expected inputs.grad, got None"
            raise Wrong(case, detail, ("other-inputs",))
        if notes["calls"] != 1:
            raise Wrong(case, f"rank {rank}: expected its stage to run once, it ran {notes['calls']} times")
        if rank == 0 and notes["asks"]:
            raise Wrong(case, "rank 0, inputs.requires_grad: expected False, got True", ("asks",))
        if not notes["kept"]:
            raise Wrong(case, f"rank {rank}: expected x_BD as it was, its numbers changed")


def _words(ranks: int, arrived: bool) -> dict[str, str | tuple[str, ...] | None]:
    """``arrived``: a rank that did not finish had its message."""
    circle = "ranks 0 → 2 → 1 → 0 wait in a circle"
    wrong_peers = ("but rank 2 receives from rank 0", "rank 0 sends to rank 2", circle)
    return {
        "asks": "can require gradients",
        "len-of-batch": ("object of type 'NoneType' has no len()", "'NoneType' object has no attribute 'shape'"),
        "two-ranks": wrong_peers if ranks == 3 else None,
        "not-received": "returned without receiving what rank 0 waits to send to it",
        "twice": "returned without sending" if arrived else None,
        "last-sends": no_such_rank("send", ranks, ranks),
        "first-receives": no_such_rank("recv", -1, ranks),
        "wrong-way": no_such_rank("send", -1, ranks),
        "ring": f"rank 0 returned without receiving what rank {ranks - 1} waits to send",
        "never-sends": "returned without sending",
        "collective": None,
    }


FORWARD_STAGE = Exercise(
    "forward_stage",
    check_forward_stage,
    misconceptions=misconceptions(
        pixels="Every stage worked on the batch itself, and nothing was sent: only rank 0's stage takes x_BD, the "
        "others take what the rank before sends.",
        ran_on_batch="The stage ran on x_BD, not on what was received: only rank 0's inputs are the batch.",
        not_received="A rank returned without receiving what the rank before sends to it. Only rank 0's inputs are "
        "the batch: every other rank receives its own.",
        twice="A rank waits for a second activation after its first: one comes for each batch, so receive once.",
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
        outputs_only="Both are asked for, inputs and outputs: the backward pass starts at the outputs and ends at the "
        "inputs.",
        last_sends="The last rank has nobody to send to: its outputs stay, for the loss.",
        first_receives="Rank 0 has nobody before it: its inputs are the batch.",
        wrong_way="Outputs go on to the rank after this one, rank + 1; it is gradients that go to the rank before.",
        ring="The last rank sends its outputs to rank 0, which does not wait for them. This is a line, not a ring.",
        never_sends="A rank waits for an activation that was never sent: every rank but the last sends its outputs on.",
        messages="More messages crossed a cut than the one activation. What shapes look like was agreed on before.",
        collective="{kind} takes every rank of the world; an activation goes to one: send_activation.",
    ),
    hints=(
        "Three steps: get the inputs (rank 0 has them, the others receive them), run the stage, and send the outputs "
        "on (all but the last rank).",
        "inputs = x_BD if rank == 0 else recv_activation(no_rows_0D, num_rows, rank - 1). Return (inputs, outputs).",
    ),
    uses=("send_activation", "recv_activation"),
)
