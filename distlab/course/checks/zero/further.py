"""The checks of what goes further: clip_sharded, reshard and prefetch."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import torch
import torch.distributed as dist

from distlab.course.checks.zero.common import inside, numbers, padded, part, storage_bytes, unit_of
from distlab.course.compare import compare, difference_by_rank
from distlab.course.exercise import Exercise, Wrong
from distlab.course.kit.case import with_ranks
from distlab.course.kit.fixtures import misconceptions
from distlab.course.trial import RankFailed, Trial
from distlab.events import Wait
from distlab.ranks.watching.spans import span

SIZES = (5, 4)  # of the gradients of two units


def clipped(clip_sharded, max_norm: float) -> tuple[object, list[torch.Tensor]]:
    """On a rank: what ``clip_sharded`` returns (for a tensor, words), and the shards' gradients after it."""
    world, rank = dist.get_world_size(), dist.get_rank()
    units = [unit_of([numbers(size)], apart=True) for size in SIZES]
    for unit, size in zip(units, SIZES):
        unit.shard_S.grad = part(padded([numbers(size)], world), rank, world).clone()
    norm = clip_sharded(units, max_norm)
    if isinstance(norm, torch.Tensor):
        norm = f"a tensor of {norm.dtype}"
    return norm, [unit.shard_S.grad.clone() for unit in units]


def check_clip_sharded(learners: Callable, trial: Trial) -> str:
    """Tries a norm that is too large, then one that is small enough."""
    for ranks, max_norm in ((2, 1.0), (3, 2.0), (4, 1.0), (1, 1.0), (3, 100.0)):
        case = f"{with_ranks(ranks)}, units of 5 and 4 numbers, max_norm {max_norm:g}"
        flat = [padded([numbers(size)], ranks) for size in SIZES]
        own = [[part(f, rank, ranks) for f in flat] for rank in range(ranks)]
        squares = [sum(float(p.square().sum()) for p in parts) for parts in own]
        means = sum(float(p.square().mean()) for parts in own for p in parts)
        norm = sqrt(sum(squares))

        def scaled(norms: list[float], always: bool = False, own=own, top=max_norm) -> list[list[torch.Tensor]]:
            return [[p * (top / n if always or n > top else 1.0) for p in of] for of, n in zip(own, norms)]

        got = trial.run(case, clipped, learners, max_norm, ranks=ranks)
        norms = {
            "local": [sqrt(square) for square in squares],
            "sum-of-norms": [sum(sqrt(square) for square in squares)] * ranks,
            "no-root": [norm**2] * ranks,
            "mean": [norm / sqrt(ranks)] * ranks,
        }
        gradients, returned = [g for _, g in got], [n for n, _ in got]
        variants = {
            "sum-of-norms": [sum(float(p.norm()) for parts in own for p in parts)] * ranks,
            "mean": [sqrt(means)] * ranks,
        }
        norms |= {id: n for id, n in variants.items() if not difference_by_rank(gradients, scaled(n))}
        beliefs = {id: scaled(of_rank) for id, of_rank in norms.items()}
        beliefs |= {"always": scaled([norm] * ranks, always=True), "unchanged": own}
        beliefs["a-unit"] = [[p * min(1.0, max_norm / float(f.norm())) for p, f in zip(of, flat)] for of in own]
        want = scaled([norm] * ranks)
        _rounded(f"{case}, the gradients", gradients, want)
        compare(f"{case}, the gradients", gradients, want, beliefs)
        if tensors := [value for value in returned if isinstance(value, str)]:
            raise Wrong(f"{case}, what is returned", f"expected a float, got {tensors[0]}", ("tensor",))
        norms["after"] = [min(norm, max_norm)] * ranks
        _rounded(f"{case}, what is returned", returned, [norm] * ranks)
        compare(f"{case}, what is returned", returned, [norm] * ranks, norms)
    return "every shard is scaled by the norm of the whole gradient, which every rank returns; with 1 to 4 ranks"


def _rounded(case: str, got: list, want: list) -> None:
    """Raises Wrong if values are right as far as float32 goes, and no further."""
    if difference_by_rank(got, want) and not difference_by_rank(got, want, 1e-6):
        raise Wrong(case, "expected numbers exact to 1e-10, got some that are exact to 1e-6", ("rounded",))


