"""What learners' code does to a runner, a case each: the cell comes back in time, with the reason, the rank and the
line, the next run works, and nothing is left."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch.distributed as dist

from distlab import RankError, run


@dataclass(frozen=True)
class Case:
    """A function that must fail on ``ranks`` ranks within ``seconds``.

    ``says`` is a pattern in the verdict, ``rank`` the one to look at first (None where it may be any), ``line`` a part
    of the learner's line that the report shows.
    """

    fn: Callable
    says: str
    rank: int | None = None
    line: str = ""
    ranks: int = 3
    seconds: float = 25
    settings: dict = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.fn.__name__

    def try_it(self) -> None:
        """Asserts all that the case says, and that the next run is as good as new."""
        started = time.monotonic()
        with pytest.raises(RankError) as caught:
            run(self.fn, ranks=self.ranks, **{"timeout": 60, "device": "cpu", **self.settings})
        assert time.monotonic() - started < self.seconds
        error = caught.value
        assert re.search(self.says, error.verdict), str(error)
        assert self.rank in (None, error.rank), str(error)
        assert self.line in str(error), str(error)
        assert run(dist.get_rank, ranks=2, device="cpu").values == [0, 1]


class Cases(list):
    """Collects cases: ``@cases.fails("died of SIGABRT", rank=1, line="os.abort()")`` over each function."""

    def fails(self, says: str, **fields):
        def collect(fn: Callable) -> Callable:
            self.append(Case(fn, says, **fields))
            return fn

        return collect

    def each(self):
        """For ``pytest.mark.parametrize("case", …)``."""
        return [pytest.param(case, id=case.name) for case in self]
