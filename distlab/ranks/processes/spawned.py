"""Where a rank begins on systems without a safe fork: a fresh Python of its own."""

from __future__ import annotations

import functools
import multiprocessing.connection as mpc
import os
import shutil
import sys

from distlab.ranks.job import read_job
from distlab.ranks.processes import worker
from distlab.ranks.processes.server import open_text_streams


def _end(leave, folder: str) -> None:
    """Ends this process, and removes the run's folder: the notebook is gone."""
    shutil.rmtree(folder, ignore_errors=True)
    leave(1)


def main() -> None:
    """Runs one rank.

    Arguments: the run's folder, the digest of its job, the rank, and the handle of the connection to report to.
    """
    folder, digest, rank, handle = *sys.argv[1:3], int(sys.argv[3]), int(sys.argv[4])
    if sys.platform == "win32":
        connection = mpc.PipeConnection(handle)
    else:
        connection = mpc.Connection(handle)
    open_text_streams()
    try:
        worker.work(read_job(folder, digest), rank, connection, when_lost=functools.partial(_end, os._exit, folder))
    finally:  # it returns only if there is nobody to report to
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
