"""What a rank needs to know to start, written once into the run's private folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from distlab.ranks.interrupts import put_off
from distlab.ranks.shipping.packing import Payload


@dataclass(frozen=True)
class Job:
    """One run, as every rank reads it; ``folder`` also holds the rendezvous file and the stacks.

    ``name`` is the function's, ``inherited`` what the notebook has set for its process, ``own_hash_seeds`` whether each
    rank is a Python with a hash seed of its own.
    """

    folder: str
    name: str
    num_ranks: int
    device: str
    seed: int
    group_timeout: float
    working_directory: str
    path: list[str]
    environment: dict[str, str]
    record: bool | str
    inherited: dict
    own_hash_seeds: bool
    started: float
    payload: Payload

    def write(self) -> str:
        """Stores the job where the ranks will look for it, and returns its digest; makes their files, all private."""
        of_ranks = [path(rank) for path in (self.log_file, self.stack_file) for rank in range(self.num_ranks)]
        for path in (self.store, *of_ranks):
            _write(path, b"")
        data = pickle.dumps(self)
        _write(_path(self.folder), data)
        return _digest(data)

    @property
    def store(self) -> str:
        """The file by which the ranks find each other."""
        return str(Path(self.folder) / "store")

    def hash_seed(self, rank: int) -> str:
        """The PYTHONHASHSEED with which the Python of a rank starts."""
        return str(rank + 1) if self.own_hash_seeds else "0"

    def log_file(self, rank: int) -> str:
        """The file into which a rank writes what happens on it."""
        return str(Path(self.folder) / f"log-{rank}")

    def stack_file(self, rank: int) -> str:
        """The file into which a rank writes where it stands when asked by a signal."""
        return str(Path(self.folder) / f"stack-{rank}")


@contextlib.contextmanager
def run_folder() -> Iterator[str]:
    """A private folder for one run, which goes with all that is in it, even if an interrupt comes as it is made."""
    with contextlib.ExitStack() as stack:
        with put_off():
            folder = tempfile.TemporaryDirectory(prefix=f"distlab-{os.getpid()}-", ignore_cleanup_errors=True)
            path = stack.enter_context(folder)
        yield path


def read_job(folder: str, digest: str) -> Job:
    """Reads the job that :meth:`Job.write` stored in ``folder``; raises ValueError if it is another than it stored."""
    data = Path(_path(folder)).read_bytes()
    if _digest(data) != digest:
        raise ValueError(f"the job in {folder} is not the one that the notebook wrote: it has been changed")
    return pickle.loads(data)


def _path(folder: str) -> str:
    return str(Path(folder) / "job")


def _write(path: str, data: bytes) -> None:
    """Writes a file that only its owner may read."""
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(data)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data).hexdigest()
