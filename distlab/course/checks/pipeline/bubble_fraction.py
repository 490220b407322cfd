"""The check of bubble_fraction: idle time over wall time."""

from __future__ import annotations

from distlab.course.checks.pipeline.common import ONE
from distlab.course.exercise import Exercise
from distlab.course.kit.case import Case
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import misconceptions

SIZES = (4, 8), (2, 1), (4, 4), (8, 32), (3, 5), (4, 2), (5, 3), (1, 4), (64, 512)  # stages, micro-batches


def bubble(p: int, m: int) -> float:
    """The share of the wall time that a stage idles."""
    return (p - 1) / (m + p - 1)


BUBBLE_FRACTION = Exercise(
    "bubble_fraction",
    Experiment(
        [Case(3, f" that ask about {p} stages and {m} micro-batches", dtypes=ONE, p=p, m=m) for p, m in SIZES],
        lambda lab, job: {"": call(lab.bubble_fraction, job["p"], job["m"])},
        lambda job, _: [{"": bubble(job["p"], job["m"])}] * job.ranks,
        holds="idle time over wall time, (p - 1) / (m + p - 1); 0 for one stage, (p - 1) / p for one micro-batch",
    ),
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
        rounded="The number is rounded. Return it as it is, and round where you print it.",
        percent="This is a percentage; a number from 0 to 1 is asked for.",
    ),
    hints=(
        "Count in the picture, in units of one micro-batch's forward and backward: how long does a stage work, how "
        "long is the whole picture?",
        "A stage works for m units. The last stage starts p - 1 forwards late, and ends p - 1 backwards early: p - 1 "
        "units together. So the wall time is m + p - 1.",
    ),
)
