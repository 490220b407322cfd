"""The check of vocab_parallel_embedding: each rank looks up the ids that it holds, and the sum is complete."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F

from distlab.course.checks.tensor_parallel.common import (
    NEVER_JOINED,
    SKIPS,
    UNTRACKED,
    WORLDS,
    Groups,
    count,
    enter,
    gradient_of,
    in_own_group,
    in_words,
    messages_in,
    misconceptions,
    random,
    refuse_untracked,
    share_by_rank,
    untracked,
    watch,
)
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import Trial
from distlab.ranks.outcome import Run
from distlab.ranks.watching.spans import span

NUM_IDS, WIDTH, PLACES = 7, 2, (2, 6)
_SUM = PLACES[0] * PLACES[1] * WIDTH
OUTSIDE = "out of range|out of bounds|index out"


def all_ids(seed: int, only: list[int] | None = None) -> torch.Tensor:
    """Every id at least once, in an order that follows from the seed; or ids from ``only``."""
    generator = torch.Generator().manual_seed(seed)
    if only is not None:
        return torch.tensor(only)[torch.randint(len(only), PLACES, generator=generator)]
    more = torch.randint(NUM_IDS, (12 - NUM_IDS,), generator=generator)
    return torch.cat([torch.arange(NUM_IDS), more])[torch.randperm(12, generator=generator)].view(PLACES)


def one_sided() -> list[tuple[str, list[int]]]:
    """The ids of rank 0 of 2 in words and as a list, then those of rank 1: the other rank holds none of them."""
    return [(f"all on rank {rank}", own) for rank, own in enumerate(share_by_rank(NUM_IDS, [[0, 1]]))]


def owner_of(got: list, want: list, ids: torch.Tensor, mine: list) -> str:
    """Names the id at the first place where a rank's value is wrong, and who holds it; "" if the shapes differ."""
    for value, right in zip(got, want):
        if not isinstance(value, torch.Tensor) or value.shape != right.shape:
            return ""
        wrong = ~torch.isclose(value, right)
        if wrong.any():
            id = int(ids[tuple(wrong.nonzero()[0][:2])])
            rank = next(rank for rank, own in enumerate(mine) if id in own)
            return f"; id {id} stands there, and rank {rank} holds the ids {mine[rank][0]} to {mine[rank][-1]}"
    return ""


def driven(embed: Callable, seed: int, groups: Groups, only: list[int] | None = None) -> dict:
    """On a rank: the vectors, the gradient of this rank's rows, and whether ids and rows are as they were."""
    group, mine = enter(groups), share_by_rank(NUM_IDS, groups)[dist.get_rank()]
    rows, ids = random(seed, NUM_IDS, WIDTH)[mine], all_ids(seed, only)
    weight, given = rows.clone().requires_grad_(), ids.clone()
    with untracked() as lost:
        with span("forward"):
            x = embed(given, weight, NUM_IDS) if group is None else embed(given, weight, NUM_IDS, group)
        came = x.detach().clone()
        with span("backward"):
            fits = x.shape == (*PLACES, WIDTH)
            grad = gradient_of(x, weight, random(seed + 1, *PLACES, WIDTH)) if fits else torch.zeros_like(weight)
    kept = torch.equal(given, ids) and torch.equal(weight.detach(), rows)
    return dict(x=came, grad=grad.clone(), kept=kept, untracked=any(lost))


def check_vocab_parallel_embedding(learners: Callable, trial: Trial) -> str:
    """Tries ``vocab_parallel_embedding`` against the whole table."""
    for groups in WORLDS:
        _try(learners, trial, f"{in_words(groups)} and {NUM_IDS} ids", groups)
    for words, only in one_sided():
        _try(learners, trial, f"with 2 ranks and ids {words}", [[0, 1]], only, skips=NEVER_JOINED)
    return (
        "every rank has every vector, and the gradient of its own rows, with one all-reduce; on 1 to 3 ranks and in "
        f"two groups, with {NUM_IDS} ids, which 2 and 3 don't divide, and with all ids on one rank"
    )


def _try(learners: Callable, trial: Trial, case: str, groups: Groups, only: list[int] | None = None, **because) -> None:
    run = watch(trial, case, driven, learners, trial.seed, groups, only, groups=groups, foreign=OUTSIDE, **because)
    in_own_group(case, run, groups)
    _refuse_table(f"{case}, messages", run)
    _compare(case, run.values, groups, trial.seed, only)
    count(f"{case}, messages", run, "forward", {"all_reduce": 1}, _SUM)
    count(f"{case}, messages", run, "backward", {}, 0)
    refuse_untracked(case, run.values)


