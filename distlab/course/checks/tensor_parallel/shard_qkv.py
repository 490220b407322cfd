"""The check of shard_qkv: whole heads of Q, of K and of V."""

from __future__ import annotations

from collections.abc import Callable

import torch

from distlab.course.checks.tensor_parallel.common import (
    Groups,
    enter,
    in_words,
    misconceptions,
    num_ranks,
    share_by_rank,
    watch,
    world,
)
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import Trial

REFUSED = "refused: "


def asked(shard_qkv: Callable, width: int, num_heads: int, groups: Groups):
    """On a rank: the rows as a list, or what it said when it refused."""
    group = enter(groups)
    try:
        rows = shard_qkv(width, num_heads) if group is None else shard_qkv(width, num_heads, group)
    except ValueError as refusal:
        return f"{REFUSED}{refusal}"
    return [int(row) for row in rows] if isinstance(rows, list | tuple | range | torch.Tensor) else rows


def check_shard_qkv(learners: Callable, trial: Trial) -> str:
    """Tries widths and heads that divide, then heads that do not."""
    for width, num_heads, groups in ((8, 2, [[0, 1]]), (12, 6, [[0, 1, 2]]), (6, 2, [[0]]), (12, 4, [[0, 1], [2, 3]])):
        _try(learners, trial, width, num_heads, groups)
    for width, num_heads, groups in ((12, 3, [[0, 1]]), (12, 2, [[0, 1, 2]])):
        _refuses(learners, trial, width, num_heads, groups)
    return (
        "each rank gets the rows of its own heads, of Q, of K and of V; heads that can't be shared out evenly are "
        "refused by name; on 1 to 3 ranks and in two groups"
    )


