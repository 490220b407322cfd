"""The check of interleaved_schedule: several stages a rank, in groups of micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from distlab.course.checks.pipeline.common import misconceptions, ordered, ordered_here
from distlab.course.compare import compare
from distlab.course.exercise import Exercise
from distlab.course.trial import Trial


def merged(forwards: Sequence, backwards: Sequence, warm_up: int) -> list:
    """A warm-up of forwards, then one forward and one backward in turn, then the backwards that are left."""
    warm_up = min(warm_up, len(forwards))
    order = list(forwards[:warm_up])
    for forward, backward in zip(forwards[warm_up:], backwards):
        order += [forward, backward]
    return order + list(backwards[len(forwards) - warm_up :])


def _forwards(group: int, m: int, v: int) -> list:
    micros = [range(start, start + group) for start in range(0, m, group)]
    return [("F", micro, chunk) for some in micros for chunk in range(v) for micro in some]


def _backwards(forwards: list, v: int) -> list:
    return [("B", micro, v - 1 - chunk) for _, micro, chunk in forwards]


def interleaved(rank: int, p: int, m: int, v: int) -> list:
    if m % p:
        raise ValueError("the micro-batches do not divide into groups")
    forwards = _forwards(p, m, v)
    return merged(forwards, _backwards(forwards, v), 2 * (p - rank - 1) + (v - 1) * p)


def _not_refused(rank: int, p: int, m: int, v: int) -> list:
    forwards = _forwards(p, m, v)
    return merged(forwards, _backwards(forwards, v), 2 * (p - rank - 1) + (v - 1) * p)


def _all_of_a_chunk(rank: int, p: int, m: int, v: int) -> list:
    forwards = _forwards(m, m, v)
    return merged(forwards, _backwards(forwards, v), 2 * (p - rank - 1) + (v - 1) * p)


def _same_chunks(rank: int, p: int, m: int, v: int) -> list:
    forwards = _forwards(p, m, v)
    backwards = [("B", micro, chunk) for _, micro, chunk in forwards]
    return merged(forwards, backwards, 2 * (p - rank - 1) + (v - 1) * p)


def _short(rank: int, p: int, m: int, v: int) -> list:
    forwards = _forwards(p, m, v)
    return merged(forwards, _backwards(forwards, v), (p - rank - 1) + (v - 1) * p)


WRONG = {
    "not-refused": _not_refused,
    "all-of-a-chunk": _all_of_a_chunk,
    "same-chunks": _same_chunks,
    "short": _short,
}


def check_interleaved_schedule(learners: Callable, trial: Trial) -> str:
    """Tries 2 to 4 ranks with 1 to 3 chunks, and numbers of micro-batches that do not divide."""
    for ranks, cases in ((2, [(4, 2), (2, 3)]), (4, [(8, 2), (4, 2), (4, 1)]), (3, [(6, 3), (7, 2)])):
        by_rank = trial.run(f"with {ranks} ranks", ordered_here, learners, ranks, cases, ranks=ranks)
        for which, (m, v) in enumerate(cases):
            case = f"with {ranks} ranks of {v} chunk{'s'[: v > 1]} and {m} micro-batches, the steps"

            def of_all(schedule_of: Callable, sizes=(m, v), ranks=ranks) -> list[str]:
                return [ordered(schedule_of, ranks, [sizes], rank)[0] for rank in range(ranks)]

            beliefs = {id: of_all(schedule_of) for id, schedule_of in WRONG.items()}
            came = [of_rank[which] for of_rank in by_rank]
            compare(case, came, of_all(interleaved), beliefs, p=ranks, m=m, v=v)
    return "groups of p micro-batches go through one chunk after the other; 2 to 4 ranks, 1 to 3 chunks"


INTERLEAVED_SCHEDULE = Exercise(
    "interleaved_schedule",
    check_interleaved_schedule,
    misconceptions=misconceptions(
        not_refused="{m} micro-batches do not divide into groups of {p}, and no ValueError was raised.",
        all_of_a_chunk="All {m} micro-batches go through one chunk before any goes through the next: the bubble is "
        "then as large as without chunks. Groups of {p} are enough to keep all ranks busy.",
        same_chunks="The backwards go through the chunks from the first to the last: the gradient comes from the loss, "
        "so it starts with chunk {v} - 1.",
        short="The warm-up is too short: with chunks it takes 2 × (p - rank - 1) forwards, beside (v - 1) × p.",
    ),
    hints=(
        "First list all forwards in order, as pairs of micro-batch and chunk: three loops, over groups, chunks, and "
        "micro-batches of a group. The backwards are the same list with chunk v - 1 - c. Merge the two as in 1F1B.",
        "forwards = [(group + i, c) for group in range(0, num_micro, num_ranks) for c in range(num_chunks) for i in "
        "range(num_ranks)]. After the warm-up, zip(forwards[warm_up:], backwards) gives the pairs; the rest follows.",
    ),
    further=True,
)
