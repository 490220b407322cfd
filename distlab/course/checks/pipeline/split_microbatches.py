"""The check of split_microbatches: all rows once, in order, in pieces as equal as can be."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from distlab.course.exercise import Exercise
from distlab.course.kit.case import Case, Job
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import misconceptions, shares

SIZES = (6, 3), (10, 4), (7, 5), (3, 3), (5, 1), (16, 5)  # rows, micro-batches
PAIRS, MICROS = "a list of pairs of tensors", "the micro-batches"


def batch_of(job: Job) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows whose first number says which they are, and labels that do not."""
    x_BD = job.random(job["n"], 3)
    x_BD[:, 0] = torch.arange(job["n"])
    return x_BD, torch.arange(job["n"]) * 5 % 17 + job.seed % 10


def drive(lab, job: Job) -> dict:
    """On a rank: the pieces, their sizes, and what they come in."""
    pieces = call(lab.split_microbatches, *batch_of(job), job["m"])
    kind = _kind(pieces)
    is_right = kind == PAIRS
    sizes = [[len(tensor) for tensor in pair] for pair in pieces] if is_right else []
    return {"what is returned": kind, "their sizes": sizes, MICROS: list(pieces) if is_right else []}


def _kind(pieces: object) -> str:
    if isinstance(pieces, Iterator):
        return "a generator"
    if not isinstance(pieces, list | tuple) or not all(map(_are_tensors, pieces)):
        return " ".join(repr(pieces).split())[:60]
    lengths = {len(each) for each in pieces}
    if len(lengths) != 1:
        return f"{len(pieces)} lists of several lengths" if lengths else "an empty list"
    return PAIRS if lengths == {2} else f"{len(pieces)} lists of {lengths.pop()} tensors"


def _are_tensors(each: object) -> bool:
    return isinstance(each, list | tuple) and all(isinstance(tensor, torch.Tensor) and tensor.dim() for tensor in each)


def expect(job: Job, came: list[dict]) -> list[dict]:
    """Contiguous pieces; any sizes that differ by at most one will do, the same on all ranks."""
    n, m = job["n"], job["m"]
    sizes = [lengths[0] for lengths in came[0]["their sizes"]]
    if len(sizes) != m or sum(sizes) != n or max(sizes) - min(sizes) > 1:
        sizes = [len(rows) for rows in shares(n, m)]
    pairs = list(zip(*(tensor.split(sizes) for tensor in batch_of(job))))
    return [{"what is returned": PAIRS, "their sizes": [[size, size] for size in sizes], MICROS: pairs}] * job.ranks


SPLIT_MICROBATCHES = Exercise(
    "split_microbatches",
    Experiment(
        [Case(3, f", {n} rows and {m} micro-batch{'es' if m > 1 else ''}", n=n, m=m) for n, m in SIZES],
        drive,
        expect,
        fields=lambda job, _: {"size": job["n"] // job["m"], "rest": job["n"] % job["m"]},
        holds="every row is in one micro-batch, in order, with its label, and sizes differ by at most one",
    ),
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
