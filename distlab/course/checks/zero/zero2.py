"""The check of zero2_step: gradients are scattered as they come, and each rank keeps one part of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn

from distlab.course.checks.zero.common import (
    copy_of,
    divisor,
    padded,
    same_memory,
    storage_bytes,
    unit_of,
    update,
)
from distlab.course.exercise import Exercise
from distlab.course.kit.budget import bytes_sent, more_than
from distlab.course.kit.case import Case, Job
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Complaint, Experiment
from distlab.course.kit.fixtures import misconceptions
from distlab.course.kit.outcome import Outcome
from distlab.ranks.watching.spans import span

Step = Callable[[list[SimpleNamespace], Callable[[], None]], None]
STEPS = 1, 2
GOT = "the gradients that the optimizers got"
LEFT_ALONE = "in a plain backward() after it all, the units that keep their gradients"
SENT_IN_BACKWARD = "the bytes sent during backward()"
IN_TIME = "the bytes of gradients that are reduced during backward()"
HOOKS = "hooks that are still there"
SHARED = "units whose shard's .grad lies in another's memory"
LAST = "the bytes of gradients and buckets when all are reduced"


def model_of(job: Job) -> nn.Sequential:
    """Three layers of 18, 18 and 8 numbers, and a frozen one between; the same for the same seed."""
    torch.manual_seed(job.seed)
    model = nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 5), nn.Linear(5, 3), nn.Linear(3, 2)).to(job.dtype)
    model[2].requires_grad_(False)
    return model


def layers_of(model: nn.Sequential) -> list[nn.Module]:
    """The layers that are trained, each a unit."""
    return [model[0], model[3], model[4]]


def loss_of(model: nn.Module, job: Job, rank: int, turn: int) -> torch.Tensor:
    """A rank's loss on rows of its own."""
    return model(job.random(5, 5, of=10 * turn + rank)).square().mean()


def stepped(step: Step, job: Job, rank: int) -> dict:
    """Of each of two steps of a rank what the optimizers got, the weights, and how long gradients lived."""
    model, found = model_of(job), {}
    units = [unit_of(layer.parameters(), 2, rank, job.ranks) for layer in layers_of(model)]
    given = [unit.weights_P for unit in units]
    for turn in STEPS:
        notes = {"calls of backward()": 0, "units that held gradients when the last one came": None,
                 "optimizer steps during backward()": None}  # fmt: skip
        with span(f"step {turn}"):
            call(
                step,
                units,
                lambda turn=turn, notes=notes: _backward(loss_of(model, job, rank, turn), units, turn, notes),
            )
        notes[SHARED] = _sharing([unit.shard_S.grad for unit in units])
        notes[HOOKS] = sum(len(p._post_accumulate_grad_hooks or ()) for unit in units for p in unit.parameters)
        notes["optimizer steps"] = [len(unit.optimizer.seen) for unit in units]
        notes[GOT] = [dict(enumerate(unit.optimizer.seen)).get(0) for unit in units]
        notes["the weights of the units"] = [copy_of(unit.weights_P) for unit in units]
        notes["every unit.weights_P is the tensor that it was"] = all(
            same_memory(unit.weights_P, weights_P) for unit, weights_P in zip(units, given)
        )
        notes["units that hold gradients after the step"] = _with_gradients(units)
        beyond = [storage_bytes(unit.shard_S.grad) - unit.shard_S.nbytes for unit in units]
        notes["bytes that a shard's .grad keeps beyond its own"] = max(0, *beyond)
        found |= {f"step {turn}, {what}": value for what, value in notes.items()}
        for unit in units:
            unit.shard_S.grad = None
            unit.optimizer.seen.clear()
    loss_of(model, job, rank, 0).backward()
    found[LEFT_ALONE] = _with_gradients(units)
    model.zero_grad()
    for unit in units:  # hooks that stay keep it alive, and the next job's memory is looked at
        vars(unit).clear()
    return found


def _backward(loss: torch.Tensor, units: list[SimpleNamespace], turn: int, notes: dict) -> None:
    """Computes gradients; where the very last one arrives, notes how many of the other units still hold theirs."""
    alive: list[int] = []

    def arrived(_) -> None:
        alive.append(_with_gradients(units[1:]))
        with span(f"last {turn}"):
            pass  # where a span begins memory is looked at

    last = [p.register_post_accumulate_grad_hook(arrived) for p in units[0].parameters]
    with span(f"backward {turn}"):
        loss.backward()
    for hook in last:
        hook.remove()
    notes["calls of backward()"] += 1
    notes["units that held gradients when the last one came"] = alive[-1]
    notes["optimizer steps during backward()"] = sum(len(unit.optimizer.seen) for unit in units)


def _sharing(gradients: Sequence[torch.Tensor | None]) -> int:
    """How many lie where an earlier one does."""
    places = [gradient.data_ptr() for gradient in gradients if gradient is not None]
    return len(places) - len(set(places))


def _with_gradients(units: Sequence[SimpleNamespace]) -> int:
    return sum(any(p.grad is not None for p in unit.parameters) for unit in units)


