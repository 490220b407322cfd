"""distlab: write distributed training by hand, on real processes, and see what your own code did."""

import os as _os
import sys as _sys

__version__ = "0.1.0"

from distlab.course.check import check
from distlab.course.from_lab import from_lab
from distlab.course.hints import hint
from distlab.course.predictions import predict
from distlab.course.progress import progress
from distlab.drawn import DrawnRun as Run
from distlab.drawn import run
from distlab.machine import machines
from distlab.ranks.comparison import compare_ranks
from distlab.ranks.doctor import this_machine
from distlab.ranks.outcome import RankError
from distlab.ranks.watching.spans import span

__all__ = [
    "RankError",
    "Run",
    "check",
    "compare_ranks",
    "from_lab",
    "hint",
    "machines",
    "predict",
    "progress",
    "run",
    "span",
    "this_machine",
]


def _meet_the_notebook() -> None:
    """Inside a notebook's kernel: makes %%needs known, and starts the process that starts ranks."""
    from distlab.course import needs
    from distlab.ranks.processes.starting import warm_up
    from distlab.ranks.processes.worker import ON_RANK

    shell = _sys.modules["IPython"].get_ipython() if "IPython" in _sys.modules else None
    if shell is not None and ON_RANK not in _os.environ:
        needs.install(shell)
        warm_up()


_meet_the_notebook()
