"""The check of gpipe_schedule: all forwards, then all backwards."""

from __future__ import annotations

from distlab.course.checks.pipeline.common import LIST_SAYS, asked, schedules, steps
from distlab.course.exercise import Exercise
from distlab.course.kit.fixtures import misconceptions


def gpipe(stage: int, p: int, m: int) -> list[str]:
    """The first micro-batch first."""
    return steps("F", range(m)) + steps("B", range(m))


def last_first(stage: int, p: int, m: int) -> list[str]:
    """As right: backwards from the last micro-batch to the first, as in GPipe's paper."""
    return steps("F", range(m)) + steps("B", reversed(range(m)))


GPIPE_SCHEDULE = Exercise(
    "gpipe_schedule",
    schedules(
        [asked(2, (2,)), asked(4, (8,), (2,), (1,)), asked(3, (5,)), asked(1, (3,))],
        "all forwards, then all backwards, each micro-batch once; on 1 to 4 stages, also with fewer micro-batches",
        gpipe,
        last_first,
    ),
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
        **LIST_SAYS,
    ),
    hints=(
        "Every stage does the same, so stage and num_stages are not needed here. (They will be, in other schedules.)",
        'A list of Step("F", k) for k in range(num_micro), and after it the same with "B".',
    ),
)
