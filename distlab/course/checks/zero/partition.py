"""The check of partition: one flat tensor, padded, of which the parameters and the shard are views."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import nn

from distlab.course.checks.zero.common import padded, part
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Wrong
from distlab.course.kit.case import with_ranks
from distlab.course.kit.fixtures import misconceptions
from distlab.course.trial import RankFailed, Trial

SHAPES = ((2,), (2, 3), (1, 2, 2))  # of the parameters: 2 + 6 + 4 numbers


def parameters(count: int, tied: bool = False, frozen: bool = False) -> list[nn.Parameter]:
    """``count`` parameters of float64 that hold 1, 2, 3, …; the first twice if ``tied``; then one that is frozen."""
    sizes = [torch.Size(shape).numel() for shape in SHAPES[:count]]
    values = torch.arange(1, sum(sizes) + 1, dtype=torch.float64).split(sizes)
    made = [nn.Parameter(value.reshape(shape).clone()) for value, shape in zip(values, SHAPES)]
    made += made[:1] if tied else []
    return made + ([nn.Parameter(torch.full((5,), 99.0, dtype=torch.float64), requires_grad=False)] if frozen else [])


def partitioned(partition, count: int, kind: dict) -> dict:
    """On a rank: what ``partition`` returns, and who sees it when the flat tensor, then the shard, is changed."""
    given = parameters(count, **kind)
    own = list(dict.fromkeys(p for p in given if p.requires_grad))
    before = [(p.shape, p.detach().clone()) for p in given]
    result = partition(list(given))
    if not isinstance(result, list | tuple) or [type(part) for part in result] != [torch.Tensor] * 2:
        return dict(came=f"{type(result).__name__} {result!r}"[:60])
    weights_P, shard_S = result
    in_graph = weights_P.requires_grad or shard_S.requires_grad
    found = dict(weights=weights_P.detach().clone(), shard=shard_S.detach().clone(), in_graph=in_graph)
    found["kept"] = all(p.shape == shape and torch.equal(p.detach(), value) for p, (shape, value) in zip(given, before))
    with torch.no_grad():
        weights_P += 100
    found["moved"] = torch.cat([p.detach().flatten() for p in own])
    with torch.no_grad():
        shard_S += 1000
    found["written"] = weights_P.detach().clone()
    return found


def check_partition(learners: Callable, trial: Trial) -> str:
    """Tries ``partition`` on parameters that the ranks divide, then on those that they don't, tied and frozen ones."""
    _try(learners, trial, 2, 2)
    _try(learners, trial, 3, 2)
    _try(learners, trial, 4, 1)
    for ranks in (1, 3, 4):
        _try(learners, trial, ranks, 3, tied=True, frozen=True)
    return (
        "every trainable number stands once in a flat tensor that 1 to 4 ranks cut evenly; parameters and shard are "
        "views of it; tied parameters once, frozen ones left alone"
    )


def _try(learners, trial: Trial, ranks: int, count: int, **kind: bool) -> None:
    own = parameters(count)
    case = f"{with_ranks(ranks)} and parameters of {' + '.join(str(p.numel()) for p in own)} numbers"
    case += "".join(f", one {name}" for name in kind)
    try:
        found = trial.run(case, partitioned, learners, count, kind, ranks=ranks)
    except RankFailed as failed:
        raise failed.because(*_why_it_fails(failed), size=sum(p.numel() for p in own), ranks=ranks) from None
    if "came" in found[0]:
        raise Wrong(case, f"expected two plain tensors, weights_P and shard_S, got {found[0]['came']}")
    _shapes(case, found, ranks, kind, count)
    if (dtype := found[0]["weights"].dtype) != torch.float64:
        raise Wrong(
            case, f"the dtype of weights_P: expected torch.float64, as the parameters', got {dtype}", ("dtype",)
        )
    want_P = padded(own, ranks)
    beliefs = {"unfilled": [torch.zeros_like(want_P)] * ranks, "no-start": [_all_at_the_start(own, want_P)] * ranks}
    compare(f"{case}, weights_P", [f["weights"] for f in found], [want_P] * ranks, beliefs)
    beliefs = {
        "rank-0": [part(want_P, 0, ranks)] * ranks,
        "reversed": [part(want_P, ranks - 1 - rank, ranks) for rank in range(ranks)],
        "strided": [want_P[rank::ranks] for rank in range(ranks)],
    }
    compare(f"{case}, shard_S", [f["shard"] for f in found], [part(want_P, r, ranks) for r in range(ranks)], beliefs)
    if found[0]["in_graph"]:
        raise Wrong(case, "requires_grad of weights_P or shard_S: expected False, got True", ("in-graph",))
    for rank, f in enumerate(found):
        _views(f"{case}, rank {rank}", f, want_P, rank, ranks)


def _all_at_the_start(own: list[nn.Parameter], want_P: torch.Tensor) -> torch.Tensor:
    """Each parameter written over the one before."""
    flat = torch.zeros_like(want_P)
    for parameter in own:
        flat[: parameter.numel()] = parameter.detach().flatten()
    return flat