def _try(learners: Callable, trial: Trial, width: int, num_heads: int, groups: Groups) -> None:
    case = f"{in_words(groups)}, width {width} and {num_heads} heads"
    rows = watch(trial, case, asked, learners, width, num_heads, groups, groups=groups).values
    if refused := [text for text in rows if isinstance(text, str) and text.startswith(REFUSED)]:
        raise Wrong(case, f"expected rows, got a ValueError: {refused[0].removeprefix(REFUSED)}", ("refuses-all",))
    mine, per_head = share_by_rank(width, groups), width // num_heads
    own_heads, size = share_by_rank(num_heads, groups), len(groups[0])
    places = [rank % size for rank in range(num_ranks(groups))]
    want = [[part * width + row for part in range(3) for row in of_rank] for of_rank in mine]
    beliefs = {
        "contiguous": share_by_rank(3 * width, groups),
        "q-only": mine,
        "all-first": [want[0]] * len(want),
        "by-head": [[(3 * head + part) * per_head + i for head in heads for part in range(3) for i in range(per_head)]
                    for heads in own_heads],
        "heads-as-rows": [[part * width + head for part in range(3) for head in heads] for heads in own_heads],
        "last-head-lost": [[p * width + i for p in range(3) for i in of_rank[: -per_head or None]] for of_rank in mine],
        "strided": [[p * width + head * per_head + i for p in range(3) for head in range(place, num_heads, size)
                     for i in range(per_head)] for place in places],
        "head-after-head": [[p * width + head * per_head + i for head in heads for p in range(3)
                             for i in range(per_head)] for heads in own_heads],
        "interleaved": [[part * width + row for row in of_rank for part in range(3)] for of_rank in mine],
        "world": [[p * width + row for p in range(3) for row in part] for part in share_by_rank(width, world(groups))],
    }  # fmt: skip
    fields = dict(width=width, third=3 * width // len(groups[0]), ranks=len(groups[0]))
    fields["what"] = _in_thirds(beliefs["contiguous"][0], width)
    compare(case, rows, want, {id: rows for id, rows in beliefs.items() if len(groups[0]) > 1}, **fields)


def _in_thirds(rows: list[int], width: int) -> str:
    """ "all of Q and half of K": what the rows are, where they lie in Q, K and V."""
    numbers = [sum(part * width <= row < (part + 1) * width for row in rows) for part in range(3)]
    words = {width: "all of"} | {n: f"{n} of {width} rows of" for n in range(1, width)} | {width // 2: "half of"}
    return " and ".join(f"{words[n]} {name}" for n, name in zip(numbers, "QKV") if n)


def _refuses(learners: Callable, trial: Trial, width: int, num_heads: int, groups: Groups) -> None:
    ranks = num_ranks(groups)
    case = f"with {ranks} ranks, width {width} and {num_heads} heads"
    answers = watch(trial, case, asked, learners, width, num_heads, groups, groups=groups, other_error="asserti").values
    refused = [isinstance(answer, str) and answer.startswith(REFUSED) for answer in answers]
    for rank, answer in enumerate(answers):
        if any(refused) and not refused[rank]:
            detail = f"rank {rank}: expected a ValueError as on rank {refused.index(True)}, got {answer}"
            raise Wrong(case, detail, ("refused-by-some",))
        if not isinstance(answer, str) or not answer.startswith(REFUSED):
            detail = f"rank {rank}: expected a ValueError, got {answer}"
            raise Wrong(case, detail, ("not-refused",), heads=num_heads, ranks=ranks)
        if str(num_heads) not in answer or str(ranks) not in answer:
            said = answer.removeprefix(REFUSED)
            detail = f'rank {rank}: expected {num_heads} heads and {ranks} ranks in its words, got "{said}"'
            raise Wrong(case, detail, ("not-by-name",))


SHARD_QKV = Exercise(
    "shard_qkv",
    check_shard_qkv,
    misconceptions=misconceptions(
        contiguous="The fused rows are cut as if they were one matrix. The first of {ranks} ranks then holds {what}, "
        "and attention between them means nothing. Take this rank's heads of Q, then of K, then of V.",
        q_only="These are rows of Q only: the same heads of K and of V belong to this rank, {width} and 2 × {width} "
        "rows further down.",
        all_first="Every rank has the first rank's heads.",
        by_head="This would be right if the rows lay head after head, each with its Q, K and V. Here they lie all of "
        "Q, all of K, all of V.",
        heads_as_rows="These are numbers of heads, not of rows: each head has several rows.",
        last_head_lost="The last head of each part is missing: a range ends before its stop, so the stop is "
        "heads.stop × the width of a head.",
        strided="Each rank takes every {ranks}th head. share_of hands out heads that lie together, and so does the row "
        "cut of out that follows.",
        head_after_head="They are the right rows, head after head. The layer's output is cut into thirds, q, k and v, "
        "so all of this rank's Q comes first, then its K, then its V.",
        interleaved="They are the right rows in another order. The layer's output is cut into thirds, q, k and v, so "
        "all of this rank's Q comes first, then its K, then its V.",
        world="The heads are shared out among all ranks, and not within the group: share_of(n, group).",
        refuses_all="Heads that can be shared out evenly are refused too.",
        not_refused="{heads} heads can't be shared out evenly among {ranks} ranks, and nobody says so: some heads "
        "would be lost or torn apart. Raise a ValueError that names both numbers.",
        refused_by_some="Some ranks refuse and others go on, and would wait for them forever: all can see it, and all "
        "must raise the ValueError.",
        other_error="It refuses, but with another error: raise a ValueError, which says that an argument is at fault.",
        not_by_name="The refusal does not name both numbers: who reads it wants to know how many heads and how many "
        "ranks.",
    ),
    hints=(
        "Draw the fused weight: width rows of Q, width of K, width of V. Which rows of Q are this rank's heads? The "
        "same ones, further down, are its K and its V.",
        "A list comprehension with two fors: over the three parts, and over the rows of share_of(width, group) in "
        "each; part number p begins at p * width. Before it: if num_heads % dist.get_world_size(group), a ValueError "
        "with both numbers in its text.",
    ),
)
