"""The check of split_batch: every row on one rank, with its label."""

from __future__ import annotations

import torch
import torch.distributed as dist

from distlab.course.exercise import Exercise
from distlab.course.kit.case import Case, Job
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import NOT_FLOAT32, misconceptions, shares

SIZES = (2, 4), (2, 5), (3, 7), (3, 6), (3, 8), (4, 10), (4, 3), (4, 1), (1, 3)  # ranks, rows


def _batch(job: Job) -> tuple[torch.Tensor, torch.Tensor]:
    """Row i holds i and i + 0.5, or a little more, and has another label."""
    rows = torch.arange(job["n"])
    return (torch.stack([rows, rows + 0.5], dim=1).double() * NOT_FLOAT32).to(job.dtype), (rows * 7 + job.seed) % 101


def drive(lab, job: Job) -> dict:
    """On a rank: its part, and how many rows that are."""
    part = call(lab.split_batch, *_batch(job))
    if not isinstance(part, tuple | list) or len(part) != 2 or not all(isinstance(t, torch.Tensor) for t in part):
        return {"what is returned": " ".join(repr(part).split())[:60]}
    return {"x_bD": part[0], "y_b": part[1], "rank": dist.get_rank()}


def expect(job: Job, came: list[dict]) -> list[dict]:
    """Contiguous shards; which ranks get the longer ones is free."""
    x_BD, y_B = _batch(job)
    if any("x_bD" not in part for part in came):
        return [{"what is returned": "two tensors, x_bD and y_b"}] * job.ranks
    sizes = [len(part["y_b"]) if part["y_b"].dim() else 0 for part in came]
    starts = [sum(sizes[:rank]) for rank in range(job.ranks + 1)]
    is_even = starts[-1] == job["n"] and max(sizes) - min(sizes) <= 1
    rows = list(map(range, starts, starts[1:])) if is_even else shares(job["n"], job.ranks)
    return [{"x_bD": x_BD[shard.start : shard.stop], "y_b": y_B[shard.start : shard.stop]} for shard in rows]


SPLIT_BATCH = Exercise(
    "split_batch",
    Experiment(
        [Case(ranks, f" and a batch of {n} row{'s' if n > 1 else ''}", n=n) for ranks, n in SIZES],
        drive,
        expect,
        tells=lambda what, *_: "Two tensors are asked for, x_bD and y_b." if what == "what is returned" else None,
        fields=lambda job, _: {"size": job["n"] // job.ranks, "rest": job["n"] % job.ranks},
        holds="every row goes to one rank, with its label, in contiguous shards whose sizes differ by at most one; "
        "also when the batch is smaller than the world",
    ),
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
