"""The check of partition_layers: no other cut has a smaller largest stage; the small ones against all cuts."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations, product
from math import ceil

from distlab.course.checks.layer_partition.common import borders, misconceptions
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import Trial

Cut = list[range]
_SECONDS = 3.0


def cut_up(partition_layers, cases: list[tuple[list[float], int]]) -> list:
    """On one rank: what ``partition_layers`` returns for each case, and whether it left the costs alone.

    None in place of what takes too long.
    """
    results = []
    for costs, num_stages in cases:
        mine = list(costs)
        try:
            with _at_most(_SECONDS):
                came = partition_layers(mine, num_stages)
        except _TooLong:
            return [*results, None]
        ranges = [isinstance(stage, range) for stage in came] if isinstance(came, list | tuple) else [False]
        results.append((list(came) if all(ranges) else repr(came)[:80], mine == costs))
    return results


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


def check_partition_layers(learners: Callable, trial: Trial) -> str:
    """Tries ``partition_layers`` on costs drawn afresh, few layers first, and on a model too large for all cuts."""
    draw = random.Random(trial.seed)
    cases = [([1, 1, 1, 1], 2), ([5, 1, 1, 1, 1, 4], 3), ([1, 1, 1, 1, 1, 1, 9], 2), ([3, 4, 2, 2, 2], 3)]
    cases += [([draw.randint(1, 9) for _ in range(n)], p) for n, p in ((5, 1), (5, 5), (7, 3), (9, 4), (10, 4))]
    cases += [([0, 9], 2), ([9, 0], 2), ([0, 0, 9, 0], 3), ([9, 0, 0], 3), ([1, 50, 1, 1], 4), ([0, 0, 0], 3)]
    cases += [([1.5, 0.75, 0.75, 1.5, 0.75], 3), ([draw.randint(1, 19) / 16 for _ in range(9)], 4)]
    _try_cuts(learners, trial, cases)
    many = [draw.randint(1, 99) for _ in range(60)]
    _try_cuts(learners, trial, [(many, 8)])
    return (
        "contiguous stages, every layer in one, and no other cut has a smaller largest stage: compared with all cuts "
        "of up to 10 layers, with fractions and zeros among the costs, and on 60 layers in 8 stages"
    )


def _try_cuts(learners, trial: Trial, cases: list) -> None:
    results = trial.run(f"{len(cases[0][0])} layers in {cases[0][1]} stages", cut_up, learners, cases, ranks=1)[0]
    for (costs, num_stages), result in zip(cases, results):
        shown = f"costs {costs if len(costs) < 12 else f'of {len(costs)} layers'} in {num_stages} stages"
        if result is None:
            raise Wrong(shown, f"expected an answer within {_SECONDS:g} seconds of work, got none", ("every-cut",))
        came, kept = result
        _check(shown, costs, num_stages, came)
        if not kept:
            raise Wrong(shown, "expected the list of costs as it was, it changed")


def _check(case: str, costs: list[float], num_stages: int, came) -> None:
    layers = list(range(len(costs)))
    if isinstance(came, str):
        raise Wrong(case, f"expected a list of ranges, got {came}", ("no-ranges",))
    if len(came) != num_stages:
        known = ("greedy",) if came in _greedy_cuts(costs, num_stages) else ()
        raise Wrong(case, f"expected {num_stages} stages, got {len(came)}: {came}", known)
    if [layer for stage in came for layer in stage] != layers:
        held = sorted(layer for stage in came for layer in stage)
        known = ("mixed",) if held == layers else ("lost",) if set(held) < set(layers) else ()
        raise Wrong(case, f"expected the layers 0 to {len(costs) - 1} in order, got {came}", known)
    if not all(came):
        raise Wrong(case, f"expected at least one layer in each stage, got {came}", ("empty",))
    best, got = _best(costs, num_stages), largest(costs, came)
    if got > best:
        known = [id for id, cuts in _wrong_cuts(costs, num_stages).items() if came in cuts]
        sizes = ", ".join(str(len(stage)) for stage in came)
        detail = f"largest stage: expected a cost of {best}, got {got}, with {sizes} layers in the stages"
        raise Wrong(case, detail, tuple(known))


def _best(costs: list[float], num_stages: int) -> float:
    """The smallest largest stage: by all cuts for few layers, else by the smallest limit that enough stages obey."""
    if len(costs) <= 12:
        return min(largest(costs, cut) for cut in all_cuts(len(costs), num_stages))
    return _whole_limit(costs, num_stages)


def _whole_limit(costs: list[float], num_stages: int) -> int:
    """The smallest whole number that no stage need exceed."""
    low, high = ceil(max(costs)), ceil(sum(costs))
    while low < high:
        limit = (low + high) // 2
        low, high = (low, limit) if len(_filled(costs, limit)) <= num_stages else (limit + 1, high)
    return low


def _filled(costs: list[float], limit: float, least: int = 0) -> Cut:
    """As few stages as it takes if none may cost more than ``limit``; ``least``: earlier ends make at least so many."""
    starts, room = [0], limit
    for layer, cost in enumerate(costs):
        too_few = len(costs) - layer <= least - len(starts)
        if layer > starts[-1] and (cost > room or too_few):
            starts.append(layer)
            room = limit
        room -= cost
    return [range(a, b) for a, b in zip(starts, [*starts[1:], len(costs)])]


def _wrong_cuts(costs: list[float], num_stages: int) -> dict[str, list[Cut]]:
    known = {"by-count": [borders(len(costs), num_stages)], "greedy": _greedy_cuts(costs, num_stages)}
    if any(cost != int(cost) for cost in costs):
        known["whole-numbers"] = [_filled(costs, _whole_limit(costs, num_stages), num_stages)]
    return known


def _greedy_cuts(costs: list[float], num_stages: int) -> list[Cut]:
    return [_greedy(costs, num_stages, *way) for way in product((False, True), (False, True))]


def _greedy(costs: list[float], num_stages: int, stops_before: bool, reserves: bool) -> Cut:
    """Fills each stage up to the mean; the last takes what is left.

    ``stops_before`` ends a stage before it would exceed the mean, not where it reaches it; ``reserves`` leaves a layer
    for each stage to come.
    """
    ends, share, start = [], sum(costs) / num_stages, 0
    for stage in range(1, num_stages):
        end, most = start + 1, len(costs) - (num_stages - stage) * reserves
        while end < most and sum(costs[start : end + stops_before]) < share + 1e-9 * stops_before:
            end += 1
        if end >= len(costs):
            break
        ends.append(end)
        start = end
    return [range(a, b) for a, b in zip([0, *ends], [*ends, len(costs)])]


PARTITION_LAYERS = Exercise(
    "partition_layers",
    check_partition_layers,
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
