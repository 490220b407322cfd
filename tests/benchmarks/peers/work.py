"""What every peer does on its ranks, and how it answers."""

import sys

import torch
import torch.distributed as dist

from tests.benchmarks.peer import ANSWER
from tests.benchmarks.timing import seconds

RANKS = 4


def one_all_reduce():
    x = torch.full((1,), float(dist.get_rank()))
    dist.all_reduce(x)
    return x.item()


def join_by_file(folder, rank):
    """Makes the process group of this rank by a file that the ranks share."""
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)


def answer_with(start_ranks):
    """Makes one call for each line that comes in, and answers with its seconds."""

    def checked():
        values = start_ranks()
        assert values == [6.0] * RANKS, values

    for _ in sys.stdin:
        print(f"{ANSWER}{seconds(checked)}", flush=True)
