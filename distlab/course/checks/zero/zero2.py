"""The check of zero2_step: gradients are scattered as they come, and each rank keeps one part of them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn

from distlab.course.checks.zero.common import (
    divided,
    elements,
    held_inside,
    in_words,
    inside,
    padded,
    part,
    same_memory,
    storage_bytes,
    unit_of,
    wrong_constant,
)
from distlab.course.checks.zero.zero1 import why_sizes_differ
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Wrong
from distlab.course.kit.case import with_ranks
from distlab.course.kit.fixtures import misconceptions
from distlab.course.trial import RankFailed, Trial
from distlab.ranks.outcome import Run
from distlab.ranks.watching.spans import span

STEPS = 2
WATCHED = 3  # ranks of the run whose memory is looked at
BYTES = 8  # of a float64


def model_of(seed: int) -> nn.Sequential:
    """Three layers of 16, 20 and 10 numbers, and a frozen one between; the same for the same seed."""
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)).double()
    layers[2].requires_grad_(False)
    return layers


def layers_of(model: nn.Sequential) -> list[nn.Module]:
    """The layers that are trained, each a unit."""
    return [model[0], model[3], model[4]]


def loss_of(model: nn.Module, seed: int, rank: int, turn: int) -> torch.Tensor:
    """A rank's loss on rows of its own."""
    generator = torch.Generator().manual_seed(seed + 100 * turn + rank)
    return model(torch.randn(5, 3, generator=generator, dtype=torch.float64)).square().mean()


def stepped(zero2_step, seed: int) -> dict:
    """On a rank: two steps; what the optimizers got, the weights after each, and how long gradients lived."""
    rank, model = dist.get_rank(), model_of(seed)
    units = [unit_of(list(layer.parameters())) for layer in layers_of(model)]
    given = [unit.weights_P for unit in units]
    notes = dict(weights=[], calls=[], alive=[], left=[], parts=[])
    for turn in range(STEPS):
        with span(f"step {turn}"):
            zero2_step(units, lambda turn=turn: _backward(model, units, seed, rank, turn, notes))
        notes["weights"].append([unit.weights_P.detach().clone() for unit in units])
        notes["left"].append(_with_gradients(units))
        for unit in units:
            unit.shard_S.grad = None
    kept = [same_memory(unit.weights_P, weights_P) for unit, weights_P in zip(units, given)]
    return notes | dict(seen=[unit.optimizer.seen for unit in units], kept=all(kept))


def _backward(model, units: list[SimpleNamespace], seed: int, rank: int, turn: int, notes: dict) -> None:
    """Computes gradients; where the very last one arrives, notes which of the other units still hold theirs."""
    notes["calls"].append(turn)
    alive: list[int] = []
    last = [p.register_post_accumulate_grad_hook(lambda _: alive.append(_with_gradients(units[1:]))) for p in
            units[0].parameters]  # fmt: skip
    with span("backward"):
        loss_of(model, seed, rank, turn).backward()
    for hook in last:
        hook.remove()
    notes["alive"].append(alive[-1])
    notes["parts"].append([storage_bytes(unit.shard_S.grad) for unit in units])


def _with_gradients(units: list[SimpleNamespace]) -> int:
    return sum(any(p.grad is not None for p in unit.parameters) for unit in units)


def check_zero2_step(learners: Callable, trial: Trial) -> str:
    """Tries two steps of three units."""
    for ranks in (3, 2, 4, 1):
        case = f"{with_ranks(ranks)} and units of 16, 20 and 10 numbers"
        try:
            record = True if ranks == WATCHED else "messages"
            run = trial.watch(case, stepped, learners, trial.seed, ranks=ranks, record=record)
        except RankFailed as failed:
            raise failed.because(*why_sizes_differ(failed)) from None
        _forms(case, run, ranks)
        _values(case, run, ranks, trial.seed)
        _gathers(case, run, ranks)
        _memory(case, run, ranks)
    return (
        "weights equal one process's after every step; each unit's gradients are scattered during the backward pass "
        "and let go, 2Ψ (N − 1)/N elements are sent; with 1 to 4 ranks"
    )


