"""The checks of gather and release: a unit's weights come and go, in one and the same storage."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
import torch.distributed as dist

from distlab.course.checks.zero.common import inside, numbers, padded, unit_of
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Wrong
from distlab.course.kit.case import with_ranks
from distlab.course.kit.fixtures import misconceptions
from distlab.course.trial import RankFailed, Trial
from distlab.ranks.torch_inside import storage_id
from distlab.ranks.watching.spans import span

CASES = ((2, 4), (3, 7), (4, 10), (1, 3))  # ranks, numbers


def sharded(count: int) -> tuple[SimpleNamespace, torch.Tensor]:
    """On a rank: a unit whose weights are there, and what autograd would have kept of them: a view."""
    unit = unit_of([numbers(count)], apart=True)
    return unit, unit.weights_P[1:]


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def gathered(gather, count: int) -> dict:
    """On a rank: what ``gather`` brings back, to the flat tensor and to an older view; then it is called again."""
    unit, view = sharded(count)
    unit.weights_P.untyped_storage().resize_(0)
    with span("first"):
        gather(unit)
    same = storage_id(view.untyped_storage()) == storage_id(unit.weights_P.untyped_storage())
    there = _bytes(unit.weights_P) >= unit.weights_P.numel() * unit.weights_P.element_size() and _bytes(view) > 0
    weights = unit.weights_P.detach().clone() if there and same else None
    with span("second"):
        gather(unit)
    return dict(weights=weights, same=same and unit.parameters[0].shape == (count,), there=there, bytes=_bytes(view))


def check_gather(learners: Callable, trial: Trial) -> str:
    """Tries ``gather`` on a released unit, then on one that is there."""
    for ranks, count in CASES:
        case = f"{with_ranks(ranks)} and {count} numbers"
        try:
            run = trial.watch(case, gathered, learners, count, ranks=ranks)
        except RankFailed as failed:
            raise failed.because(*_why_it_fails(failed)) from None
        for rank, value in enumerate(run.values):
            if not value["same"]:
                detail = "what autograd kept of the weights, and the parameters, still look at the old, empty storage"
                raise Wrong(f"{case}, rank {rank}", detail, ("new-tensor",))
            if not value["there"]:
                detail = f"the storage of weights_P has {value['bytes']} bytes after gather(unit); it has to be there"
                raise Wrong(f"{case}, rank {rank}", detail, ("released",) if value["bytes"] == 0 else ())
        first, second = (inside(run.recording, 0, name) for name in ("first", "second"))
        if not first and ranks > 1:
            raise Wrong(case, "messages in gather(unit): expected an all_gather, got none", ("not-sent",))
        want = padded([numbers(count)], ranks)
        compare(f"{case}, weights_P", [v["weights"] for v in run.values], [want] * ranks)
        kinds = [message.kind for message in first]
        if ranks > 1 and kinds != ["all_gather"]:
            raise Wrong(case, f"messages in gather(unit): expected one all_gather, got {', '.join(kinds)}", ("other",))
        if second:
            detail = f"messages in a second gather(unit): expected none, got {', '.join(m.kind for m in second)}"
            raise Wrong(case, detail, ("again",))
    return "the weights are whole again in their own storage, by one all-gather, and none if they are there already"


def _why_it_fails(failed: RankFailed) -> tuple[str, ...]:
    """Whether there was no room for the weights, or some ranks gathered and others didn't."""
    if "never joined" in failed.error.verdict:
        return ("not-all",)
    message = failed.error.failures[failed.error.rank].message
    return ("no-room",) if "storage of size 0" in message else ()


GATHER = Exercise(
    "gather",
    check_gather,
    misconceptions=misconceptions(
        no_room="The storage of weights_P is empty, so nothing can be written into it: allocate(unit.weights_P) first.",
        new_tensor="The weights are in a new tensor. The parameters, and what autograd kept of them for the backward "
        "pass, are views of the old storage: fill that one again.",
        released="The weights are gone again when gather returns, or were never brought back.",
        not_sent="Nothing was sent: the other ranks' parts can't come from anywhere else.",
        other="The parts travel by other means than one all_gather: each rank has one part, and all want all parts.",
        not_all="Some ranks call all_gather and others don't, and wait for each other: all do, or none. Every rank has "
        "to look whether the unit is there.",
        again="A unit that was there already was gathered again, Ψ more elements for nothing: look first whether it "
        "is there.",
    ),
    hints=(
        "Is it there? Then there is nothing to do. Otherwise make room in the storage it has, and fill it from all "
        "shards.",
        "if is_there(unit.weights_P): return; allocate(unit.weights_P); all_gather(unit.weights_P, unit.shard_S.data).",
    ),
)


def released(release, count: int) -> dict:
    """On a rank: what is left after ``release``."""
    unit, view = sharded(count)
    parameter, shard_S = unit.parameters[0], unit.shard_S.detach().clone()
    release(unit)
    is_left = _bytes(unit.shard_S) >= shard_S.numel() * shard_S.element_size()
    kept = is_left and torch.equal(unit.shard_S.detach(), shard_S)
    return dict(
        bytes=_bytes(view),
        flat=_bytes(unit.weights_P) if isinstance(getattr(unit, "weights_P", None), torch.Tensor) else -1,
        shape=tuple(parameter.shape),
        shard=kept,
        rank=dist.get_rank(),
    )


def check_release(learners: Callable, trial: Trial) -> str:
    """Tries ``release`` while somebody still holds a view, as autograd does."""
    for ranks, count in CASES[:3]:
        case = f"{with_ranks(ranks)} and {count} numbers"
        size = 8 * (count + -count % ranks)
        for value in trial.run(case, released, learners, count, ranks=ranks):
            where = f"{case}, rank {value['rank']}"
            if not value["shard"]:
                raise Wrong(where, "unit.shard_S has lost its numbers; expected it to stay", ("shard",))
            if value["bytes"]:
                is_dropped = value["flat"] != value["bytes"] or value["shape"] != (count,)
                detail = f"bytes of the old weights: expected 0, got {value['bytes']}"
                known = ("dropped",) if is_dropped else ("kept",) if value["bytes"] == size else ()
                raise Wrong(where, detail, known)
            if value["flat"] != 0:
                raise Wrong(where, "unit.weights_P is no longer the flat tensor that gather fills", ("dropped",))
            if value["shape"] != (count,):
                detail = f"the parameter's shape: expected ({count},), got {value['shape']}"
                raise Wrong(where, detail, ("shape",))
    return "the weights' storage is empty though a view is left, the shard and the parameters' shapes are kept"


RELEASE = Exercise(
    "release",
    check_release,
    misconceptions=misconceptions(
        kept="The weights are still in memory: overwriting or zeroing them frees nothing. Empty the storage.",
        dropped="A name was let go, but the memory was not: autograd holds a view of the same storage for the "
        "backward pass, which keeps it alive. Empty the storage itself.",
        shard="This rank's own shard went too. From what should gather rebuild its part of the weights?",
        shape="The parameter has lost its shape; it is a view that gather fills again, and must stay one.",
    ),
    hints=(
        "Setting names to None or to an empty tensor does not help while others hold views. The storage under all of "
        "them can be emptied.",
        "One line: free(unit.weights_P).",
    ),
)
