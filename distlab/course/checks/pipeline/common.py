"""What the checks of lab 07 share: small stages, batches, and schedules as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from distlab.course.compare import compare
from distlab.course.exercise import Misconception, Wrong
from distlab.course.trial import Trial

WIDTH = 4
CLASSES = 3


def misconceptions(**sentences: str) -> tuple[Misconception, ...]:
    return tuple(Misconception(id.replace("_", "-"), says) for id, says in sentences.items())


def with_ranks(ranks: int) -> str:
    return f"with {ranks} rank{'s' if ranks > 1 else ''}"


def module(number: int, num_stages: int, seed: int) -> nn.Sequential:
    """The layers of a small stage; the same for the same seed, others for another number."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + number)
        out = CLASSES if number == num_stages - 1 else WIDTH
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, out)).double()


def micro_batches(sizes: Sequence[int], seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of rows of ``WIDTH`` numbers and labels, one pair for each size."""
    generator = torch.Generator().manual_seed(seed)
    x_BD = torch.randn(sum(sizes), WIDTH, generator=generator, dtype=torch.float64)
    y_B = torch.randint(CLASSES, (sum(sizes),), generator=generator)
    return list(zip(x_BD.split(list(sizes)), y_B.split(list(sizes))))


def right_forward(stage, micro: int, x_bD: torch.Tensor, y_b: torch.Tensor, num_rows: int) -> torch.Tensor:
    """What run_forward is to do."""
    x_bD = x_bD.detach().requires_grad_(not stage.is_first)
    out = stage.module(x_bD)
    if stage.is_last:
        out = F.cross_entropy(out, y_b, reduction="sum") / num_rows
    stage.kept[micro] = x_bD, out
    return out.detach()


def text(steps: Iterable) -> str:
    """A schedule's steps in one line, "F0 F1 B0 B1"; what is no Step as it prints itself."""
    return " ".join(_named(step) for step in steps)


def told(steps: object) -> str:
    """A learner's schedule as text; where it is no list of Steps, what it is instead."""
    if not isinstance(steps, list | tuple):
        return f"{NO_LIST} {type(steps).__name__}"
    return " ".join(_named(step) if hasattr(step, "_fields") else repr(step) for step in steps)


NO_LIST = "no list, but a"


def _named(step: object) -> str:
    if not isinstance(step, tuple) or len(step) != 3:
        return repr(step)
    kind, micro, chunk = step
    return f"{kind}{micro}.{chunk}" if chunk else f"{kind}{micro}"


def steps(kind: str, micros: Iterable[int]) -> list[tuple[str, int, int]]:
    """Steps of one kind."""
    return [(kind, micro, 0) for micro in micros]


NO_LIST_SAYS = (
    "What is returned is no list: a generator can be gone through once only, and a schedule is checked, drawn and "
    "executed. Return a list of Steps."
)
Orders = Callable[[int, int, int], list[tuple[str, int, int]]]


def ordered(
    schedule_of: Callable, ranks: int, cases: Sequence[tuple[int, ...]], rank: int, as_text: Callable = text
) -> list[str]:
    """A rank's steps in each case, as text; what the function refuses as the name of the error."""
    found = []
    for case in cases:
        try:
            found.append(as_text(schedule_of(rank, ranks, *case)))
        except (ValueError, AssertionError) as error:
            found.append(type(error).__name__)
    return found


def ordered_here(schedule_of: Callable, ranks: int, cases: Sequence[tuple[int, ...]]) -> list[str]:
    """On a rank: its own steps in each case."""
    import torch.distributed as dist

    return ordered(schedule_of, ranks, cases, dist.get_rank(), told)


def compare_orders(
    learners: Callable,
    trial: Trial,
    tries: Sequence[tuple[int, Sequence[int]]],
    right: Orders,
    wrong: dict[str, Orders],
) -> None:
    """Raises Wrong unless every stage's order is the right one, for every number of stages and of micro-batches.

    A misconception that would have given something wrong where the learner's steps were right is not named later.
    """
    wrong = dict(wrong)
    for ranks, numbers in tries:
        cases = [(num_micro,) for num_micro in numbers]
        came = trial.run(with_ranks(ranks), ordered_here, learners, ranks, cases, ranks=ranks)
        for which, (num_micro,) in enumerate(cases):
            case = f"with {ranks} stage{'s'[: ranks > 1]} and {num_micro} micro-batch{'es' if num_micro > 1 else ''}"
            sizes = ranks, num_micro
            want = [text(right(stage, *sizes)) for stage in range(ranks)]
            beliefs = {id: [text(order(stage, *sizes)) for stage in range(ranks)] for id, order in wrong.items()}
            compare_steps(case, [of_rank[which] for of_rank in came], want, beliefs, p=ranks, m=num_micro)
            wrong = {id: wrong[id] for id, believed in beliefs.items() if believed == want}


def compare_steps(case: str, came: list[str], want: list[str], beliefs: dict[str, list[str]], **fields) -> None:
    """Compares schedules as text, by rank, and says so where one is no list."""
    for rank, of_rank in enumerate(came):
        if of_rank.startswith(NO_LIST):
            raise Wrong(case, f"rank {rank}: expected a list of Steps, got {of_rank}", ("no-list",), **fields)
    compare(f"{case}, the steps", came, want, beliefs, **fields)