def _lengths(ranks: int) -> list[int]:
    return [size + -size % ranks for size in (16, 20, 10)]


def _forms(case: str, run: Run, ranks: int) -> None:
    """Raises Wrong unless gradients are reduced when they should be, by what they should be."""
    notes, total = run.values[0], sum(_lengths(ranks))
    if notes["calls"] != list(range(STEPS)):
        raise Wrong(case, f"backward() was called {len(notes['calls'])} times in {STEPS} steps, expected once a step")
    sizes = [elements(inside(run.recording, 0, f"step {turn}")) for turn in range(STEPS)]
    during = elements(inside(run.recording, 0, "backward"))
    if ranks > 1:
        if sizes[0]["all_reduce"] >= total:
            raise Wrong(case, f"elements in a step: got {in_words(sizes[0])}, expected no all_reduce", ("all-reduce",))
        if not sizes[0]["reduce_scatter"]:
            detail = f"elements in step 1: got {in_words(sizes[0])}, expected a reduce_scatter of every unit"
            raise Wrong(case, detail, ("never",))
        _units(case, [m.elements for m in inside(run.recording, 0, "step 0") if m.kind == "reduce_scatter"], ranks)
        if not during["reduce_scatter"] and sizes[0]["reduce_scatter"]:
            detail = "reduce_scatter during backward(): expected one for each unit, got none"
            raise Wrong(case, detail, ("late",))
        if sizes[1]["reduce_scatter"] > sizes[0]["reduce_scatter"]:
            detail = f"in step 1 {in_words(sizes[0])} elements, in step 2 {in_words(sizes[1])}"
            raise Wrong(f"{case}, step 2", detail, ("hooks-stay",))
        if during["all_gather"]:
            detail = f"elements during backward(): got {in_words(during)}, expected reduce_scatter alone"
            raise Wrong(case, detail, ("in-hook",))
    alive = notes["alive"]
    if any(alive):
        detail = f"when the last gradient came, {alive[0]} of the 2 other units still held their own; expected 0"
        raise Wrong(case, detail, ("kept",))
    if any(notes["left"]):
        raise Wrong(case, f"after the step {notes['left'][0]} units hold .grad tensors, expected 0", ("kept",))


def _units(case: str, lengths: list[int], ranks: int) -> None:
    """Raises Wrong where the lengths of what was reduced in the first step, in order, show a known mistake."""
    right = _lengths(ranks)
    detail = f"elements of the reduce_scatters in step 1: expected {right[::-1]}, got {lengths}"
    if lengths == right[-1:] * len(right):
        raise Wrong(case, detail, ("loop-variable",))
    if lengths == [length for length in right[::-1] for _ in range(2)]:  # each unit has two parameters
        raise Wrong(case, detail, ("each-parameter",))