CLIP_SHARDED = Exercise(
    "clip_sharded",
    check_clip_sharded,
    misconceptions=misconceptions(
        local="Each rank used the norm of its own shards: the parts of one gradient are scaled by different factors, "
        "and it points elsewhere. The norm is that of all shards together.",
        sum_of_norms="Norms don't add up; their squares do. Sum the squares over the ranks, then take the root.",
        no_root="The squares were summed, and the root is missing.",
        mean="The squares were averaged: the square of a norm is the sum of all squares, on all ranks.",
        rounded="The norm was rounded to float32, which is what torch.tensor(a number) makes: all_reduce the sum of "
        "squares as the tensor that it is.",
        after="This is the norm after the scaling; return the one before, which shows in a training's log what came.",
        tensor="A tensor is returned, where a float is asked for: norm.item().",
        always="A gradient that is short enough was made longer: scale only where the norm is above max_norm.",
        unchanged="The gradients are what they were: scale unit.shard_S.grad in place.",
        a_unit="Each unit was scaled by a norm of its own; one norm holds for the whole gradient.",
    ),
    hints=(
        "The square of the whole norm is the sum of the squares of all numbers, on all ranks, in all units.",
        "total = the sum over the units of shard_S.grad.square().sum(); dist.all_reduce(total); norm = total.sqrt(); "
        "then shard_S.grad *= max_norm / norm where norm > max_norm; return norm.item().",
    ),
    further=True,
)


def resharded(reshard, old_parts: list[torch.Tensor], count: int) -> tuple[torch.Tensor, bool, int]:
    """On a rank: its new part, whether the old ones are what they were, and the bytes that the part keeps."""
    given = [old.clone() for old in old_parts]
    new_S = reshard(given, count)
    kept = storage_bytes(new_S) if isinstance(new_S, torch.Tensor) else 0
    return new_S, all(torch.equal(a, b) for a, b in zip(given, old_parts)), kept


