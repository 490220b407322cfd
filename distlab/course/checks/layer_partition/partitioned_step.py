"""The check of partitioned_step: training on real digits equals one process's at every step."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from distlab.course.checks.layer_partition.common import borders, listed, misconceptions, named, the_cuts, with_ranks
from distlab.course.compare import compare, difference_by_rank
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import RankFailed, Trial
from distlab.events import Span
from distlab.ranks.watching.spans import span
from distlab.recording import Recording

_WIDTHS = 64, 12, 12, 12, 10


def make_layers(layers: range, seed: int) -> nn.Sequential:
    """Some layers of a small model for digits, in float64."""
    made = []
    with torch.random.fork_rng(devices=[]):
        for number in layers:
            torch.manual_seed(seed + number)
            layer = nn.Linear(_WIDTHS[number], _WIDTHS[number + 1])
            made.append(nn.Sequential(layer, nn.Tanh()) if number < len(_WIDTHS) - 2 else layer)
    return nn.Sequential(*made).double()


def batches_of(sizes: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of real digits. Called off the ranks: what digits come from takes them a second to import."""
    from distlab.data import digits

    x, y = digits("train", torch.float64)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [(x[start : start + size], y[start : start + size]) for start, size in zip(starts, sizes)]


def trained(partitioned_step, batches: list, seed: int, only_first: bool) -> list[dict]:
    """On a rank: notes of every step: its loss, its gradients when the optimizer stepped, its weights.

    ``only_first``: rank 0 alone holds the rows.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    layers = borders(len(_WIDTHS) - 1, world)[rank]
    stage = make_layers(layers, seed)
    no_rows = torch.empty(0, _WIDTHS[layers.start], dtype=torch.float64)
    with span("steps"):
        if only_first and rank > 0:
            batches = [(None, y) for _, y in batches]
        return _history(partitioned_step, stage, batches, no_rows)


def _history(step, stage: nn.Module, batches: list, *arguments) -> list[dict]:
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.2, momentum=0.9)
    seen, arrived, ready, notes = [], [], [], []
    for parameter in stage.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: arrived.append(1))

    def look(*_):
        seen.append(_gradients(stage))
        ready.append(bool(arrived))

    optimizer.register_step_pre_hook(look)
    for x, y in batches:
        seen.clear(), arrived.clear(), ready.clear()
        mine = None if x is None else x.clone(), y.clone()
        loss = step(stage, optimizer, *mine, *arguments)
        kept = (x is None or torch.equal(mine[0], x)) and torch.equal(mine[1], y)
        gradients = seen[-1] if seen else {}
        note = dict(loss=loss, num_steps=len(seen), gradients=gradients, weights=_weights(stage), kept=kept)
        notes.append(note | dict(ready=all(ready)))
    return notes


def _gradients(stage: nn.Module) -> dict:
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in stage.named_parameters()}


def _weights(stage: nn.Module) -> dict:
    return {n: p.detach().clone() for n, p in stage.named_parameters()}


def _one_process(reduction: str = "mean", clears: bool = True, softmax: bool = False) -> Callable:
    def step(model, optimizer, x, y):
        outputs = model(x).softmax(1) if softmax else model(x)
        loss = F.cross_entropy(outputs, y, reduction=reduction)
        loss.backward()
        optimizer.step()
        if clears:
            optimizer.zero_grad()
        return loss.item()

    return step


def check_partitioned_step(learners: Callable, trial: Trial) -> str:
    """Tries whole steps against one process, on batches of different sizes, at last with the rows on rank 0 alone."""
    for ranks, sizes in ((2, [4]), (3, [5, 3]), (1, [5, 3]), (4, [7, 7, 2])):
        _try_training(learners, trial, ranks, sizes)
    return (
        "loss, gradients and weights of every stage equal one process's at every step, on real digits; with 1 to 4 "
        "ranks, batches of different sizes, and one message each way over each cut a step; also with the rows on rank "
        "0 alone"
    )


def _try_training(learners, trial: Trial, ranks: int, sizes: list[int]) -> None:
    case = f"{with_ranks(ranks)} and {'batches' if sizes[1:] else 'a batch'} of {listed(sizes)} rows"
    only_first = ranks == 4
    case += ", which rank 0 alone holds" * only_first
    try:
        run = trial.watch(case, trained, learners, batches_of(sizes), trial.seed, only_first, ranks=ranks)
    except RankFailed as failed:
        raise named(failed, _WORDS) from None
    right = _simulated(sizes, trial.seed, ranks, _one_process())
    try:
        _compare(case, sizes, run.values, right, {})
    except Wrong:  # only now is it worth working out what the misconceptions would have given
        wrong = {"sum": _one_process(reduction="sum"), "no-clear": _one_process(clears=False)}
        wrong["softmax"] = _one_process(softmax=True)
        _compare(case, sizes, run.values, right, {i: _simulated(sizes, trial.seed, ranks, s) for i, s in wrong.items()})
        raise
    cuts = [_WIDTHS[layers.start] for layers in borders(len(_WIDTHS) - 1, ranks)[1:]]
    _count(case, run.recording, cuts, sizes)


def _compare(case: str, sizes: list[int], by_rank: list, right: list, wrong: dict[str, list]) -> None:
    for number, rows in enumerate(sizes):
        came = [notes[number] for notes in by_rank]
        beliefs = {id: steps[number] for id, steps in wrong.items()}
        _check_step(f"{case}, step {number + 1}", came, right[number], beliefs, dict(rows=rows, ranks=len(by_rank)))


def _simulated(sizes: list[int], seed: int, ranks: int, step: Callable) -> list[list[dict]]:
    """One process's notes, cut up as the ranks hold them: by step, by rank."""
    model = make_layers(range(len(_WIDTHS) - 1), seed)
    history = _history(step, model, batches_of(sizes))
    return [[_part(notes, layers) for layers in borders(len(_WIDTHS) - 1, ranks)] for notes in history]


