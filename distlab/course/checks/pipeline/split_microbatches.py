"""The check of split_microbatches: all rows once, in order, in pieces as equal as can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate

import torch

from distlab.course.checks.pipeline.common import misconceptions, with_ranks
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import Trial

CASES = (4, 2), (10, 4), (7, 5), (3, 3), (5, 1), (16, 5)  # rows, micro-batches


def numbered(num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch whose row i holds i and i + 0.5, and has the label i."""
    y_B = torch.arange(num_rows)
    return torch.stack([y_B, y_B + 0.5], dim=1).double(), y_B


def split(split_microbatches: Callable) -> list[tuple[object, bool]]:
    """On a rank: the pieces in each case, and whether the batch is as it was."""
    found = []
    for num_rows, num_micro in CASES:
        x_BD, y_B = numbered(num_rows)
        pieces = split_microbatches(x_BD, y_B, num_micro)
        kept = all(torch.equal(a, b) for a, b in zip((x_BD, y_B), numbered(num_rows)))
        found.append((_contiguous(pieces), kept))
    return found


def _contiguous(pieces: object) -> object:
    """The pieces in a list, each tensor packed so that it can leave its process."""
    if isinstance(pieces, torch.Tensor):
        return pieces.clone(memory_format=torch.contiguous_format)
    return [_contiguous(piece) for piece in pieces] if isinstance(pieces, list | tuple) else _no_list(pieces)


def _no_list(pieces: object) -> object:
    """What can leave its process instead of a generator."""
    return f"a {type(pieces).__name__}" if isinstance(pieces, Iterator) else pieces


def check_split_microbatches(learners: Callable, trial: Trial) -> str:
    """Tries batches that do and don't divide, on 1 to 3 ranks."""
    for ranks in (1, 2, 3):
        by_rank = trial.run(with_ranks(ranks), split, learners, ranks=ranks)
        for (num_rows, num_micro), answers in zip(CASES, zip(*by_rank)):
            case = f"with {num_rows} rows and {num_micro} micro-batch{'es' if num_micro > 1 else ''}"
            _compare(case, [_pairs(case, pieces, num_micro) for pieces, _ in answers], num_rows, num_micro)
            if not all(kept for _, kept in answers):
                raise Wrong(case, "expected the batch as it was, got another", ("writes",))
    return "every row is in one micro-batch, in order, with its label, and sizes differ by at most one"


def _pairs(case: str, pieces: object, num_micro: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    if isinstance(pieces, str) and pieces.startswith("a "):
        raise Wrong(case, f"expected a list of pairs of tensors, got {pieces}", ("no-list",))
    if _is_two_lists(pieces, num_micro):
        raise Wrong(case, "expected a list of pairs of tensors, got the rows and the labels apart", ("two-lists",))
    is_list = isinstance(pieces, list) and all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pieces)
    if not is_list or not all(isinstance(tensor, torch.Tensor) for pair in pieces for tensor in pair):
        raise Wrong(case, f"expected a list of pairs of tensors, got {' '.join(repr(pieces).split())[:60]}")
    return [tuple(pair) for pair in pieces]


def _is_two_lists(pieces: object, num_micro: int) -> bool:
    """Whether these are all pieces of the rows, and then all pieces of the labels."""
    if not isinstance(pieces, list | tuple) or len(pieces) != 2:
        return False
    if not all(isinstance(part, list | tuple) and len(part) == num_micro for part in pieces):
        return False
    return all(isinstance(tensor, torch.Tensor) and tensor.dim() == 2 - k for k in (0, 1) for tensor in pieces[k])


def _compare(case: str, by_rank: list, num_rows: int, num_micro: int) -> None:
    x_BD, y_B = numbered(num_rows)

    def pieces(rows_of_each) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(x_BD[list(rows)], y_B[list(rows)]) for rows in rows_of_each]

    def sizes(pairs) -> list[int]:
        return [len(x_bD) for x_bD, _ in pairs]

    came = sizes(by_rank[0])  # any sizes that differ by at most one will do, the same on all ranks
    fits = len(came) == num_micro and sum(came) == num_rows and max(came) - min(came) <= 1
    want = pieces(_cut(came if fits else _even(num_rows, num_micro)))
    beliefs = {id: pieces(rows) for id, rows in _wrong_pieces(num_rows, num_micro).items()}
    beliefs["labels"] = [(x_bD, y_B) for x_bD, _ in want]
    fields = dict(n=num_rows, m=num_micro, size=num_rows // num_micro, rest=num_rows % num_micro)
    ranks = len(by_rank)
    counted = {id: [sizes(pairs)] * ranks for id, pairs in beliefs.items()}
    compare(f"{case}, their sizes", [sizes(pairs) for pairs in by_rank], [sizes(want)] * ranks, counted, **fields)
    compare(case, by_rank, [want] * ranks, {id: [pairs] * ranks for id, pairs in beliefs.items()}, **fields)


def _even(num_rows: int, num_micro: int) -> list[int]:
    size, longer = divmod(num_rows, num_micro)
    return [size + (k < longer) for k in range(num_micro)]


def _cut(sizes: list[int]) -> list[range]:
    """The rows of pieces of these sizes, one after the other."""
    starts = [0, *accumulate(sizes)]
    return [range(start, stop) for start, stop in zip(starts, starts[1:])]


def _wrong_pieces(n: int, m: int) -> dict[str, list[range]]:
    """The rows of each piece as each misconception would have them."""
    size, block = n // m, -(-n // m)
    return {
        "blocks": [range(start, min(n, start + block)) for start in range(0, n, block)],
        "floor-blocks": [range(start, min(n, start + size)) for start in range(0, n, size)],
        "by-size": [range(start, min(n, start + m)) for start in range(0, n, m)],
        "dropped": [range(k * size, (k + 1) * size) for k in range(m)],
        "last-takes-rest": [range(k * size, n if k == m - 1 else (k + 1) * size) for k in range(m)],
        "strided": [range(k, n, m) for k in range(m)],
    }


SPLIT_MICROBATCHES = Exercise(
    "split_microbatches",
    check_split_microbatches,
    misconceptions=misconceptions(
        blocks="Blocks of {n} / {m} rounded up: torch.chunk does this too. They run out early, so there are fewer than "
        "{m} of them, or the last is too small.",
        by_size="Each piece has {m} rows; {m} is the number of pieces. torch.split takes a size, not a number.",
        floor_blocks="Blocks of {n} // {m} = {size} rows: the {rest} left over make more pieces than {m}. torch.split "
        "takes a size; another function takes the number of pieces.",
        dropped="Every piece has {n} // {m} = {size} rows, and {n} mod {m} = {rest} left over are in none.",
        last_takes_rest="The last piece takes the whole remainder: sizes differ by more than one.",
        strided="Rows k, k + {m}, k + 2 × {m}, … are an even split, but they are not contiguous.",
        labels="The rows are split and the labels are not: cut both at the same places.",
        two_lists="These are two lists, the pieces of the rows and the pieces of the labels: a list of pairs is asked "
        "for, one pair a micro-batch.",
        no_list="zip and generators give their pairs once, and a schedule comes back to each micro-batch: make a list "
        "of them.",
        writes="It changed the batch that it was given; the other ranks' stages still need it.",
    ),
    hints=(
        "torch has several functions that cut a tensor: chunk, split, tensor_split. Only one of them takes the number "
        "of pieces and always gives so many.",
        "x_BD.tensor_split(num_micro) and the same for y_B; zip pairs them up, and list makes a list of that.",
    ),
)
