"""The check of one_f_one_b_schedule: a warm-up, then one forward and one backward in turn."""

from __future__ import annotations

from collections.abc import Callable

from distlab.course.checks.pipeline.common import NO_LIST_SAYS, Orders, compare_orders, misconceptions, steps
from distlab.course.checks.pipeline.gpipe_schedule import gpipe, one_by_one
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


def _backward_first(stage: int, p: int, m: int) -> list:
    warm_up = min(p - stage - 1, m)
    pairs = [step for k in range(m - warm_up) for step in (*steps("B", [k]), *steps("F", [warm_up + k]))]
    return steps("F", range(warm_up)) + pairs + steps("B", range(m - warm_up, m))


def _drains_from_0(stage: int, p: int, m: int) -> list:
    return _no_cool_down(stage, p, m) + steps("B", range(min(p - stage - 1, m)))


WRONG: dict[str, Orders] = {
    "long-warm-up": lambda stage, p, m: after_warm_up(min(p - stage, m), m),
    "short-warm-up": lambda stage, p, m: after_warm_up(min(p - stage - 2, m), m),
    "not-cut": _not_cut,
    "no-cool-down": _no_cool_down,
    "same-everywhere": lambda stage, p, m: after_warm_up(min(p - 1, m), m),
    "wrong-end": lambda stage, p, m: after_warm_up(min(stage, m), m),
    "gpipe": gpipe,
    "no-warm-up": one_by_one,
    "backward-first": _backward_first,
    "drains-from-0": _drains_from_0,
    "few-as-gpipe": lambda stage, p, m: gpipe(stage, p, m) if m < p else one_f_one_b(stage, p, m),
}
CASES = (3, (5,)), (4, (8, 4)), (2, (4, 1)), (4, (2, 1, 3)), (1, (3,))  # stages, numbers of micro-batches


def check_one_f_one_b_schedule(learners: Callable, trial: Trial) -> str:
    """Tries 1 to 4 stages, with more and fewer micro-batches than stages."""
    compare_orders(learners, trial, CASES, one_f_one_b, WRONG)
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
        no_warm_up="There is no warm-up: each forward is followed at once by its backward, and a stage then waits "
        "until the gradient has come back through all later stages. Stage s does p - s - 1 forwards first.",
        backward_first="After the warm-up the forward comes first in each pair: stage s does its p - s-th forward, "
        "then B0. On the last stage B0 would stand before F0.",
        drains_from_0="The backwards that are left at the end start again from B0: some micro-batches go backward "
        "twice and others never. Those that are left are the last ones, from {m} - warm-up on.",
        few_as_gpipe="With fewer micro-batches than stages this is GPipe's order. A stage whose p - s - 1 is below {m} "
        "still takes one forward and one backward in turn: only the warm-up is cut, to {m} at most.",
        no_list=NO_LIST_SAYS,
    ),
    hints=(
        "Write out p = 3, m = 5 by hand. The last stage: F0 B0 F1 B1 … Stage 1: F0, then F1 B0, F2 B1 …, and a "
        "backward that is left. How many forwards are ahead of the backwards on stage s?",
        "warm_up = min(num_stages - stage - 1, num_micro) forwards; then for k in range(num_micro - warm_up): "
        'Step("F", warm_up + k), Step("B", k); then the backwards from num_micro - warm_up on.',
    ),
)
