"""Lab 00: what a rank is, and which rows belong to it."""

from __future__ import annotations

import contextlib
import io
import random
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import torch
import torch.distributed as dist

from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Misconception, Prediction, Wrong
from distlab.course.trial import RankFailed, Trial

LAB = "00_start_here"
_SIZES_SHOWN = 8
_REFUSALS = {"AssertionError", "IndexError", "RuntimeError", "ValueError", "ZeroDivisionError"}


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


# --- greet --------------------------------------------------------------------------------------


def check_greet(learners: Callable[[], str], trial: Trial) -> str:
    """Tries ``greet`` on 1 to 4 ranks."""
    for ranks in (1, 2, 3, 4):
        case = f"with {_count(ranks, 'rank')}"
        try:
            heard = trial.run(case, greet_aloud, learners, ranks=ranks)
        except RankFailed as failed:
            raise failed.because("wants-rank") if _lacks_argument(failed) else failed from None
        said = [value for value, _ in heard]
        beliefs = _greeting_beliefs(said, printed=any(text for _, text in heard))
        compare(case, said, _greetings(ranks), beliefs, said=_world_said(said[0]), ranks=ranks)
    return "every rank says its own number and the world size, with 1, 2, 3 and 4 ranks"


def greet_aloud(greet: Callable[[], str]) -> tuple[object, str]:
    """Calls ``greet`` on a rank; returns what it returned and what it printed."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        value = greet()
    return value, printed.getvalue()


def _lacks_argument(failed: RankFailed) -> bool:
    cause = failed.error.failures[failed.error.rank]
    return cause.type == "TypeError" and not cause.frames and "required positional argument" in cause.message


def _greetings(ranks: int, first: int = 0, world: int | None = None) -> list[str]:
    return [f"rank {rank} of {ranks if world is None else world}" for rank in range(first, first + ranks)]


def _world_said(said) -> int | None:
    """The world size in a greeting, if it has the form of one."""
    match = re.fullmatch(r"rank \d+ of (\d+)", said) if isinstance(said, str) else None
    return int(match[1]) if match else None


def _greeting_beliefs(said: list, *, printed: bool) -> dict[str, Sequence]:
    """What each misconception would have said, by rank."""
    ranks, world = len(said), _world_said(said[0])
    want = _greetings(ranks)
    numbers = [re.findall(r"\d+", value) if isinstance(value, str) else [] for value in said]
    return {
        "prints" if printed else "no-return": [None] * ranks,
        "from-one": _greetings(ranks, first=1),
        "highest-rank" if world == 0 else "world-fixed": _greetings(ranks, world=world),
        "always-zero": [f"rank 0 of {ranks}"] * ranks,
        "only-zero": [f"rank 0 of {ranks}", *[None] * (ranks - 1)],
        "form": said if numbers == [[str(rank), str(ranks)] for rank in range(ranks)] else want,
    }


GREET = Exercise(
    "greet",
    check_greet,
    misconceptions=(
        Misconception("prints", "It prints its text and returns None: write `return`, not `print`."),
        Misconception("no-return", "Every rank returns None: the function ends without `return`."),
        Misconception("from-one", "The ranks are counted from 1; the first one is rank 0."),
        Misconception("highest-rank", "The world size is how many ranks there are, not the highest rank."),
        Misconception("world-fixed", "The world size is {ranks} here, and it says {said}: ask dist.get_world_size()."),
        Misconception("always-zero", "Every rank says that it is rank 0: ask dist.get_rank() which one it is."),
        Misconception("only-zero", "Only rank 0 answers, the others return None: each is to speak for itself."),
        Misconception("form", "The numbers are right; only the text around them is not as asked."),
        Misconception("wants-rank", "`greet` takes no argument: each rank asks dist.get_rank() which one it is."),
    ),
    hints=(
        "Ask torch.distributed two questions: dist.get_rank() says which rank this is, and "
        "dist.get_world_size() how many there are.",
        'An f-string puts values into a text: f"{3} rows on {4} ranks" is "3 rows on 4 ranks". '
        "Return yours; printing is not enough.",
    ),
)


# --- my_rows ------------------------------------------------------------------------------------


def right_rows(n: int, world: int) -> list[range]:
    """Which of n rows belong to each rank."""
    sizes = [n // world + (rank < n % world) for rank in range(world)]
    return [range(stop - size, stop) for size, stop in zip(sizes, accumulate(sizes))]


def check_my_rows(learners: Callable[[int, int, int], range], trial: Trial) -> str:
    """Tries ``my_rows`` on 1 to 4 ranks, each for itself, and then for every rank of larger worlds."""
    draw = random.Random(trial.seed)
    for ranks, numbers in {1: [3, 8], 4: [4, 10, 5, 7], 2: [2, 3], 3: [3, 5]}.items():
        _try_own_rows(learners, trial, ranks, [*numbers, draw.randrange(ranks, 200)])
    _try_few_rows(learners, trial)
    layouts = [(10, 4), *((n, world) for world in range(1, 9) for n in range(20)), (1797, 64)]
    _try_layouts(learners, trial, [*layouts, (draw.randrange(5000), draw.randrange(9, 64))])
    return (
        "every row belongs to one rank, in order, and sizes differ by at most one, the longer first; "
        "with 1 to 64 ranks, and with fewer rows than ranks"
    )


def _try_own_rows(learners, trial: Trial, ranks: int, numbers: list[int]) -> None:
    try:
        by_rank = trial.run(f"with {_count(ranks, 'rank')}", own_rows, learners, numbers, ranks=ranks)
    except RankFailed as failed:
        raise failed.because("float") if "'float' object cannot" in failed.detail else failed from None
    for n, rows in zip(numbers, zip(*by_rank)):
        _compare_rows(list(rows), n)


def _try_few_rows(learners, trial: Trial) -> None:
    """Tries fewer rows than ranks, apart from the rest: a function that raises here is known for it."""
    numbers = [3, 2, 1, 0]
    try:
        by_rank = trial.run("with 3 rows or fewer on 4 ranks", own_rows, learners, numbers, ranks=4)
    except RankFailed as failed:
        raise failed.because("few") if failed.error.original_type in _REFUSALS else failed from None
    for n, rows in zip(numbers, zip(*by_rank)):
        _compare_rows(list(rows), n)


def _try_layouts(learners, trial: Trial, layouts: list[tuple[int, int]]) -> None:
    """Lets two ranks work out the rows of every rank of other worlds."""
    by_rank = trial.run("with rows worked out for other ranks", everyones_rows, learners, layouts, ranks=2)
    for asked, answers in enumerate(by_rank):
        for (n, world), rows in zip(layouts, answers):
            own = [right_rows(n, len(by_rank))[asked]] * world
            _compare_rows(rows, n, f", all worked out on rank {asked} of {len(by_rank)}", {"asks": own})


def own_rows(my_rows, numbers: list[int]) -> list:
    """On a rank: its rows of each number of rows."""
    return [my_rows(n, dist.get_rank(), dist.get_world_size()) for n in numbers]


def everyones_rows(my_rows, layouts: list[tuple[int, int]]) -> list[list]:
    """On a rank: the rows of every rank, for each pair of number of rows and world size."""
    return [[my_rows(n, rank, world) for rank in range(world)] for n, world in layouts]


def _compare_rows(got: list, n: int, where: str = "", beliefs: Mapping[str, Sequence] | None = None):
    """Raises Wrong unless ``got`` is the rows of each rank in turn; adds what is wrong with them together."""
    case = f"with {_count(n, 'row')} on {_count(len(got), 'rank')}{where}"
    beliefs = _row_beliefs(got, n) | (beliefs or {})
    try:
        compare(case, got, right_rows(n, len(got)), beliefs, **_row_fields(got, n))
    except Wrong as wrong:
        detail = "\n".join([wrong.detail, *_facts(got, n)])
        raise Wrong(case, detail, wrong.believed, **wrong.fields) from None


def _row_beliefs(got: list, n: int) -> dict[str, Sequence]:
    """The rows that each misconception would have given, by rank."""
    world = len(got)
    want = right_rows(n, world)
    size, rest = divmod(n, world)
    block = -(-n // world)
    return {
        "drops": [range(r * size, (r + 1) * size) for r in range(world)],
        "last-takes-rest": [range(r * size, n if r == world - 1 else (r + 1) * size) for r in range(world)],
        "blocks": [range(min(n, r * block), min(n, (r + 1) * block)) for r in range(world)],
        "past-the-end": [range(r * block, (r + 1) * block) for r in range(world)],
        "overlap": [range(r * size, r * size + len(want[r])) for r in range(world)],
        "strided": [range(r, n, world) for r in range(world)],
        "longer-last": [range(n - rows.stop, n - rows.start) for rows in reversed(want)],
        "longer-between": [range(n * r // world, n * (r + 1) // world) for r in range(world)],
        "one-long": [range(rows.start, rows.stop + 1) for rows in want],
        "one-short": [range(rows.start, rows.stop - 1) for rows in want],
        "from-one": [got[0], *want[:-1]] if isinstance(got[0], range) and got[0].start < 0 else want,
        "no-range": got if all(map(_same_rows, got, want)) else want,
    }


def _same_rows(got, want: range) -> bool:
    """Whether ``got`` says the same rows in another way than as a range."""
    ends = want.start, want.stop
    if isinstance(got, torch.Tensor):
        got = got.tolist()
    others = list(want), tuple(want), list(ends), ends, slice(*ends)
    return isinstance(got, list | tuple | slice) and got in others


def _row_fields(got: list, n: int) -> dict[str, object]:
    size, rest = divmod(n, len(got))
    lost = f"{_count(rest, 'row')} belong{'s' if rest == 1 else ''}"
    kind = type(got[0]).__name__
    return dict(n=n, ranks=len(got), size=size, block=-(-n // len(got)), lost=lost, sizes=_sizes(got), kind=kind)


def _sizes(got: list) -> str:
    return ", ".join(str(len(rows)) if isinstance(rows, range) else "?" for rows in got)


def _facts(got: list, n: int) -> list[str]:
    """What the ranges show together: sizes, a row that nobody has, that several have, that is not there."""
    if len(got) > _SIZES_SHOWN or not all(isinstance(rows, range) for rows in got):
        return []
    owners = {row: [rank for rank, rows in enumerate(got) if row in rows] for row in range(n)}
    nobodys = [f"row {row} belongs to nobody" for row, ranks in owners.items() if not ranks]
    shared = [f"row {row} belongs to ranks {_and(ranks)}" for row, ranks in owners.items() if len(ranks) > 1]
    outside = sorted({row for rows in got for row in (*rows[:1], *rows[-1:]) if not 0 <= row < n})
    missing = [f"there is no row {row}; rows go from 0 to {n - 1}" for row in outside if n]
    return [
        f"sizes: expected {_sizes(right_rows(n, len(got)))}, got {_sizes(got)}",
        *nobodys[:1],
        *shared[:1],
        *missing[:1],
    ]


def _and(ranks: list[int]) -> str:
    return f"{', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


MY_ROWS = Exercise(
    "my_rows",
    check_my_rows,
    misconceptions=(
        Misconception("drops", "{n} mod {ranks} = {lost} to nobody: every rank gets {n} // {ranks} = {size}, no more."),
        Misconception("last-takes-rest", "The last rank takes the whole remainder: sizes {sizes}."),
        Misconception(
            "blocks",
            "In blocks of {n} / {ranks} rounded up, {block}, too little is left for the last: "
            "sizes {sizes} differ by more than one.",
        ),
        Misconception("past-the-end", "Blocks of {n} / {ranks} rounded up, {block}, run past the last row."),
        Misconception(
            "overlap",
            "The ranges overlap: each starts at rank × {size}, as if no rank before it had an extra row.",
        ),
        Misconception("strided", "Every {ranks}th row is the right number of rows, but they are not contiguous."),
        Misconception("longer-last", "The longer ranges come last, and the first ranks are to get them."),
        Misconception("longer-between", "The longer ranges are spread out, and the first ranks are to get them."),
        Misconception("one-long", "Every range is one row too long: range(start, stop) ends before `stop`."),
        Misconception("one-short", "Every range is one row too short: range(start, stop) itself ends before `stop`."),
        Misconception("from-one", "Every rank has the rows of the one before, as if ranks were counted from 1."),
        Misconception("no-range", "The rows are right, but they come as a {kind}: return range(start, stop)."),
        Misconception("float", "`/` gives a float, and a range needs whole numbers: use `//` or divmod."),
        Misconception("few", "Fewer rows than ranks is no error: a rank for which none is left has an empty range."),
        Misconception(
            "asks",
            "It answers for the rank and world size that it runs on, not for those it is given: "
            "use `rank` and `world`.",
        ),
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
        [len(rows) for rows in right_rows(10, 4)],
        "10 = 4 × 2 + 2: two rows are left over, and ranks 0 and 1 take one more each.",
    ),
}
