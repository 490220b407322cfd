"""The check of split_batch: every row on one rank, with its label."""

from __future__ import annotations

from collections.abc import Callable

import torch

from distlab.course.checks.data_parallel.common import (
    Batch,
    Tensors,
    misconceptions,
    same_batch,
    shards_of,
    with_ranks,
)
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import Trial


def numbered(num_rows: int) -> Batch:
    """A batch whose row i holds i and i + 0.5, and has the label i."""
    y_B = torch.arange(num_rows)
    return torch.stack([y_B, y_B + 0.5], dim=1).double(), y_B


def split(split_batch, sizes: list[int]) -> list[tuple[object, bool]]:
    """On a rank: its part of each batch, and whether the batch is as it was."""
    found = []
    for num_rows in sizes:
        batch = numbered(num_rows)
        part = split_batch(*batch)
        found.append((part, same_batch(batch, numbered(num_rows))))
    return found


def check_split_batch(learners: Callable, trial: Trial) -> str:
    """Tries ``split_batch`` on batches that do and don't divide, and on some smaller than the world."""
    for ranks, sizes in ((2, [4, 5]), (3, [7, 6, 8]), (4, [10, 3, 1]), (1, [3])):
        by_rank = trial.run(with_ranks(ranks), split, learners, sizes, ranks=ranks)
        for num_rows, answers in zip(sizes, zip(*by_rank)):
            case = f"{with_ranks(ranks)} and a batch of {num_rows} row{'s' if num_rows > 1 else ''}"
            _compare_parts(case, _name_parts(case, [part for part, _ in answers]), num_rows)
            if not all(kept for _, kept in answers):
                raise Wrong(case, "expected the batch as it was, got another", ("writes",))
    return (
        "every row goes to one rank, with its label, in contiguous shards whose sizes differ by at most one; "
        "also when the batch is smaller than the world"
    )


def _name_parts(case: str, parts: list) -> list[Tensors]:
    """Raises Wrong unless every rank's part is rows and labels."""
    for rank, part in enumerate(parts):
        is_pair = isinstance(part, tuple | list) and len(part) == 2
        if not is_pair or not all(isinstance(tensor, torch.Tensor) for tensor in part):
            raise Wrong(
                case, f"rank {rank}: expected two tensors, x_bD and y_b, got {' '.join(repr(part).split())[:60]}"
            )
    return [dict(x_bD=x_bD, y_b=y_b) for x_bD, y_b in parts]


def _compare_parts(case: str, parts: list[Tensors], num_rows: int) -> None:
    ranks = len(parts)
    x_BD, y_B = numbered(num_rows)
    want = _even_split(parts, num_rows) or shards_of(num_rows, ranks)

    def parts_of(rows_by_rank) -> list[Tensors]:
        return [dict(x_bD=x_BD[list(rows)], y_b=y_B[list(rows)]) for rows in rows_by_rank]

    beliefs = {id: parts_of(rows) for id, rows in _wrong_shards(num_rows, ranks, want).items()}
    beliefs["labels"] = [part | dict(y_b=y_B) for part in parts_of(want)]
    size, rest = divmod(num_rows, ranks)
    compare(case, parts, parts_of(want), beliefs, n=num_rows, ranks=ranks, size=size, rest=rest)


def _wrong_shards(n: int, ranks: int, want: list[range]) -> dict[str, list[range]]:
    """The rows that each misconception would have given, by rank."""
    size, block = n // ranks, -(-n // ranks)
    return {
        "everything": [range(n)] * ranks,
        "same": [want[0]] * ranks,
        "dropped": [range(r * size, (r + 1) * size) for r in range(ranks)],
        "last-takes-rest": [range(r * size, n if r == ranks - 1 else (r + 1) * size) for r in range(ranks)],
        "blocks": [range(min(n, r * block), min(n, (r + 1) * block)) for r in range(ranks)],
        "strided": [range(r, n, ranks) for r in range(ranks)],
        "overlap": [range(shard.start, min(n, shard.stop + 1)) for shard in want],
    }


def _even_split(parts: list[Tensors], num_rows: int) -> list[range] | None:
    """The shards that came, if they cut the rows evenly: which ranks get the longer ones is free."""
    sizes = [part["y_b"].numel() for part in parts]
    starts = [sum(sizes[:rank]) for rank in range(len(sizes) + 1)]
    labels = [label for part in parts for label in part["y_b"].flatten().tolist()]
    is_even = labels == list(range(num_rows)) and max(sizes) - min(sizes) <= 1
    return [range(start, stop) for start, stop in zip(starts, starts[1:])] if is_even else None


SPLIT_BATCH = Exercise(
    "split_batch",
    check_split_batch,
    misconceptions=misconceptions(
        everything="Every rank has the whole batch: {ranks} ranks, {ranks} times the work.",
        same="Every rank has the same rows: ask dist.get_rank() which shard belongs to this one.",
        dropped="Every rank has {n} // {ranks} = {size}, and {n} mod {ranks} = {rest} left over go to nobody.",
        last_takes_rest="The last rank takes the whole remainder: sizes differ by more than one.",
        blocks="Blocks of {n} / {ranks} rounded up leave too little for the last: sizes differ by more than one.",
        strided="Rows r, r + {ranks}, r + 2 × {ranks}, … are an even split, but they are not contiguous.",
        overlap="Neighbouring shards share a row: a slice ends before its stop.",
        labels="The rows are split and the labels are not: cut both at the same places.",
        writes="It changed the batch that it was given; other code may still need it.",
    ),
    hints=(
        "my_rows(n, rank, world) knows which rows are this rank's. n is the number of rows in the batch, len(y_B).",
        "A range has a .start and a .stop; x_BD[start:stop] takes those rows, and none when the two are equal. "
        "Do the same to y_B, and return both.",
    ),
)
