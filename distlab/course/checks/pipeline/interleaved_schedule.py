"""The check of interleaved_schedule: several stages a rank, in groups of micro-batches."""

from __future__ import annotations

from distlab.course.checks.pipeline.common import LIST_SAYS, REFUSED, asked, schedules
from distlab.course.exercise import Exercise
from distlab.course.kit.fixtures import misconceptions


def interleaved(rank: int, p: int, m: int, v: int) -> list[str]:
    """Forwards and backwards in groups of p, merged after a warm-up; or the error that is asked for."""
    if m % p:
        return ["ValueError"]
    order = [(micro + i, chunk) for micro in range(0, m, p) for chunk in range(v) for i in range(p)]
    forwards, backwards = ([_named(kind, *step, v) for step in order] for kind in "FB")
    warm_up = min(2 * (p - rank - 1) + (v - 1) * p, len(order))
    pairs = [step for pair in zip(forwards[warm_up:], backwards) for step in pair]
    return [*forwards[:warm_up], *pairs, *backwards[len(order) - warm_up :]]


def _named(kind: str, micro: int, chunk: int, v: int) -> str:
    chunk = v - 1 - chunk if kind == "B" else chunk
    return f"{kind}{micro}.{chunk}" if chunk else f"{kind}{micro}"


INTERLEAVED_SCHEDULE = Exercise(
    "interleaved_schedule",
    schedules(
        [asked(2, (4, 2), (2, 3)), asked(4, (8, 2), (4, 2), (4, 1)), asked(3, (6, 3), (7, 2))],
        "groups of p micro-batches go through one chunk after the other; 2 to 4 ranks, 1 to 3 chunks",
        interleaved,
        named={REFUSED: "not-refused"},
    ),
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
        one_chunk_as_1f1b="With one chunk the warm-up is that of 1F1B, p - rank - 1. Here it has 2 × (p - rank - 1) "
        "forwards with any number of chunks.",
        not_cut="The warm-up is longer than the list of forwards, and so the slices at its end go wrong: cut it to all "
        "there are, with min.",
        other_error="An AssertionError was raised; a ValueError is asked for where {p} does not divide {m}. (Asserts "
        "can be switched off.)",
        **LIST_SAYS,
    ),
    hints=(
        "First list all forwards in order, as pairs of micro-batch and chunk: three loops, over groups, chunks, and "
        "micro-batches of a group. The backwards are the same list with chunk v - 1 - c. Merge the two as in 1F1B.",
        "forwards = [(group + i, c) for group in range(0, num_micro, num_ranks) for c in range(num_chunks) for i in "
        "range(num_ranks)]. After the warm-up, zip(forwards[warm_up:], backwards) gives the pairs; the rest follows.",
    ),
    further=True,
)
