"""The check of one_f_one_b_schedule: a warm-up, then one forward and one backward in turn."""

from __future__ import annotations

from distlab.course.checks.pipeline.common import LIST_SAYS, asked, schedules, steps
from distlab.course.exercise import Exercise
from distlab.course.kit.fixtures import misconceptions


def one_f_one_b(stage: int, p: int, m: int) -> list[str]:
    """A warm-up, pairs, and the backwards that are left."""
    warm_up = min(p - stage - 1, m)
    pairs = zip(steps("F", range(warm_up, m)), steps("B", range(m)))
    return [*steps("F", range(warm_up)), *(step for pair in pairs for step in pair), *steps("B", range(m - warm_up, m))]


ONE_F_ONE_B_SCHEDULE = Exercise(
    "one_f_one_b_schedule",
    schedules(
        [asked(3, (5,)), asked(4, (8,), (4,), (2,), (1,), (3,)), asked(2, (4,), (1,)), asked(1, (3,)), asked(8, (10,))],
        "stage s warms up with p - s - 1 forwards, then takes one forward and one backward in turn; on 1 to 4 stages, "
        "also with fewer micro-batches than stages",
        one_f_one_b,
    ),
    misconceptions=misconceptions(
        long_warm_up="The warm-up is one forward too long, p - s instead of p - s - 1: stage 0 would hold {p} + 1 "
        "micro-batches. The forward that follows the warm-up is the p - s-th.",
        short_warm_up="The warm-up is one forward too short. p - s - 1 forwards are the fewest that keep the last "
        "stage busy: with fewer it idles, with more each stage only holds more activations. After them one forward "
        "comes before each backward.",
        not_cut="The warm-up has more forwards than there are micro-batches: it ends after {m}, if p - s - 1 is more.",
        no_cool_down="The last backwards are missing: after the last forward, as many backwards are left as the "
        "warm-up had forwards.",
        same_everywhere="Every stage has the warm-up of stage 0. So each holds {p} micro-batches, and the last has no "
        "forward left between its backwards: it idles while the next one comes all the way from stage 0.",
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
        **LIST_SAYS,
    ),
    hints=(
        "Write out p = 3, m = 5 by hand. The last stage: F0 B0 F1 B1 … Stage 1: F0, then F1 B0, F2 B1 …, and a "
        "backward that is left. How many forwards are ahead of the backwards on stage s?",
        "warm_up = min(num_stages - stage - 1, num_micro) forwards; then for k in range(num_micro - warm_up): "
        'Step("F", warm_up + k), Step("B", k); then the backwards from num_micro - warm_up on.',
    ),
)
