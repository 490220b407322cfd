"""Lab 00: what a rank is, and which rows belong to it."""

from __future__ import annotations

import contextlib
import io
import random
import re
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from distlab.course.compare import difference
from distlab.course.exercise import Exercise, Prediction
from distlab.course.kit.case import Case, Job, listed
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import misconceptions, shares
from distlab.course.kit.outcome import Outcome

LAB = "00_start_here"
_NO_FLOATS = (torch.float64,)  # nothing has a dtype here: one is enough
_SIZES_SHOWN = 8
_REFUSALS = AssertionError, IndexError, ValueError, ZeroDivisionError

# --- greet --------------------------------------------------------------------------------------

_TEXT, _ROWS, _RAISED = "what it returns", "its rows", "it raises"


def greet_aloud(lab, job: Job) -> dict:
    """On a rank: what ``greet`` returns, and whether it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        value = call(lab.greet)
    print(printed.getvalue(), end="")
    return {_TEXT: value, "it prints": bool(printed.getvalue())}


def _greetings(job: Job) -> list[str]:
    return [f"rank {rank} of {job.ranks}" for rank in range(job.ranks)]


def _numbers(text) -> list[str]:
    return re.findall(r"\d+", text) if isinstance(text, str) else []


def _ranks_right(job: Job, came: list[dict]) -> list[dict]:
    """The right texts, or those that came if each has its own rank, and all the same world size."""
    numbers = [_numbers(values[_TEXT]) for values in came]
    is_near = [found[:1] for found in numbers] == [[str(rank)] for rank in range(job.ranks)]
    is_near = is_near and len({tuple(found[1:]) for found in numbers}) == 1 and len(numbers[0]) == 2
    return [{_TEXT: values[_TEXT] if is_near else want} for values, want in zip(came, _greetings(job))]


def _text_right(job: Job, outcome: Outcome):
    for rank, (values, want) in enumerate(zip(outcome.values, _greetings(job))):
        if values[_TEXT] != want:
            yield _TEXT, f"rank {rank}: expected {want!r}, got {values[_TEXT]!r}"


def _what_differs(job: Job, outcome: Outcome) -> tuple[str, ...]:
    world = int(_numbers(outcome.values[0][_TEXT])[1])
    return ("form" if world == job.ranks else "highest-rank" if world == 0 else "world-fixed",)


def _said(job: Job, outcome: Outcome | None) -> Mapping:
    return {"said": (_numbers(outcome.values[0][_TEXT]) or ["nothing"])[-1] if outcome else ""}


GREET = Exercise(
    "greet",
    Experiment(
        [Case(ranks, dtypes=_NO_FLOATS) for ranks in (1, 2, 3, 4)],
        greet_aloud,
        _ranks_right,
        judge=_text_right,
        shown=_what_differs,
        fields=_said,
        holds="every rank says its own number and the world size, with 1, 2, 3 and 4 ranks",
    ),
    misconceptions=misconceptions(
        prints="It prints its text and returns None: write `return`, not `print`.",
        no_return="Every rank returns None: the function ends without `return`.",
        from_one="The ranks are counted from 1; the first one is rank 0.",
        highest_rank="The world size is how many ranks there are, not the highest rank.",
        world_fixed="The world size is {ranks} here, and it says {said}: ask dist.get_world_size().",
        always_zero="Every rank says that it is rank 0: ask dist.get_rank() which one it is.",
        only_zero="Only rank 0 answers, the others return None: each is to speak for itself.",
        form="The numbers are right; only the text around them is not as asked.",
        wants_rank="`greet` takes no argument: each rank asks dist.get_rank() which one it is.",
    ),
    hints=(
        "Ask torch.distributed two questions: dist.get_rank() says which rank this is, and "
        "dist.get_world_size() how many there are.",
        'An f-string puts values into a text: f"{3} rows on {4} ranks" is "3 rows on 4 ranks". '
        "Return yours; printing is not enough.",
    ),
)

# --- my_rows ------------------------------------------------------------------------------------

_OWN = {4: (10, 4, 5, 7, 3, 2, 1, 0), 2: (3, 2), 3: (5, 3), 1: (3, 8)}  # 4 first: on it mistakes differ most


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def own_rows(lab, job: Job) -> dict:
    """On a rank: its rows, or how it refuses; or those of all ranks of many worlds."""
    if job["n"] is None:
        worlds = _worlds(job).items()
        return {name: [lab.my_rows(n, rank, world) for rank in range(world)] for name, (n, world) in worlds}
    try:
        return {_ROWS: call(lab.my_rows, job["n"], dist.get_rank(), job.ranks)}
    except _REFUSALS as error:
        if job["n"] >= job.ranks:
            raise
        return {_RAISED: f"{type(error).__name__}: {error}"}


def _worlds(job: Job) -> dict[str, tuple[int, int]]:
    """Rows and ranks of worlds of all sizes, by what is said of them."""
    draw = random.Random(job.seed)
    small = [(n, world) for world in range(1, 9) for n in range(20)]
    every = [(10, 4), *small, (1797, 64), (draw.randrange(5000), draw.randrange(9, 64))]
    return {
        f"the rows of all ranks, of {_count(n, 'row')} on {_count(world, 'rank')}": (n, world) for n, world in every
    }


def expect_rows(job: Job, came: list[dict]) -> list[dict]:
    """The right ranges; the right rows in another form, and a refusal of few rows, are for the judge."""
    if job["n"] is None:
        return [{name: shares(n, world) for name, (n, world) in _worlds(job).items()}] * job.ranks
    rows = [(values.get(_ROWS), right) for values, right in zip(came, shares(job["n"], job.ranks))]
    is_form = all(_same_rows(got, right) for got, right in rows)
    return [{} if _RAISED in v else {_ROWS: got if is_form else right} for v, (got, right) in zip(came, rows)]


def _same_rows(got, want: range) -> bool:
    """Whether ``got`` says the same rows, as a range or in another way."""
    ends = want.start, want.stop
    if isinstance(got, torch.Tensor):
        got = got.tolist()
    others = list(want), tuple(want), list(ends), ends, slice(*ends), want
    return isinstance(got, list | tuple | slice | range) and got in others


def _ranges(job: Job, outcome: Outcome):
    for rank, values in enumerate(outcome.values):
        if _RAISED in values:
            yield "", f"expected an empty range on some ranks; rank {rank} raised {values[_RAISED]}"
        elif job["n"] is not None and not isinstance(values[_ROWS], range):
            yield _ROWS, f"rank {rank}: expected a range, got {values[_ROWS]!r}"


def _in_words(what: str, got: Sequence, want: Sequence) -> str | None:
    """The first wrong range, and what is wrong with them together."""
    if isinstance(want[0], list):
        asked = next(rank for rank, rows in enumerate(got) if rows != want[rank])
        return f"all worked out on rank {asked}, {_in_words(what, got[asked], want[asked])}"
    wrong = next((rank for rank, right in enumerate(want) if difference(got[rank], right)), None)
    if wrong is None:
        return None
    return "\n".join([f"rank {wrong}: {difference(got[wrong], want[wrong])}", *_facts(got, want)])


def _facts(got: Sequence, want: Sequence[range]) -> list[str]:
    """What the ranges show together: sizes, a row that nobody has, that several have, that is not there."""
    if len(got) > _SIZES_SHOWN or not all(isinstance(rows, range) for rows in got):
        return []
    n = want[-1].stop
    owners = {row: [rank for rank, rows in enumerate(got) if row in rows] for row in range(n)}
    nobodys = [f"row {row} belongs to nobody" for row, ranks in owners.items() if not ranks]
    shared = [f"row {row} belongs to ranks {listed(ranks)}" for row, ranks in owners.items() if len(ranks) > 1]
    outside = sorted({row for rows in got for row in (*rows[:1], *rows[-1:]) if not 0 <= row < n})
    missing = [f"there is no row {row}; rows go from 0 to {n - 1}" for row in outside if n]
    return [f"sizes: expected {_sizes(want)}, got {_sizes(got)}", *nobodys[:1], *shared[:1], *missing[:1]]


def _sizes(rows: Sequence) -> str:
    return ", ".join(str(len(each)) if isinstance(each, range) else "?" for each in rows)


def _what_it_means(what: str, got: Sequence, want: Sequence) -> str | None:
    """What is wrong with the ranges together, in a sentence."""
    if isinstance(want[0], list):
        wrong = next((rank for rank, rows in enumerate(got) if rows != want[rank]), None)
        return None if wrong is None else _what_it_means(what, got[wrong], want[wrong])
    if not all(isinstance(rows, range) for rows in got):
        return None
    rows = [row for each in got for row in each]
    there = set(range(want[-1].stop))
    if there - set(rows):
        return "Some row belongs to no rank."
    if set(rows) - there:
        return "A range goes beyond the rows, which are 0 to n − 1."
    if len(rows) > len(set(rows)):
        return "Some row belongs to several ranks."
    sizes = [len(each) for each in got]
    if max(sizes) - min(sizes) > 1:
        return "Every row has one rank, but the sizes differ by more than one."
    return "Every row has one rank, but not in order: the first ranks have the first rows, and the longer ranges."


def _of_rows(job: Job, outcome: Outcome | None) -> Mapping:
    if job["n"] is None:
        return {}
    size, rest = divmod(job["n"], job.ranks)
    lost = f"{_count(rest, 'row')} belong{'s' if rest == 1 else ''}"
    found = {"n": job["n"], "size": size, "rest": rest, "block": -(-job["n"] // job.ranks), "lost": lost}
    got = [values.get(_ROWS) for values in outcome.values] if outcome else [None]
    return found | {"sizes": _sizes(got), "kind": type(got[0]).__name__}


MY_ROWS = Exercise(
    "my_rows",
    Experiment(
        [
            *(Case(ranks, f" and {_count(n, 'row')}", n=n, dtypes=_NO_FLOATS) for ranks in _OWN for n in _OWN[ranks]),
            Case(2, n=None, dtypes=_NO_FLOATS),
        ],
        own_rows,
        expect_rows,
        judge=_ranges,
        shown=lambda job, outcome: ("few",) if any(_RAISED in values for values in outcome.values) else ("no-range",),
        fields=_of_rows,
        words=_in_words,
        tells=_what_it_means,
        holds="every row belongs to one rank, in order, and sizes differ by at most one, the longer first; "
        "with 1 to 64 ranks, and with fewer rows than ranks",
    ),
    misconceptions=misconceptions(
        drops="{n} mod {ranks} = {lost} to nobody: every rank gets {n} // {ranks} = {size}, no more.",
        last_takes_rest="The last rank takes the whole remainder: sizes {sizes}.",
        first_takes_rest="The first rank takes the whole remainder: sizes {sizes}.",
        blocks="In blocks of {n} / {ranks} rounded up, {block}, too little is left for the last: "
        "sizes {sizes} differ by more than one.",
        past_the_end="Blocks of {n} / {ranks} rounded up, {block}, run past the last row.",
        overlap="The ranges overlap: each starts at rank × {size}, as if no rank before it had an extra row.",
        strided="Every {ranks}th row is the right number of rows, but they are not contiguous.",
        longer_last="The longer ranges come last, and the first ranks are to get them.",
        longer_between="The longer ranges are spread out, and the first ranks are to get them.",
        one_long="Every range is one row too long: range(start, stop) ends before `stop`.",
        one_short="Every range is one row too short: range(start, stop) itself ends before `stop`.",
        one_more="{rest} of the ranks get a row more, those below {rest}; here rank {rest} takes one, too.",
        from_one="Every rank has the rows of the one before, as if ranks were counted from 1.",
        no_range="The rows are right, but they come as a {kind}: return range(start, stop).",
        float="`/` gives a float, and a range needs whole numbers: use `//` or divmod.",
        few="Fewer rows than ranks is no error: a rank for which none is left has an empty range.",
        kept="It answers what it answered before, for another `world`: keep nothing from call to call, or for all "
        "three arguments.",
        asks="It answers for the rank and world size that it runs on, not for those it is given: "
        "use `rank` and `world`.",
    ),
    hints=(
        "divmod(10, 4) is (2, 2): each rank gets 2 rows, and 2 are left over. The first 2 ranks take one more each.",
        "With size, rest = divmod(n, world), the ranks before this one hold rank * size rows, and one more "
        "for each longer range among them, which are min(rank, rest). That is where this rank starts.",
    ),
)

EXERCISES = (GREET, MY_ROWS)

PREDICTIONS = {
    "00.copies": Prediction([7], "Each rank appended to its own copy; no rank can reach the notebook's x."),
    "00.sizes": Prediction(
        [len(rows) for rows in shares(10, 4)],
        "10 = 4 × 2 + 2: two rows are left over, and ranks 0 and 1 take one more each.",
    ),
}
