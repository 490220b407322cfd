"""accelerate's notebook_launcher: it forks, and meets at a port; what the ranks return is not handed back."""

import multiprocessing
import socket

import torch.distributed as dist
from accelerate import notebook_launcher

from tests.benchmarks.peers.work import RANKS, answer_with, one_all_reduce


def start_ranks():
    queue = multiprocessing.get_context("fork").SimpleQueue()
    notebook_launcher(be_rank, (queue,), num_processes=RANKS, use_port=free_port())
    return [value for _, value in sorted(queue.get() for _ in range(RANKS))]


def be_rank(queue):
    dist.init_process_group("gloo")
    queue.put((dist.get_rank(), one_all_reduce()))
    dist.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


if __name__ == "__main__":
    answer_with(start_ranks)