def _refuse_table(case: str, run: Run) -> None:
    """Raises Wrong if a message holds as much as the whole table."""
    for message in messages_in(run.recording, 0, "forward"):
        if message.elements != _SUM and message.elements >= NUM_IDS * WIDTH:
            detail = f"expected an all_reduce of {_SUM} elements, got {message.kind} of {message.elements}"
            raise Wrong(case, detail, ("gathers",))


def _compare(case: str, found: list[dict], groups: Groups, seed: int, only: list[int] | None) -> None:
    weight, ids = random(seed, NUM_IDS, WIDTH).requires_grad_(), all_ids(seed, only)
    x = F.embedding(ids, weight)
    x.backward(random(seed + 1, *PLACES, WIDTH))
    mine, ranks, size = share_by_rank(NUM_IDS, groups), len(found), len(groups[0])
    with torch.no_grad():
        beliefs = {"no-sum": [F.embedding(ids, _only(weight, own)) for own in mine]} | _unmasked(
            weight, ids, mine, size
        )
    got, want = [one["x"] for one in found], [x.detach()] * ranks
    try:
        compare(f"{case}, the vectors", got, want, _by_name(beliefs, found, "x"))
    except Wrong as wrong:
        raise Wrong(wrong.case, wrong.detail + owner_of(got, want, ids, mine), wrong.believed) from None
    want = [weight.grad[own] for own in mine]
    beliefs = {"both-ways": [size * one for one in want], "cut-off": [torch.zeros_like(one) for one in want]}
    compare(f"{case}, the gradient of the rows", [one["grad"] for one in found], want, beliefs, ranks=size)
    if not all(one["kept"] for one in found):
        raise Wrong(case, "expected ids and rows as they were, got others", ("writes",))


def _only(weight: torch.Tensor, own: list[int]) -> torch.Tensor:
    return torch.zeros_like(weight).index_copy(0, torch.tensor(own), weight[own])


def local_ids(ids: torch.Tensor, own: list[int]) -> dict[str, torch.Tensor]:
    """Three ways to make every id a local one that is there; a foreign id then names a row that isn't its own."""
    local, last = ids - own[0], len(own) - 1
    is_mine = (local >= 0) & (local <= last)
    return {"zero": local * is_mine, "clamp": local.clamp(0, last), "modulo": local % len(own)}


def _unmasked(weight: torch.Tensor, ids: torch.Tensor, mine: list, size: int) -> dict[str, list]:
    """The sums if foreign ids bring a row too, for each way to make them local."""
    parts = [{way: weight[own][local] for way, local in local_ids(ids, own).items()} for own in mine]
    groups = [range(rank // size * size, rank // size * size + size) for rank in range(len(mine))]
    return {way: [sum(parts[r][way] for r in group) for group in groups] for way in parts[0]}


def _by_name(beliefs: dict[str, list], found: list[dict], what: str) -> dict[str, list]:
    """Several ways to one misconception: the one that came, if any, under its name."""
    ways = [beliefs.pop(way) for way in ("zero", "clamp", "modulo") if way in beliefs]
    for values in ways:
        if all(one[what].shape == v.shape and torch.allclose(one[what], v) for one, v in zip(found, values)):
            beliefs["unmasked"] = values
    return beliefs


VOCAB_PARALLEL_EMBEDDING = Exercise(
    "vocab_parallel_embedding",
    check_vocab_parallel_embedding,
    misconceptions=misconceptions(
        foreign="An id that belongs to another rank was looked up here, where there is no such row. (Below 0, Python "
        "would even find one, from the end.) Look up ids of your own only, and put zeros for the others.",
        unmasked="An id that belongs to another rank brings a row of this rank's too, and the sum holds both. Foreign "
        "ids must bring zeros: multiply by the mask.",
        no_sum="Each rank has its own vectors, and zeros in the other places: they are to be added up by "
        "reduce_from_group.",
        both_ways="The gradient is {ranks} times too large: it was added up on the way back as well.",
        cut_off="No gradient comes back to the rows: they were detached, or the sum is not made by reduce_from_group.",
        untracked=f"{UNTRACKED}Use reduce_from_group.",
        skips=SKIPS.replace("{what}", "ids"),
        gathers="The whole table was sent, and every rank holds all of it for a moment: send vectors, not the table.",
        writes="It changed the ids or the rows that it was given.",
        world="The sum runs over all ranks, and not over the group: hand group on.",
    ),
    hints=(
        "mine = share_of(num_ids, group) says which ids are this rank's. Those are looked up at id − mine.start. What "
        "should the others bring, so that the sum over the ranks is right?",
        "A mask: is_mine_BT = (ids_BT >= mine.start) & (ids_BT < mine.stop). Multiply the local ids by it, so that "
        "each is there; after F.embedding multiply the vectors by it too, with unsqueeze(-1). Then the sum.",
    ),
    uses=("reduce_from_group",),
)
