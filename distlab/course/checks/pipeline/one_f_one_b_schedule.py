"""The check of one_f_one_b_schedule: a warm-up, then one forward and one backward in turn."""

from __future__ import annotations

from collections.abc import Callable

from distlab.course.checks.pipeline.common import Orders, compare_orders, misconceptions, steps
from distlab.course.checks.pipeline.gpipe_schedule import gpipe
from distlab.course.exercise import Exercise
from distlab.course.trial import Trial


def after_warm_up(warm_up: int, m: int) -> list:
    """1F1B with a warm-up of any length; one that is too long for m leads to micro-batches that do not exist."""
    warm_up = max(warm_up, 0)
    order = steps("F", range(warm_up))
    for k in range(max(m - warm_up, 0)):
        order += [*steps("F", [warm_up + k]), *steps("B", [k])]
    return order + steps("B", range(m - warm_up, m))


def one_f_one_b(stage: int, p: int, m: int) -> list:
    return after_warm_up(min(p - stage - 1, m), m)


def _not_cut(stage: int, p: int, m: int) -> list:
    return after_warm_up(p - stage - 1, m)


def _no_cool_down(stage: int, p: int, m: int) -> list:
    return [step for step in one_f_one_b(stage, p, m) if step[0] == "F" or step[1] < m - min(p - stage - 1, m)]


WRONG: dict[str, Orders] = {
    "long-warm-up": lambda stage, p, m: after_warm_up(min(p - stage, m), m),
    "short-warm-up": lambda stage, p, m: after_warm_up(min(p - stage - 2, m), m),
    "not-cut": _not_cut,
    "no-cool-down": _no_cool_down,
    "same-everywhere": lambda stage, p, m: after_warm_up(min(p - 1, m), m),
    "wrong-end": lambda stage, p, m: after_warm_up(min(stage, m), m),
    "gpipe": gpipe,
}


def check_one_f_one_b_schedule(learners: Callable, trial: Trial) -> str:
    """Tries 1 to 4 stages, with more and fewer micro-batches than stages."""
    for ranks, numbers in ((3, (5,)), (4, (8, 4)), (2, (4, 1)), (4, (2, 1, 3)), (1, (3,))):
        compare_orders(learners, trial, ranks, numbers, one_f_one_b, WRONG)
    return (
        "stage s warms up with p - s - 1 forwards, then takes one forward and one backward in turn; on 1 to 4 stages, "
        "also with fewer micro-batches than stages"
    )


ONE_F_ONE_B_SCHEDULE = Exercise(
    "one_f_one_b_schedule",
    check_one_f_one_b_schedule,
    misconceptions=misconceptions(
        long_warm_up="The warm-up is one forward too long, p - s instead of p - s - 1: stage 0 would hold {p} + 1 "
        "micro-batches. The forward that follows the warm-up is the p - s-th.",
        short_warm_up="The warm-up is one forward too short: stages wait for gradients while there are forwards to do, "
        "and the bubble grows. Stage s warms up with p - s - 1 forwards, then a forward comes before each backward.",
        not_cut="The warm-up has more forwards than there are micro-batches: it ends after {m}, if p - s - 1 is more.",
        no_cool_down="The last backwards are missing: after the last forward, as many backwards are left as the "
        "warm-up had forwards.",
        same_everywhere="Every stage has the warm-up of stage 0, so that every stage holds {p} micro-batches; the "
        "later a stage, the sooner its first gradient comes.",
        wrong_end="The warm-up grows with the stage; it shrinks: {p} - 1 forwards on stage 0, none on the last.",
        gpipe="This is GPipe's order: with it a stage holds all {m} micro-batches. After the warm-up, a backward "
        "follows each forward.",
    ),
    hints=(
        "Write out p = 3, m = 5 by hand. The last stage: F0 B0 F1 B1 … Stage 1: F0, then F1 B0, F2 B1 …, and a "
        "backward that is left. How many forwards are ahead of the backwards on stage s?",
        "warm_up = min(num_stages - stage - 1, num_micro) forwards; then for k in range(num_micro - warm_up): "
        'Step("F", warm_up + k), Step("B", k); then the backwards from num_micro - warm_up on.',
    ),
)
