"""How a run is to be, and the job that the ranks get from it."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass

from distlab.ranks.job import Job
from distlab.ranks.processes import inherited
from distlab.ranks.processes.environment import RANK_ENVIRONMENT
from distlab.ranks.processes.worker import ON_RANK
from distlab.ranks.shipping.packing import Payload


@dataclass(frozen=True)
class Settings:
    """What :func:`distlab.ranks.launch.run` takes, with the device decided."""

    ranks: int
    device: str = "cpu"
    seed: int = 0
    record: bool | str = True
    start: str = "auto"

    def job(self, folder: str, fn, payload: Payload, group_timeout: float) -> Job:
        """What the ranks must know to run ``fn``, packed, in ``folder``, with what the notebook's process has set."""
        size = str(self.ranks)
        return Job(
            folder=folder,
            name=getattr(fn, "__name__", type(fn).__name__),
            num_ranks=self.ranks,
            device=self.device,
            seed=self.seed,
            record=self.record,
            group_timeout=group_timeout,
            working_directory=os.getcwd(),
            path=list(sys.path),
            environment=os.environ | RANK_ENVIRONMENT | {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, ON_RANK: "1"},
            inherited=inherited.read(),
            own_hash_seeds=self.start == "spawn",
            started=time.monotonic(),
            payload=payload,
        )
