"""The check of gpipe_schedule: all forwards, then all backwards."""

from __future__ import annotations

from collections.abc import Callable

from distlab.course.checks.pipeline.common import NO_LIST_SAYS, Orders, compare_orders, misconceptions, steps
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import Trial

CASES = (2, (2,)), (4, (8, 2, 1)), (3, (5,)), (1, (3,))  # stages, numbers of micro-batches


def gpipe(stage: int, p: int, m: int) -> list:
    return steps("F", range(m)) + steps("B", range(m))


def _last_first(stage: int, p: int, m: int) -> list:
    """As right: backwards from the last micro-batch to the first, as in GPipe's paper."""
    return steps("F", range(m)) + steps("B", reversed(range(m)))


def one_by_one(stage: int, p: int, m: int) -> list:
    return [step for k in range(m) for step in (*steps("F", [k]), *steps("B", [k]))]


def _zigzag(stage: int, p: int, m: int) -> list:
    return _last_first(stage, p, m) if stage % 2 else gpipe(stage, p, m)


def _clock(stage: int, p: int, m: int) -> list:
    ticks = range(m + p - 1)
    return steps("F", [t - stage for t in ticks]) + steps("B", [t - (p - 1 - stage) for t in ticks])


WRONG: dict[str, Orders] = {
    "one-by-one": one_by_one,
    "no-backwards": lambda stage, p, m: steps("F", range(m)),
    "orders-differ": _zigzag,
    "from-1": lambda stage, p, m: steps("F", range(1, m + 1)) + steps("B", range(1, m + 1)),
    "clock": _clock,
    "stages": lambda stage, p, m: steps("F", range(p)) + steps("B", range(p)),
    "text": lambda stage, p, m: [f"{kind}{k}" for kind in "FB" for k in range(m)],
}


def check_gpipe_schedule(learners: Callable, trial: Trial) -> str:
    """Tries 1 to 4 stages, with more and fewer micro-batches than stages; either order of backwards will do."""
    try:
        compare_orders(learners, trial, CASES, gpipe, WRONG)
    except Wrong as wrong:
        if type(wrong) is not Wrong or wrong.believed or not _comes_last_first(learners, trial):
            raise
        return "all forwards, then all backwards, the last micro-batch first, as in GPipe's paper"
    return "all forwards, then all backwards, each micro-batch once; on 1 to 4 stages, also with fewer micro-batches"


def _comes_last_first(learners: Callable, trial: Trial) -> bool:
    try:
        compare_orders(learners, trial, CASES, _last_first, {})
    except Wrong:
        return False
    return True


GPIPE_SCHEDULE = Exercise(
    "gpipe_schedule",
    check_gpipe_schedule,
    misconceptions=misconceptions(
        one_by_one="Each forward is followed at once by its backward: a stage then has nothing to do until the "
        "gradient has come back through all later stages. All {m} forwards come first.",
        no_backwards="There are forwards only: {m} backwards follow them.",
        orders_differ="Neighbouring stages go through the backwards in different orders, so that they would take one "
        "micro-batch's gradient for another's: all stages use one order.",
        from_1="Micro-batches are counted from 1: they go from 0 to {m} - 1.",
        clock="These are ticks of a clock, {m} + {p} - 1 of them, with micro-batches that do not exist. A schedule "
        "lists what a stage does; when it waits comes out by itself, from the messages.",
        stages="There are as many steps as stages, {p} of each kind; there are {m} micro-batches.",
        text='The steps are text: write Step("F", 0), not "F0".',
        no_list=NO_LIST_SAYS,
    ),
    hints=(
        "Every stage does the same, so stage and num_stages are not needed here. (They will be, in other schedules.)",
        'A list of Step("F", k) for k in range(num_micro), and after it the same with "B".',
    ),
)
