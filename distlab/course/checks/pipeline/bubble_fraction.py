"""The check of bubble_fraction: idle time over wall time."""

from __future__ import annotations

from collections.abc import Callable

from distlab.course.checks.pipeline.common import misconceptions, with_ranks
from distlab.course.compare import compare
from distlab.course.exercise import Exercise
from distlab.course.trial import Trial

CASES = (4, 8), (2, 1), (4, 4), (8, 32), (3, 5), (1, 4), (64, 512)  # stages, micro-batches


def bubble(p: int, m: int) -> float:
    """The share of the wall time that a stage idles."""
    return (p - 1) / (m + p - 1)


WRONG: dict[str, Callable[[int, int], float]] = {
    "over-ideal": lambda p, m: (p - 1) / m,
    "busy": lambda p, m: m / (m + p - 1),
    "one-more": lambda p, m: p / (m + p),
    "itself": lambda p, m: p / (m + p - 1),
    "long-wall": lambda p, m: (p - 1) / (m + p),
    "one-batch": lambda p, m: (p - 1) / p,
    "percent": lambda p, m: 100 * bubble(p, m),
}


def fractions(bubble_fraction: Callable[[int, int], float]) -> list:
    """On a rank: the answer in each case, whole numbers as floats."""
    found = [bubble_fraction(p, m) for p, m in CASES]
    return [float(answer) if type(answer) is int else answer for answer in found]


def check_bubble_fraction(learners: Callable, trial: Trial) -> str:
    """Tries small and large pipelines, on 1 to 3 ranks."""
    for ranks in (1, 2, 3):
        by_rank = trial.run(with_ranks(ranks), fractions, learners, ranks=ranks)
        for which, (p, m) in enumerate(CASES):
            case = f"with {p} stage{'s'[: p > 1]} and {m} micro-batch{'es' if m > 1 else ''}"
            beliefs = {id: [wrong(p, m)] * ranks for id, wrong in WRONG.items()}
            compare(case, [of_rank[which] for of_rank in by_rank], [bubble(p, m)] * ranks, beliefs, p=p, m=m)
    return "idle time over wall time, (p - 1) / (m + p - 1); 0 for one stage, (p - 1) / p for one micro-batch"


BUBBLE_FRACTION = Exercise(
    "bubble_fraction",
    check_bubble_fraction,
    misconceptions=misconceptions(
        over_ideal="This is the idle time over the time that a stage works: ({p} - 1) / {m}. Many papers give that. "
        "Here it is the share of the wall time, work and idling together.",
        busy="This is the share that a stage works; the rest is asked for.",
        one_more="There is one step of idling too many: a stage waits for {p} - 1 others, not for {p}.",
        itself="The wall time is right, the idle time is not: a stage waits for {p} - 1 others, not for {p}. Here one "
        "stage would idle, too.",
        long_wall="The idle time is right, the wall time one unit too long: a stage works for {m} units and idles for "
        "{p} - 1.",
        one_batch="This is the share without micro-batches, (p - 1) / p: here {m} of them follow one another.",
        percent="This is a percentage; a number from 0 to 1 is asked for.",
    ),
    hints=(
        "Count in the picture, in units of one micro-batch's forward and backward: how long does a stage work, how "
        "long is the whole picture?",
        "A stage works for m units. The last stage starts p - 1 units late, or ends early: the wall time is m + p - 1.",
    ),
)