def check_reshard(learners: Callable, trial: Trial) -> str:
    """Tries several old and new world sizes."""
    for old, new, count in ((2, 3, 6), (3, 2, 7), (4, 3, 10), (1, 4, 5), (4, 1, 9), (2, 4, 5)):
        case = f"{count} numbers on {old} ranks, loaded on {new}"
        whole_P = padded([numbers(count)], old)
        old_parts = list(whole_P.chunk(old))
        right_P = padded([numbers(count)], new)
        beliefs = {
            "old-padding": [part(_padded_again(whole_P, new), rank, new) for rank in range(new)],
            "own-old": [old_parts[min(rank, old - 1)] for rank in range(new)],
            "floor": [numbers(count).detach()[rank * (count // new) :][: count // new] for rank in range(new)],
            "unpadded": [right_P[:count][rank * (len(right_P) // new) :][: len(right_P) // new] for rank in range(new)],
            "everything": [right_P] * new,
        }
        got = trial.run(case, resharded, learners, old_parts, count, ranks=new)
        new_S, size = got[0][0], len(right_P) // new * right_P.element_size()
        if isinstance(new_S, torch.Tensor) and new_S.dtype != right_P.dtype:
            raise Wrong(case, f"the dtype: expected {right_P.dtype}, as the old parts', got {new_S.dtype}", ("dtype",))
        compare(f"{case}, the part", [g for g, _, _ in got], [part(right_P, r, new) for r in range(new)], beliefs)
        if not all(kept for _, kept, _ in got):
            raise Wrong(case, "the old parts: expected them as they were, got others")
        if (most := max(held for _, _, held in got)) > size:
            raise Wrong(case, f"bytes that the part keeps in memory: expected {size}, got {most}", ("view",))
    return "each rank has its part of the same numbers, cut for the new world size; old padding gone, new padding there"


def _padded_again(flat: torch.Tensor, world: int) -> torch.Tensor:
    return torch.cat([flat, flat.new_zeros(-len(flat) % world)])


RESHARD = Exercise(
    "reshard",
    check_reshard,
    misconceptions=misconceptions(
        old_padding="The old padding is still there, counted as numbers: cut the joined parts to num_values before you "
        "pad for the new world.",
        own_old="Rank r got the old rank r's part, whose size and place belong to the old world size.",
        floor="The remainder is lost: round the size of a part up, and pad.",
        unpadded="The last rank's part is too short: pad with zeros to world × size first, so that all parts are of "
        "one size.",
        everything="Every rank got all numbers; it wants its own part of them.",
        view="The part is a slice, a view of the whole flat tensor, and keeps all of it in memory: .clone() it.",
        dtype="The new part has torch's default dtype: make it in the old parts' own, dtype=parts[0].dtype.",
    ),
    hints=(
        "Join the old parts, drop the old padding, add the new one, cut.",
        "whole = torch.cat(parts)[:num_values]; size = -(-num_values // world); make zeros of world × size, copy whole "
        "into their start, and return [rank * size : (rank + 1) * size].clone().",
    ),
    further=True,
)


def prefetched(prefetch, count: int) -> dict:
    """On a rank: calls ``prefetch`` twice on a released unit, works a little, waits as the lab's hook does."""
    unit = unit_of([numbers(count)], apart=True)
    unit.weights_P.untyped_storage().resize_(0)
    with span("start"):
        prefetch(unit)
    with span("again"):
        prefetch(unit)
    work, unit.work = unit.work, None
    is_work = hasattr(work, "wait")
    with span("wait"):
        if is_work:
            work.wait()
    there = unit.weights_P.untyped_storage().nbytes() > 0
    with span("there"):
        if there:
            prefetch(unit)
            if hasattr(unit.work, "wait"):
                unit.work.wait()
    return dict(is_work=is_work, weights=unit.weights_P.detach().clone() if there else None)


def check_prefetch(learners: Callable, trial: Trial) -> str:
    """Tries that ``prefetch`` starts a gather, comes back before it is done, and starts it once."""
    for ranks, count in ((2, 4), (3, 7), (4, 10)):
        case = f"{with_ranks(ranks)} and {count} numbers"
        try:
            run = trial.watch(case, prefetched, learners, count, ranks=ranks)
        except RankFailed as failed:
            message = failed.error.failures[failed.error.rank].message
            raise failed.because(*(("no-room",) if "storage of size 0" in message else ())) from None
        names = ("start", "again", "there")
        issued = {name: [m.kind for m in inside(run.recording, 0, name)] for name in names}
        if issued["start"] != ["all_gather"]:
            got = ", ".join(issued["start"]) or "nothing"
            raise Wrong(case, f"messages that prefetch started: expected one all_gather, got {got}")
        if _waits_in(run.recording, "start"):
            detail = "prefetch waited for its all_gather before it came back"
            raise Wrong(case, detail, ("waits",))
        if not all(value["is_work"] for value in run.values):
            raise Wrong(case, "unit.work is None after prefetch(unit); expected the Work of the all_gather", ("lost",))
        if issued["again"] or issued["there"]:
            what = "on its way" if issued["again"] else "there"
            raise Wrong(case, f"the unit was {what}, and prefetch gathered it again", ("again",))
        want = padded([numbers(count)], ranks)
        compare(f"{case}, weights_P after the wait", [v["weights"] for v in run.values], [want] * ranks)
    return "the all-gather is under way when prefetch returns, unit.work is there to wait for, and nothing goes twice"


def _waits_in(recording, name: str) -> int:
    ids = {message.id for message in inside(recording, 0, name)}
    names: list[str] = []
    waits = 0
    for event in recording.ranks[0]:
        if type(event).__name__ == "Span":
            names = [*names, event.name] if event.name else names[:-1]
        waits += type(event) is Wait and event.id in ids and name in names
    return waits


PREFETCH = Exercise(
    "prefetch",
    check_prefetch,
    misconceptions=misconceptions(
        waits="The gather was waited for inside prefetch, so nothing can be computed beside it: pass async_op=True, "
        "and leave the wait to whoever needs the weights.",
        lost="The Work was not kept, so nobody can wait for it: put it into unit.work.",
        again="A gather was started for a unit that is there or on its way: Ψ elements for nothing. Allocated means "
        "that it is, or will be, there.",
        no_room="The storage of weights_P is empty: allocate it before the gather writes into it.",
    ),
    hints=(
        "It is gather, but it does not wait: a collective with async_op=True returns a Work at once.",
        "if is_there(unit.weights_P): return; allocate(unit.weights_P); unit.work = all_gather(unit.weights_P, "
        "unit.shard_S.data, async_op=True).",
    ),
    further=True,
)
