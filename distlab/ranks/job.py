"""What a rank needs to know to start, written once into the run's private folder."""

from __future__ import annotations

import hashlib
import os
import pickle
from dataclasses import dataclass
from pathlib import Path

from distlab.ranks.shipping import Payload


@dataclass(frozen=True)
class Job:
    """One run, as every rank reads it; ``folder`` also holds the rendezvous file and the stacks."""

    folder: str
    num_ranks: int
    device: str
    seed: int
    group_timeout: float
    working_directory: str
    path: list[str]
    environment: dict[str, str]
    record: bool | str
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

    def log_file(self, rank: int) -> str:
        """The file into which a rank writes what happens on it."""
        return str(Path(self.folder) / f"log-{rank}")

    def stack_file(self, rank: int) -> str:
        """The file into which a rank writes where it stands when asked by a signal."""
        return str(Path(self.folder) / f"stack-{rank}")


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
