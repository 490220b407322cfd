"""distlab.run, as a learner calls it."""

from distlab import run
from tests.benchmarks.peers.work import RANKS, answer_with, one_all_reduce


def start_ranks():
    return run(one_all_reduce, ranks=RANKS, device="cpu").values


if __name__ == "__main__":
    answer_with(start_ranks)
