"""os.fork from a clean process, which has imported torch and done nothing with it."""

import os
import pickle
import tempfile

from tests.benchmarks.peers.work import RANKS, answer_with, join_by_file, one_all_reduce


def start_ranks():
    with tempfile.TemporaryDirectory() as folder:
        ranks = [fork(folder, rank) for rank in range(RANKS)]
        return [value_of(*rank) for rank in ranks]


def fork(folder, rank):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        be_rank(folder, rank, writer)
    os.close(writer)
    return pid, reader


def be_rank(folder, rank, writer):
    try:
        join_by_file(folder, rank)
        os.write(writer, pickle.dumps(one_all_reduce()))
    finally:
        os._exit(0)


def value_of(pid, reader):
    with os.fdopen(reader, "rb") as pipe:
        value = pickle.load(pipe)
    os.waitpid(pid, 0)
    return value


if __name__ == "__main__":
    answer_with(start_ranks)