def _part(notes: dict, layers: range) -> dict:
    is_last = layers.stop == len(_WIDTHS) - 1
    cut = {
        what: {f"{int(name.split('.')[0]) - layers.start}.{name.split('.', 1)[1]}": value
               for name, value in notes[what].items() if int(name.split(".")[0]) in layers}
        for what in ("gradients", "weights")
    }  # fmt: skip
    return cut | dict(loss=notes["loss"] if is_last else None)


def _check_step(case: str, came: list[dict], right: list[dict], wrong: dict[str, list[dict]], fields: dict) -> None:
    steps = [notes["num_steps"] for notes in came]
    if steps != [1] * len(steps):
        known = ("no-step",) if not any(steps) else ("last-steps",) if steps == [0] * (len(steps) - 1) + [1] else ()
        rank = next(r for r, number in enumerate(steps) if number != 1)
        raise Wrong(f"{case}, optimizer steps", f"rank {rank}: expected 1, got {steps[rank]}", known, **fields)
    nothing = [{n: torch.zeros_like(g) for n, g in notes["gradients"].items()} for notes in right]
    for what in ("gradients", "weights"):
        beliefs = {id: [notes[what] for notes in believed] for id, believed in wrong.items()}
        if what == "gradients":
            beliefs["cleared" if all(notes["ready"] for notes in came) else "early"] = nothing
            beliefs["last-only"] = [*nothing[:-1], right[-1]["gradients"]]
        compare(f"{case}, the {what}", [n[what] for n in came], [n[what] for n in right], beliefs, **fields)
    _check_loss(f"{case}, the loss", [n["loss"] for n in came], [n["loss"] for n in right], fields)
    if not all(notes["kept"] for notes in came):
        raise Wrong(case, "expected the batch as it was, its numbers changed")


def _check_loss(case: str, came: list, right: list, fields: dict) -> None:
    if isinstance(came[-1], torch.Tensor):
        raise Wrong(case, f"expected a float, got {came[-1]!r}", ("tensor",), **fields)
    everyone = [right[-1]] * len(right)
    if len(right) > 1 and not difference_by_rank(came, everyone):
        raise Wrong(case, "rank 0: expected None, got the loss", ("told",), **fields)
    early = next((loss for loss in came[:-1] if isinstance(loss, float)), None)
    if early is not None:
        raise Wrong(case, f"a rank before the last: expected None, got {early:.6g}", ("loss-everywhere",), **fields)
    compare(case, came, right, {"sum": [None] * (len(right) - 1) + [right[-1] * fields["rows"]]}, **fields)


def _count(case: str, recording: Recording, widths: list[int], sizes: list[int]) -> None:
    """Raises Wrong unless each cut was crossed once each way at every step."""
    histories = []
    for history in recording.ranks:
        begin = next(i for i, event in enumerate(history) if isinstance(event, Span) and event.name == "steps")
        histories.append(history[begin:])
    if len(set(sizes)) == 1:
        cuts = [8 * sizes[0] * width for width in widths]
        the_cuts(case, Recording(histories, recording.groups), cuts, cuts, len(sizes))
        return
    for rank, history in enumerate(histories):
        sends = [event for event in history if getattr(event, "kind", "") == "send"]
        want = len(sizes) * ((rank > 0) + (rank < len(histories) - 1))
        if len(sends) != want:
            detail = f"messages that rank {rank} sent in {len(sizes)} steps: expected {want}, got {len(sends)}"
            raise Wrong(case, detail, ("messages",) if len(sends) > want else (), extra=len(sends) - want)


_WORDS = {
    "len-of-batch": ("object of type 'NoneType' has no len()", "'NoneType' object has no attribute 'shape'"),
    "fixed-rows": ("the receive is", "Expected input batch_size"),
    "collective": None,
}

PARTITIONED_STEP = Exercise(
    "partitioned_step",
    check_partitioned_step,
    misconceptions=misconceptions(
        no_step="No optimizer took a step.",
        last_steps="Only the last rank's optimizer took a step. Each rank steps for its own stage; nobody else can.",
        no_clear="The gradients of the steps add up: clear them after each, with optimizer.zero_grad().",
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
        told="Every rank knows the loss, so it was sent to all. Nobody but the last rank needs it: return None "
        "elsewhere, and save the message.",
        messages="More was sent than an activation and a gradient over each cut and step. Shapes are agreed on once, "
        "before the training.",
        loss_everywhere="Ranks before the last return a number of their own. Only the last rank's outputs are the "
        "model's: elsewhere there is no loss, it is None.",
        fixed_rows="A message has another shape than the memory waiting for it: the number of rows may change from "
        "batch to batch, and it is len(y_B).",
        collective="{kind} takes every rank of the world; here only neighbours talk, by send and recv.",
    ),
    hints=(
        "Five steps: forward_stage; on the last rank the loss, elsewhere None; backward_stage; the optimizer's step; "
        "clear the gradients.",
        "F.cross_entropy(outputs, y_B) on the last rank. len(y_B) is the number of rows. Return loss.item() on the "
        "last rank and None elsewhere.",
    ),
    uses=("forward_stage", "backward_stage"),
)
