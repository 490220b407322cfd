"""What a rank needs to know to start, written once into the run's private folder."""

from __future__ import annotations

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

    def write(self) -> None:
        """Stores the job where the ranks will look for it."""
        (Path(self.folder) / "job").write_bytes(pickle.dumps(self))

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


def read_job(folder: str) -> Job:
    """Reads the job that :meth:`Job.write` stored in ``folder``."""
    return pickle.loads((Path(folder) / "job").read_bytes())
