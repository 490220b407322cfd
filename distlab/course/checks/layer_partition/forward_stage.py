"""The check of forward_stage: one process's activations at every cut, and one message over each."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from distlab.course.checks.layer_partition.common import (
    given,
    make_part,
    misconceptions,
    named,
    no_such_rank,
    the_cuts,
    with_ranks,
)
from distlab.course.compare import compare, difference_by_rank
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import RankFailed, Trial


def passed_on(forward_stage, widths: list[int], num_rows: int, seed: int, everyone: bool) -> dict:
    """On a rank: what its stage took in and gave out, and whether a gradient would get through.

    ``everyone`` holds the batch; otherwise rank 0 alone does.
    """
    rank = dist.get_rank()
    stage = make_part(widths, rank, seed)
    x = given(num_rows, widths[0], seed) if everyone or rank == 0 else None
    calls = []
    stage.register_forward_hook(lambda *_: calls.append(1))
    no_rows = torch.empty(0, widths[rank], dtype=torch.float64)
    came = forward_stage(stage, x, num_rows, no_rows)
    if not isinstance(came, tuple) or len(came) != 2 or not all(isinstance(h, torch.Tensor) for h in came):
        return dict(type=repr(type(came).__name__))
    inputs, outputs = came
    notes = dict(type="", inputs=inputs.detach().clone(), outputs=outputs.detach().clone(), calls=len(calls))
    notes |= dict(has_graph=outputs.requires_grad, reaches=rank == 0)
    if outputs.requires_grad and rank > 0:
        outputs.sum().backward()
        notes["reaches"] = inputs.is_leaf and inputs.grad is not None
    return notes | dict(kept=x is None or torch.equal(x, given(num_rows, widths[0], seed)))


def check_forward_stage(learners: Callable, trial: Trial) -> str:
    """Tries ``forward_stage`` on stages of one width, then of many, at last with the batch on rank 0 alone."""
    for ranks, widths, num_rows, everyone in (
        (2, [4, 4, 4], 3, True),
        (3, [4, 4, 4, 4], 3, True),
        (1, [4, 3], 2, True),
        (4, [4, 3, 5, 2, 3], 7, False),
    ):
        _try_forward(learners, trial, ranks, widths, num_rows, everyone)
    return (
        "inputs and outputs of every stage are one process's; one message over each cut, of the activation's size; "
        "with 1 to 4 ranks, and with the batch on rank 0 alone"
    )


def _try_forward(learners, trial: Trial, ranks: int, widths: list[int], num_rows: int, everyone: bool) -> None:
    case = f"{with_ranks(ranks)} and {num_rows} rows" + ("" if everyone else ", which rank 0 alone holds")
    try:
        run = trial.watch(case, passed_on, learners, widths, num_rows, trial.seed, everyone, ranks=ranks)
    except RankFailed as failed:
        raise named(failed, _words(ranks)) from None
    came = run.values
    for rank, notes in enumerate(came):
        if notes["type"]:
            detail = f"rank {rank}: expected two tensors, (inputs, outputs), got {notes['type']}"
            raise Wrong(case, detail, ("outputs-only",) if notes["type"] == "'Tensor'" else ())
    parts = [make_part(widths, rank, trial.seed) for rank in range(ranks)]
    x, inputs, outputs = given(num_rows, widths[0], trial.seed), [], []
    with torch.no_grad():
        for part in parts:
            inputs.append(outputs[-1] if outputs else x)
            outputs.append(part(inputs[-1]))
        alone = [part(x) for part in parts] if len(set(widths)) == 1 and ranks > 1 else []
    got_in, got_out = [notes["inputs"] for notes in came], [notes["outputs"] for notes in came]
    if alone and difference_by_rank(alone, outputs):
        sends = bool(run.recording.messages(kind="send"))
        beliefs = {"sends-inputs" if sends else "pixels": alone}
        compare(f"{case}, the outputs", got_out, outputs, beliefs)
    compare(f"{case}, the outputs", got_out, outputs)
    compare(f"{case}, the inputs", got_in, inputs)
    _check_graph(case, came)
    sizes = [8 * num_rows * width for width in widths[1:ranks]]
    the_cuts(case, run.recording, sizes, [0] * ranks)


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
        if not notes["kept"]:
            raise Wrong(case, f"rank {rank}: expected x_BD as it was, its numbers changed")


def _words(ranks: int) -> dict[str, str | None]:
    return {
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
        sends_inputs="Every stage sent its inputs on instead of its outputs, so each stage worked on the batch itself.",
        no_graph="The outputs have no graph, so no gradient can come back through this stage: return what the stage "
        "gave, not what was sent.",
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