def _memory(case: str, run: Run, ranks: int) -> None:
    """Raises Wrong unless gradients are as small as their parts during the first backward pass, and buckets go."""
    parts = [BYTES * length // ranks for length in _lengths(ranks)]
    got = run.values[0]["parts"][0]
    if any(size > part for size, part in zip(got, parts)):
        detail = f"bytes that the .grad of the three shards keep in memory: expected {parts}, got {got}"
        raise Wrong(case, detail, ("view",))
    looks = held_inside(run.recording, 0, "backward")
    if not looks:  # this run's memory was not looked at
        return
    gradients, buffers = (max(getattr(look, kind) for look in looks) for kind in ("gradients", "buffers"))
    if gradients > sum(parts):
        detail = f"bytes of gradients in backward(): expected no more than the parts' {sum(parts)}, got {gradients}"
        raise Wrong(case, detail, ("late-free",))
    one = BYTES * max(_lengths(ranks)) + max(parts)
    if buffers > one + sum(parts):
        detail = f"bytes of buffers in backward(): expected no more than {one} (a bucket and its part), got {buffers}"
        raise Wrong(case, detail, ("buckets",))


def _values(case: str, run: Run, ranks: int, seed: int) -> None:
    """Raises Wrong unless gradients and weights are those of one process."""
    model = model_of(seed)
    flat = [padded(list(layer.parameters()), ranks) for layer in layers_of(model)]
    for turn in range(STEPS):
        own = [_gradients(model, seed, rank, turn, ranks) for rank in range(ranks)]
        mean = [sum(of_unit) / ranks for of_unit in zip(*own)]
        seen = [[of_unit[turn] if turn < len(of_unit) else None for of_unit in v["seen"]] for v in run.values]
        want = [[part(m, rank, ranks) for m in mean] for rank in range(ranks)]
        beliefs = {
            "no-step": [[None] * 3] * ranks,
            "only-rank-0": [want[0], *[[None] * 3] * (ranks - 1)],
            "cleared-first": [[torch.zeros_like(p) for p in of_rank] for of_rank in want],
            "sum": [[p * ranks for p in of_rank] for of_rank in want],
            "own": [[part(g, rank, ranks) for g in own[rank]] for rank in range(ranks)],
            "twice": [[p / ranks for p in of_rank] for of_rank in want],
        }
        if constant := wrong_constant(seen, beliefs["sum"], ranks):
            beliefs["constant"] = divided(beliefs["sum"], constant)
        fields = dict(ranks=ranks, constant=constant)
        compare(f"{case}, step {turn + 1}, the gradients that the optimizers got", seen, want, beliefs, **fields)
        new = [f - m for f, m in zip(flat, mean)]
        got = [v["weights"][turn] for v in run.values]
        beliefs = {
            "not-gathered": [_mixed(flat, new, rank, ranks) for rank in range(ranks)],
            "first-unit": [[new[0], *_mixed(flat, new, rank, ranks)[1:]] for rank in range(ranks)],
            "last-unit": [[*_mixed(flat, new, rank, ranks)[:-1], new[-1]] for rank in range(ranks)],
        }
        compare(f"{case}, step {turn + 1}, the weights of the units", got, [new] * ranks, beliefs)
        if not run.values[0]["kept"]:
            detail = "unit.weights_P is another tensor after the step; expected the same one, with new numbers in it"
            raise Wrong(case, detail, ("new-weights",))
        flat = new
        _set(model, flat)


def _gathers(case: str, run: Run, ranks: int) -> None:
    sizes = elements(inside(run.recording, 0, "step 0"))
    total = sum(_lengths(ranks))
    if ranks > 1 and dict(sizes) != {"reduce_scatter": total, "all_gather": total}:
        detail = f"elements in a step: expected reduce_scatter {total}, all_gather {total}, got {in_words(sizes)}"
        raise Wrong(case, detail)


def _gradients(model: nn.Module, seed: int, rank: int, turn: int, ranks: int) -> list[torch.Tensor]:
    model.zero_grad()
    loss_of(model, seed, rank, turn).backward()
    return [padded([p.grad for p in layer.parameters()], ranks) for layer in layers_of(model)]


def _set(model: nn.Module, flat: list[torch.Tensor]) -> None:
    for layer, values in zip(layers_of(model), flat):
        sizes = [p.numel() for p in layer.parameters()]
        for p, value in zip(layer.parameters(), values[: sum(sizes)].split(sizes)):
            p.data.copy_(value.view_as(p))


def _mixed(old: list[torch.Tensor], new: list[torch.Tensor], rank: int, ranks: int) -> list[torch.Tensor]:
    """Old weights with this rank's parts new."""
    mixed = [flat.clone() for flat in old]
    for target, source in zip(mixed, new):
        part(target, rank, ranks).copy_(part(source, rank, ranks))
    return mixed


ZERO2_STEP = Exercise(
    "zero2_step",
    check_zero2_step,
    misconceptions=misconceptions(
        late="The gradients are reduced after the backward pass. Until then each rank holds all of them, as in stage "
        "1: reduce a unit in its hook, when it is complete.",
        never="No unit was reduced in the first step. Were the hooks put in before backward() ran, and does the "
        "function they call reduce?",
        cleared_first="The gradients are zeros: .grad was set to None before flatten(unit) had copied it.",
        swapped="The two tensors of a collective stand the wrong way round, or one is of the wrong length: "
        "all_gather(where P numbers go, the S of this rank), reduce_scatter(where S numbers go, the P of this rank).",
        kept="The gradients of a unit that has been reduced are still there: its part is in unit.shard_S.grad, so set "
        "the .grad of its parameters to None. Otherwise stage 2 saves nothing.",
        hooks_stay="Hooks of the first step are still there in the second, so units are reduced twice: remove all of "
        "them, of every unit, after backward().",
        loop_variable="The last unit was reduced again and again, the others never: a function that is made in a loop "
        "looks up the loop's variable when it runs, and then that is the last unit. when_complete hands the complete "
        "unit over as the argument: use that.",
        each_parameter="A unit was reduced for each of its parameters, the first time before all its gradients were "
        "there: when_complete(unit, call) calls once, when the last has come.",
        in_hook="A unit was gathered inside the backward pass: update and gather after it, when all gradients are "
        "there. Who clips by the norm of all gradients could not do so otherwise.",
        view="unit.shard_S.grad is a view of its bucket, and keeps all of it in memory: stage 2 saves nothing so. Let "
        "reduce_scatter write into a tensor of the shard's size, torch.empty_like(unit.shard_S).",
        buckets="Buckets pile up: every one is still in memory when the next comes. Hold it in a name inside the "
        "function only, which ends with it.",
        late_free="A unit's gradients are in memory twice while they are sent, in the bucket and as .grad: set .grad "
        "to None after flatten(unit) and before reduce_scatter.",
        new_weights="The new weights are in a new tensor, and the model's parameters are views of the old one: they "
        "never see them. Gather into the weights_P that is there.",
        constant="The sum over {ranks} ranks was divided by {constant}: divide by the world size, whatever it is.",
        all_reduce="The gradients go through an all-reduce, which brings every rank all of them: a reduce-scatter "
        "brings each its part, for half the bytes.",
        no_step="No optimizer got a gradient: each unit has an optimizer of its own, and its step comes after "
        "backward().",
        only_rank_0="Only rank 0's optimizers stepped: every rank has shards of its own, which nobody else moves.",
        sum="The gradients are {ranks} times too large: summed over {ranks} ranks, never divided.",
        own="Every rank stepped with its own gradients: what reduce_scatter wrote never reached unit.shard_S.grad.",
        twice="The gradients are {ranks} times too small: divided by the number of ranks twice.",
        whole="A shard was given its unit's whole gradient; it wants the part that reduce_scatter wrote.",
        not_gathered="Each rank has moved its own parts of the weights, and has the old numbers everywhere else: "
        "gather every unit after its step.",
        first_unit="Only the first unit was gathered after the step; each has weights of its own.",
        last_unit="Only the last unit was gathered after the step: is all_gather inside the loop over the units?",
    ),
    hints=(
        "Write a small function scatter(unit): flatten(unit), let the .grad of every parameter go, reduce_scatter into "
        "a new part of the shard's size, divide, hand it to unit.shard_S.grad. when_complete(unit, scatter) has it "
        "called in time.",
        "hooks = [hook for unit in units for hook in when_complete(unit, scatter)]; backward(); remove them; "
        "then for each unit: unit.optimizer.step() and all_gather(unit.weights_P, unit.shard_S).",
    ),
)
