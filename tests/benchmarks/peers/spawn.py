"""torch.multiprocessing.spawn: new interpreters, which import torch again."""

import tempfile

import torch.multiprocessing as mp

from tests.benchmarks.peers.work import RANKS, answer_with, join_by_file, one_all_reduce


def start_ranks():
    queue = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(be_rank, (folder, queue), nprocs=RANKS)
    return [value for _, value in sorted(queue.get() for _ in range(RANKS))]


def be_rank(rank, folder, queue):
    join_by_file(folder, rank)
    queue.put((rank, one_all_reduce()))


if __name__ == "__main__":
    answer_with(start_ranks)