@lru_cache(maxsize=4)
def expected(job: Job) -> list[dict]:
    """What one process would do; some thirty mistakes are compared with it."""

    def as_one(rank: int) -> Step:
        model, turns = model_of(job), iter(STEPS)

        def step(units: list[SimpleNamespace], backward: Callable[[], None]) -> None:
            parameters = [p for unit in units for p in unit.parameters]
            hooks = [p.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None)) for p in parameters]
            backward()
            for hook in hooks:
                hook.remove()
            for unit, mean_P in zip(units, means_of(model, job, next(turns))):
                update(unit, mean_P, rank, job.ranks)
            torch.optim.SGD(model.parameters(), lr=1).step()

        return step

    return [stepped(as_one(rank), job, rank) for rank in range(job.ranks)]


def means_of(model: nn.Sequential, job: Job, turn: int) -> list[torch.Tensor]:
    """The means over the ranks of the units' gradients, padded; they stay in .grad."""
    model.zero_grad()
    (sum(loss_of(model, job, rank, turn) for rank in range(job.ranks)) / job.ranks).backward()
    return [padded([p.grad for p in layer.parameters()], job.ranks) for layer in layers_of(model)]


def judge(job: Job, outcome: Outcome) -> Iterator[Complaint]:
    """All is reduced during the backward pass, and nothing else; buckets go as they came."""
    lengths = [len(padded(list(layer.parameters()), job.ranks)) for layer in layers_of(model_of(job))]
    total = sum(lengths) * job.dtype.itemsize
    for turn in STEPS:
        if job.ranks > 1 and (sent := bytes_sent(outcome, 0, f"backward {turn}")) < total:
            yield f"step {turn}, {IN_TIME}", f"expected {total}, got {sent}"
        yield from more_than(total, outcome, f"step {turn}, {SENT_IN_BACKWARD}", f"backward {turn}")
        yield from more_than(2 * total, outcome, f"step {turn}, the bytes sent", f"step {turn}")
        looks = outcome.memory(0, f"backward {turn}") if job.case.record is True else []
        parts, most = total // job.ranks, (max(lengths) + max(lengths) // job.ranks) * job.dtype.itemsize
        if (gradients := max((look.gradients for look in looks), default=0)) > parts:
            yield f"step {turn}, the bytes of gradients in backward()", f"expected the parts' {parts}, got {gradients}"
        if (buffers := max((look.buffers for look in looks), default=0)) > most + parts:
            words = f"expected no more than {most} (a bucket and its part), got {buffers}"
            yield f"step {turn}, the bytes of buckets in backward()", words
        room = parts + max(lengths) // job.ranks * job.dtype.itemsize
        if (left := _left(outcome, turn)) > room:
            yield f"step {turn}, {LAST}", f"expected no more than {room} (the parts, and one more), got {left}"


def _left(outcome: Outcome, turn: int) -> int:
    """The bytes of gradients and buckets when the last unit's hook has run, unless a bucket is still under way."""
    issued, waited = outcome.messages(0, f"backward {turn}"), outcome.waits(0, f"backward {turn}")
    looks = outcome.memory(0, f"last {turn}")
    return looks[-1].gradients + looks[-1].buffers if looks and len(waited) >= len(issued) else 0


def fields(job: Job, outcome: Outcome | None) -> dict:
    """By what the sums were divided, and in which step nothing was reduced in time."""
    if outcome is None:
        return {"constant": 0, "step": 1}
    in_vain = [turn for turn in STEPS if not bytes_sent(outcome, 0, f"backward {turn}")]
    got = outcome.values[0][f"step 1, {GOT}"][0]
    return {"constant": divisor(got, means_of(model_of(job), job, 1)[0], job.ranks), "step": (*in_vain, 1)[0]}


ZERO2_STEP = Exercise(
    "zero2_step",
    Experiment(
        # where memory is looked at all is slower: most mistakes show, and are named, before
        [Case(r, " and units of 18, 18 and 8 numbers", record=True if r == 2 else "messages") for r in (3, 2, 4, 1)],
        lambda lab, job: stepped(lab.zero2_step, job, dist.get_rank()),
        lambda job, _: expected(job),
        judge=judge,
        fields=fields,
        named={
            HOOKS: "hooks-stay",
            SHARED: "one-buffer",
            IN_TIME: "behind",
            LAST: "last-bucket",
        },
        holds="weights equal one process's after every step; each unit's gradients are scattered during the backward "
        "pass and let go, 2Ψ (N − 1)/N elements at most are sent; with 1 to 4 ranks",
    ),
    misconceptions=misconceptions(
        late="The gradients are reduced after the backward pass. Until then each rank holds all of them, as in stage "
        "1: reduce a unit in its hook, when it is complete.",
        never="No unit was reduced in step {step}. Were the hooks put in before backward() ran, and does the "
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
        in_hook="A unit was updated, or gathered, inside the backward pass: do both after it, when all gradients are "
        "there. Who clips by the norm of all gradients could not do so otherwise.",
        view="unit.shard_S.grad is a view of its bucket, and keeps all of it in memory: stage 2 saves nothing so. Let "
        "reduce_scatter write into a tensor of the shard's size, torch.empty_like(unit.shard_S).",
        buckets="Buckets pile up: every one is still in memory when the next comes. Hold it in a name inside the "
        "function only, which ends with it.",
        last_bucket="The last bucket is still in memory when it has been sent, until the next one comes or the step "
        "ends. Hold it in a name inside the function only, which ends with it.",
        behind="A part of the gradients is reduced only when the backward pass is over. Until then a rank holds it as "
        "a whole: reduce each unit as soon as it is complete, not when the next one is.",
        one_buffer="Several units' gradients lie in one and the same memory, where the later has overwritten the "
        "earlier: make a new tensor for each.",
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
