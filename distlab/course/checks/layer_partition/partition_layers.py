"""The check of partition_layers: no other cut has a smaller largest stage; the small ones against all cuts."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from math import ceil

from distlab.course.exercise import Exercise
from distlab.course.kit.case import BOTH, Case, Job
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import misconceptions
from distlab.course.kit.outcome import Outcome

Cut = list[range]
_SECONDS = 0.6  # of work; a right answer takes a fortieth of it

_slow: set[Callable] = set()  # on a rank: what took too long once is not tried again


def case(num_stages: int, *costs: float, draws: tuple[int, ...] = ()) -> Case:
    """``draws``: so many costs, up to so many times one part of so many, are drawn afresh."""
    made = Case(1, dtypes=BOTH[:1], num_stages=num_stages, costs=list(costs), draws=draws)
    made.words = f"{num_stages} stage{'s' * (num_stages > 1)}"
    return made


def costs_of(job: Job) -> list[float]:
    """What the layers cost."""
    number, most, parts = job["draws"] or (0, 1, 1)
    draw = random.Random(job.seed)
    drawn = [draw.randint(1, most) for _ in range(number)]
    return job["costs"] + (drawn if parts == 1 else [cost / parts for cost in drawn])


def drive(lab, job: Job) -> dict:
    """On a rank: the stages, as text if they are no ranges; None in place of what takes too long."""
    if lab.partition_layers in _slow:
        return {"the stages": None}
    try:
        with _at_most(_SECONDS):
            came = call(lab.partition_layers, costs_of(job), job["num_stages"])
    except _TooLong:
        _slow.add(lab.partition_layers)
        return {"the stages": None}
    is_cut = isinstance(came, list | tuple) and all(isinstance(stage, range) for stage in came)
    return {"the stages": list(came) if is_cut else repr(came)[:80]}


class _TooLong(BaseException):
    """Raised in the middle of what takes too long; no learner's ``except Exception`` catches it."""


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raises _TooLong when this process has worked for so many seconds, where the system can tell."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def stop(*_):
        raise _TooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def largest(costs: Sequence[float], stages: Cut) -> float:
    """The cost of the largest stage."""
    return max(sum(costs[stage.start : stage.stop]) for stage in stages)


def all_cuts(num_layers: int, num_stages: int) -> list[Cut]:
    """Every way to cut layers into stages of at least one."""
    cuts = combinations(range(1, num_layers), num_stages - 1)
    return [[range(a, b) for a, b in zip((0, *cut), (*cut, num_layers))] for cut in cuts]


def judge(job: Job, outcome: Outcome) -> Iterator[tuple[str, str]]:
    """Any cut is right whose largest stage is as small as it can be."""
    costs = costs_of(job)
    if detail := _fault(costs, job["num_stages"], outcome.values[0]["the stages"])[0]:
        yield f"costs {costs if len(costs) < 12 else f'of {len(costs)} layers'}", detail


def shown(job: Job, outcome: Outcome) -> tuple[str, ...]:
    """The mistake that the stages show, unless it takes a look at how they were found."""
    return _fault(costs_of(job), job["num_stages"], outcome.values[0]["the stages"])[1]


def _fault(costs: list[float], num_stages: int, came: Cut | str | None) -> tuple[str, tuple[str, ...]]:
    """What is wrong with the stages, "" if nothing is; and the ids of what it shows."""
    if came is None:
        return f"expected an answer within {_SECONDS:g} seconds of work, got none", ("every-cut",)
    if isinstance(came, str):
        return f"expected a list of ranges, got {came}", ("no-ranges",)
    held, layers = [layer for stage in came for layer in stage], list(range(len(costs)))
    if len(came) != num_stages:
        return f"expected {num_stages} stages, got {len(came)}: {came}", ()
    if held != layers:
        known = ("mixed",) if sorted(held) == layers else ("lost",) if set(held) < set(layers) else ()
        return f"expected the layers 0 to {len(costs) - 1} in order, got {came}", known
    if not all(came):
        return f"expected at least one layer in each stage, got {came}", ("empty",)
    best, got = _best(costs, num_stages), largest(costs, came)
    sizes = ", ".join(str(len(stage)) for stage in came)
    return f"largest stage: expected a cost of {best}, got {got}, with {sizes} layers in the stages" * (got > best), ()


def _best(costs: list[float], num_stages: int) -> float:
    """The smallest largest stage: by all cuts for few layers, else by the smallest limit that enough stages obey."""
    if len(costs) <= 12:
        return min(largest(costs, cut) for cut in all_cuts(len(costs), num_stages))
    low, high = ceil(max(costs)), ceil(sum(costs))
    while low < high:
        limit = (low + high) // 2
        low, high = (low, limit) if _stages_within(costs, limit) <= num_stages else (limit + 1, high)
    return low


def _stages_within(costs: list[float], limit: float) -> int:
    """How few stages it takes if none may cost more than ``limit``."""
    stages, room = 1, limit
    for cost in costs:
        if cost > room:
            stages, room = stages + 1, limit
        room -= cost
    return stages


PARTITION_LAYERS = Exercise(
    "partition_layers",
    Experiment(
        (
            case(2, 1, 1, 1, 1),
            case(3, 5, 1, 1, 1, 1, 4),
            case(2, 1, 1, 1, 1, 1, 1, 9),
            case(3, 3, 4, 2, 2, 2),
            *(case(p, draws=(n, 9, 1)) for n, p in ((5, 1), (5, 5), (7, 3), (9, 4), (10, 4))),
            *(case(2, *costs) for costs in ((0, 9), (9, 0))),
            *(case(3, *costs) for costs in ((0, 0, 9, 0), (9, 0, 0), (0, 0, 0), (1.5, 0.75, 0.75, 1.5, 0.75))),
            case(4, 1, 50, 1, 1),
            case(4, draws=(9, 19, 16)),
            case(8, draws=(60, 99, 1)),
        ),
        drive,
        lambda job, came: came,
        judge=judge,
        shown=shown,
        holds="contiguous stages, every layer in one, and no other cut has a smaller largest stage: compared with all "
        "cuts of up to 10 layers, with fractions and zeros among the costs, and on 60 layers in 8 stages",
    ),
    misconceptions=misconceptions(
        by_count="Every stage has as many layers, whatever they cost: the costs say which layers are heavy.",
        greedy="Each stage is filled up to the mean, and the last one takes what is left. That is not the best: what "
        "is good for the first stages can be bad for the last. Compare whole cuts.",
        whole_numbers="The search goes through whole numbers only. Costs may be fractions, and then a smaller limit "
        "lies between two of them.",
        lost="A layer is in no stage: the stages together hold every layer once.",
        mixed="The stages hold every layer once, but not in the model's order: a stage is a run of neighbouring "
        "layers.",
        empty="A stage is empty, and its rank would have nothing to do: each has at least one layer.",
        no_ranges="The stages are asked for as ranges: [range(0, 2), range(2, 5)] for two stages of five layers.",
        every_cut="This takes too long. If it tries every cut: 60 layers in 8 stages can be cut in 341 million ways. "
        "The best cut of the first layers into fewer stages can be kept and used again.",
    ),
    hints=(
        "Let best(s, n) be the smallest largest stage of the first n layers in s stages. Its last stage begins at "
        "some layer i: it costs max(best(s - 1, i), costs[i] + … + costs[n - 1]). Take the i that makes this least.",
        "Go through s = 1, 2, …, num_stages. For each n keep the least cost and the cut that has it, as a pair: "
        "min(…, key=…) over all i compares pairs by their first entry.",
    ),
    further=True,
)