def _why_it_fails(failed: RankFailed) -> tuple[str, ...]:
    """Whether tensors were looked for with ``in``, or a parameter had no room in the flat tensor."""
    cause = failed.error.failures[failed.error.rank]
    message, code = cause.message, cause.frames[-1].code if cause.frames else ""
    if re.search(r"\bnot in\b|\bif\b.* in ", code or "") and ("must match" in message or "Boolean value" in message):
        return ("looked-for",)
    return ("floor",) if "is invalid for input of size" in message or "expanded size" in message else ()


def _shapes(case: str, found: list[dict], ranks: int, kind: dict, count: int) -> None:
    """Raises Wrong unless every rank's flat tensor has the right length."""
    size = sum(p.numel() for p in parameters(count))
    got, want = len(found[0]["weights"]), size + -size % ranks
    tied = parameters(count)[0].numel() if kind.get("tied") else 0
    frozen = 5 if kind.get("frozen") else 0
    known = {
        size // ranks * ranks: "floor",
        size: "unpadded",
        size + -size % ranks + (0 if size % ranks else ranks): "one-too-many",
        size + tied + -(size + tied) % ranks: "tied-twice",
        size + frozen + -(size + frozen) % ranks: "frozen",
    }
    if got != want:
        believed = (known[got],) if got in known else ()
        raise Wrong(f"{case}, the length of weights_P", f"expected {want}, got {got}", believed, size=size, ranks=ranks)


def _views(case: str, found: dict, want_P: torch.Tensor, rank: int, ranks: int) -> None:
    """Raises Wrong unless parameters and shard look at the flat tensor itself."""
    if not found["kept"]:
        raise Wrong(case, "a parameter's shape or numbers are not what they were; only where they are kept may change")
    moved = want_P[: len(found["moved"])] + 100
    if not torch.equal(found["moved"], moved):
        is_left = torch.equal(found["moved"], moved - 100)
        detail = f"after weights_P += 100 the parameters hold {found['moved'][:3].tolist()} …, expected them to follow"
        raise Wrong(case, detail, ("parameters-copied",) if is_left else ())
    written = (want_P + 100).clone()
    part(written, rank, ranks).add_(1000)
    if not torch.equal(found["written"], written):
        is_left = torch.equal(found["written"], want_P + 100)
        detail = "after shard_S += 1000 the numbers of weights_P are still what they were"
        raise Wrong(case, detail, ("shard-copied",) if is_left else ())


PARTITION = Exercise(
    "partition",
    check_partition,
    misconceptions=misconceptions(
        floor="The remainder is lost: {size} numbers cut into {ranks} parts leave some over. Round the size of a "
        "part up, not down.",
        unpadded="There is no padding: {ranks} ranks can't cut {size} numbers evenly. Make room for ranks × size.",
        one_too_many="{ranks} ranks cut {size} numbers evenly, and still each part was made one longer. Round up only "
        "where there is a rest: -(-total // n).",
        looked_for="Tensors were looked for with `in`, which compares them number by number. list(dict.fromkeys(…)) "
        "drops repeats without comparing numbers; `is` asks whether two are one and the same.",
        dtype="weights_P has torch's default dtype: make it in the parameters' own, dtype=p.dtype. Weights in bfloat16 "
        "must stay so.",
        in_graph="weights_P hangs on the parameters in autograd's graph (requires_grad), and no optimizer takes it "
        "then. Copy the numbers alone: p.data, or p.detach().",
        tied_twice="The tied parameter stands in weights_P twice. Its two copies would drift apart: list each "
        "parameter once.",
        frozen="The frozen parameter is in weights_P. Nothing moves it, so no optimizer state is kept for it: leave "
        "it out.",
        unfilled="weights_P is all zeros: the parameters' numbers were not copied into it.",
        no_start="Every parameter was written to the start of weights_P, over the one before: move on by "
        "p.numel() each time.",
        rank_0="Every rank returned rank 0's shard.",
        reversed="The shards are dealt out from the last rank down; rank r's part begins at r × size.",
        strided="This shard takes every so many-th number. A shard is contiguous: a collective cuts a tensor into "
        "blocks.",
        parameters_copied="The parameters still have their old storage: weights_P holds a copy. Set each "
        "parameter's .data to a view of its part of weights_P.",
        shard_copied="shard_S is a copy: an update of it never reaches weights_P. Return a slice, which is a view.",
    ),
    hints=(
        "Three things: list the trainable parameters, each once (dict.fromkeys keeps the order and drops repeats); "
        "round size = total / world up; make weights_P of world × size zeros.",
        "Go through the parameters with a running start: part = weights_P[start : start + p.numel()].view_as(p), copy "
        "p.data into it, then p.data = part. The shard is weights_P[rank * size : (rank + 1) * size].",
    ),
)
