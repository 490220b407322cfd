"""torchrun on a script, which is this one again; the ranks leave their values in files."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch.distributed as dist

from tests.benchmarks.peers.work import RANKS, answer_with, one_all_reduce

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]


def start_ranks():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*TORCHRUN, "--module", __spec__.name, folder], check=True, capture_output=True)
        return [float((Path(folder) / str(rank)).read_text()) for rank in range(RANKS)]


def be_rank(folder):
    dist.init_process_group("gloo")
    (Path(folder) / str(dist.get_rank())).write_text(str(one_all_reduce()))
    dist.destroy_process_group()


if __name__ == "__main__":
    if "TORCHELASTIC_RUN_ID" in os.environ:
        be_rank(sys.argv[1])
    else:
        answer_with(start_ranks)
