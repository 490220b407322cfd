"""The check of interleaved_schedule: several stages a rank, in groups of micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from distlab.course.checks.pipeline.common import NO_LIST_SAYS, compare_steps, misconceptions, ordered, ordered_here
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


def all_of_a_chunk(rank: int, p: int, m: int, v: int) -> list:
    forwards = _forwards(m, m, v)
    return merged(forwards, _backwards(forwards, v), 2 * (p - rank - 1) + (v - 1) * p)


def _same_chunks(rank: int, p: int, m: int, v: int) -> list:
    forwards = _forwards(p, m, v)
    backwards = [("B", micro, chunk) for _, micro, chunk in forwards]
    return merged(forwards, backwards, 2 * (p - rank - 1) + (v - 1) * p)


def _short(rank: int, p: int, m: int, v: int) -> list:
    forwards = _forwards(p, m, v)
    return merged(forwards, _backwards(forwards, v), (p - rank - 1) + (v - 1) * p)


def _warming_up(warm_up: Callable[[int, int, int], int]) -> Callable:
    """The right schedule with a warm-up of another length, by rank, p and v."""

    def schedule_of(rank: int, p: int, m: int, v: int) -> list:
        if m % p:
            raise ValueError
        forwards = _forwards(p, m, v)
        return merged(forwards, _backwards(forwards, v), warm_up(rank, p, v))

    return schedule_of


def _not_cut(rank: int, p: int, m: int, v: int) -> list:
    if m % p:
        raise ValueError
    forwards = _forwards(p, m, v)
    backwards, warm_up = _backwards(forwards, v), 2 * (p - rank - 1) + (v - 1) * p
    if warm_up <= len(forwards):
        return merged(forwards, backwards, warm_up)
    return forwards + backwards[len(forwards) - warm_up :]  # a negative index: the last few only


def _other_error(rank: int, p: int, m: int, v: int) -> list:
    if m % p:
        raise AssertionError
    return interleaved(rank, p, m, v)


WRONG = {
    "not-refused": _not_refused,
    "all-of-a-chunk": all_of_a_chunk,
    "same-chunks": _same_chunks,
    "short": _short,
    "no-chunks": _warming_up(lambda rank, p, v: 2 * (p - rank - 1)),
    "one-chunk-more": _warming_up(lambda rank, p, v: 2 * (p - rank - 1) + v * p),
    "not-cut": _not_cut,
    "other-error": _other_error,
}


def check_interleaved_schedule(learners: Callable, trial: Trial) -> str:
    """Tries 2 to 4 ranks with 1 to 3 chunks, and numbers of micro-batches that do not divide."""
    wrong = WRONG
    for ranks, cases in ((2, [(4, 2), (2, 3)]), (4, [(8, 2), (4, 2), (4, 1)]), (3, [(6, 3), (7, 2)])):
        by_rank = trial.run(f"with {ranks} ranks", ordered_here, learners, ranks, cases, ranks=ranks)
        for which, (m, v) in enumerate(cases):
            case = f"with {ranks} ranks of {v} chunk{'s'[: v > 1]} and {m} micro-batches"

            def of_all(schedule_of: Callable, sizes=(m, v), ranks=ranks) -> list[str]:
                return [ordered(schedule_of, ranks, [sizes], rank)[0] for rank in range(ranks)]

            beliefs = {id: of_all(schedule_of) for id, schedule_of in wrong.items()}
            came, want = [of_rank[which] for of_rank in by_rank], of_all(interleaved)
            compare_steps(case, came, want, beliefs, p=ranks, m=m, v=v)
            wrong = {id: wrong[id] for id, believed in beliefs.items() if believed == want}
    return "groups of p micro-batches go through one chunk after the other; 2 to 4 ranks, 1 to 3 chunks"


INTERLEAVED_SCHEDULE = Exercise(
    "interleaved_schedule",
    check_interleaved_schedule,
    misconceptions=misconceptions(
        not_refused="{m} micro-batches do not divide into groups of {p}, and no ValueError was raised.",
        all_of_a_chunk="All {m} micro-batches go through one chunk before any goes through the next. The warm-up ends "
        "before that, so the last rank has a backward of the last chunk before the forward it needs: a deadlock. The "
        "groups are of {p} micro-batches.",
        same_chunks="The backwards go through the chunks from the first to the last: the gradient comes from the loss, "
        "so it starts with chunk {v} - 1.",
        short="The warm-up is too short: with chunks it takes 2 × (p - rank - 1) forwards, beside (v - 1) × p.",
        no_chunks="The warm-up has 2 × (p - rank - 1) forwards only: a group must go through all chunks but the last "
        "before its first backward, which takes (v - 1) × p = ({v} - 1) × {p} more.",
        one_chunk_more="The warm-up is {p} forwards too long, v × p instead of (v - 1) × p: the last chunk's forwards "
        "already come in turn with backwards.",
        not_cut="The warm-up is longer than the list of forwards, and so the slices at its end go wrong: cut it to all "
        "there are, with min.",
        other_error="An AssertionError was raised; a ValueError is asked for where {p} does not divide {m}. (Asserts "
        "can be switched off.)",
        no_list=NO_LIST_SAYS,
    ),
    hints=(
        "First list all forwards in order, as pairs of micro-batch and chunk: three loops, over groups, chunks, and "
        "micro-batches of a group. The backwards are the same list with chunk v - 1 - c. Merge the two as in 1F1B.",
        "forwards = [(group + i, c) for group in range(0, num_micro, num_ranks) for c in range(num_chunks) for i in "
        "range(num_ranks)]. After the warm-up, zip(forwards[warm_up:], backwards) gives the pairs; the rest follows.",
    ),
    further=True,
)
