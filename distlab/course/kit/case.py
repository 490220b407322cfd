"""A case of an exercise: how many ranks, what they are given; and a case as it is tried, in one dtype, from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

BOTH = (torch.float64, torch.float32)
_TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5}


class Case:
    """What an exercise is tried on: so many ranks, and what the driver needs to know by name.

    ``words`` say what it is after "with 3 ranks". ``dtypes`` are those it is tried in; the labs use more than one.
    ``record`` is as in run(): True where compute or memory is looked at.
    """

    def __init__(self, ranks: int, words: str = "", *, dtypes: Sequence[torch.dtype] = BOTH,
                 record: bool | str = "messages", **options):  # fmt: skip
        self.ranks, self.dtypes, self.record, self.options = ranks, tuple(dtypes), record, options
        self.words = f"{with_ranks(ranks)}{words}"


@dataclass(frozen=True)
class Job:
    """A case in one dtype, with numbers that follow from ``seed``; ``job["rows"]`` is what the case calls rows."""

    case: Case
    dtype: torch.dtype
    seed: int

    def __getitem__(self, name: str):
        return self.case.options[name]

    @property
    def ranks(self) -> int:
        """The world size."""
        return self.case.ranks

    @property
    def words(self) -> str:
        """What is tried, as a verdict begins: "with 3 ranks and a batch of 7 rows, in float32"."""
        is_second = self.dtype in self.case.dtypes[1:]
        return f"{self.case.words}, in {str(self.dtype).removeprefix('torch.')}" if is_second else self.case.words

    @property
    def tolerance(self) -> float:
        """How far a number may be off, absolute below 1 and relative above."""
        return _TOLERANCE.get(self.dtype, 0.0)

    def random(self, *shape: int, of: int = 0) -> torch.Tensor:
        """Random numbers of the job's dtype that follow from its seed and ``of``, a rank perhaps."""
        generator = torch.Generator().manual_seed(self.seed + 7919 * of)
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(self.dtype)


def jobs_of(cases: Sequence[Case], seed: int) -> list[list[Job]]:
    """All jobs, in the order in which they are told; those that one start of ranks can try are together."""
    starts: dict[tuple, list[Job]] = {}
    for case in cases:
        for dtype in case.dtypes:
            jobs = starts.setdefault((case.ranks, case.record), [])
            jobs.append(Job(case, dtype, seed + 104_729 * len(jobs)))
    for jobs in starts.values():  # whatever is kept by size and dtype, the first comes again with other numbers
        jobs.append(Job(jobs[0].case, jobs[0].dtype, seed + 104_729 * len(jobs)))
    return list(starts.values())


def with_ranks(ranks: int) -> str:
    """ "with 3 ranks"."""
    return f"with {ranks} rank{'s' if ranks > 1 else ''}"


def listed(numbers: Sequence) -> str:
    """ "3, 2 and 2"."""
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last
