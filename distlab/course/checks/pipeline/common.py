"""What the checks of lab 07 share: small stages and what one process gives for the whole batch; schedules as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix

import torch
import torch.nn.functional as F
from torch import nn

from distlab.course.kit.case import Case, Job, listed
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import Tensors, gradients_of
from distlab.course.kit.outcome import Outcome

WIDTH, CLASSES, CODES = 5, 3, 4
By = list[list[torch.Tensor | None]]  # by stage and micro-batch


# --- stages --------------------------------------------------------------------------------------


def staged(ranks: int, p: int, sizes: list[int], words: str = "", *, ahead: int = 0, ids: bool = False,
           back: Sequence[int] = ()) -> Case:  # fmt: skip
    """Each rank does the work of all ``p`` stages, with micro-batches of ``sizes`` rows.

    ``ahead`` forwards come before the first backward, all if it is 0; ``back`` is the order of the backwards, the
    forwards' if it is empty. With ``ids`` the model begins with an embedding.
    """
    on_each = f", {p} stage{'s'[: p > 1]} on {'each' if ranks > 1 else 'it'}"
    says = f"{on_each} and micro-batches of {listed(sizes)} row{'s'[: sum(sizes) > 1]}{words}"
    order = {"ahead": ahead or len(sizes), "back": back or range(len(sizes))}
    return Case(ranks, says, p=p, sizes=sizes, ids=ids, **order)


def stage_module(job: Job, number: int) -> nn.Sequential:
    """The layers of a small stage, the same for the same job."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.seed + number)
        first = nn.Embedding(CODES, WIDTH) if job["ids"] and number == 0 else nn.Linear(WIDTH, WIDTH)
        out = CLASSES if number == job["p"] - 1 else WIDTH
        return nn.Sequential(first, nn.Tanh(), nn.Linear(WIDTH, out)).to(job.dtype)


def in_order(job: Job) -> Iterator[tuple[str, int]]:
    """What a stage does: ("F", 0), ("F", 1), ("B", 0), …"""
    num_micro, ahead = len(job["sizes"]), job["ahead"]
    for tick in range(num_micro + ahead - 1):
        if tick < num_micro:
            yield "F", tick
        if tick >= ahead - 1:
            yield "B", job["back"][tick - ahead + 1]


@dataclass(frozen=True)
class WholeBatch:
    """One process's forward and backward of the whole batch, cut up as the stages of a pipeline see it."""

    labels: list[torch.Tensor]
    inputs: By
    outs: By  # the last stage's are the losses
    by_input: By  # gradients; None on the first stage, and beyond the last
    by_weight: list[Tensors]  # gradients, by stage


def whole_batch(job: Job) -> WholeBatch:
    """By plain autograd on all stages."""
    sizes, num_rows = job["sizes"], sum(job["sizes"])

    def cut(x_BD: torch.Tensor) -> list[torch.Tensor]:
        return list(x_BD.detach().split(sizes))

    modules = [stage_module(job, number) for number in range(job["p"])]
    y_B = job.random(num_rows, CLASSES, of=1).argmax(dim=1)
    at_cuts = [torch.arange(num_rows) % CODES if job["ids"] else job.random(num_rows, WIDTH)]
    for module in modules:
        at_cuts.append(module(at_cuts[-1]))
        at_cuts[-1].retain_grad()
    losses_B = F.cross_entropy(at_cuts.pop(), y_B, reduction="none") / num_rows
    losses_B.sum().backward()
    inputs, nothing = [cut(x_BD) for x_BD in at_cuts], [None] * len(sizes)
    return WholeBatch(
        cut(y_B),
        inputs,
        [*inputs[1:], [losses_b.sum() for losses_b in cut(losses_B)]],
        [nothing, *(cut(x_BD.grad) for x_BD in at_cuts[1:]), nothing],
        [gradients_of(module) for module in modules],
    )


# --- schedules -----------------------------------------------------------------------------------

ONE = (torch.float64,)  # of dtypes, where there are no floats
Order = Callable[..., list[str]]
REFUSED = "the refusal"
NO_LIST = "no list, but "
LIST_SAYS = {
    "no_list": "What is returned is no list: a generator can be gone through once only, and a schedule is checked, "
    "drawn and executed. Return a list of Steps.",
    "tuples": 'The steps are plain tuples, whose parts have no names. Each is a Step: Step("F", 0).',
    "nothing": "None is returned: `return` is missing before the list, or what it returns is what append gave.",
}


def asked(p: int, *sizes: tuple[int, ...]) -> Case:
    """Each rank asks for the steps of ``p`` stages; ``sizes`` are numbers of micro-batches, perhaps with chunks a rank.

    All are one case, so that a mistake is known by where it is right, too.
    """
    whom = "ranks" if sizes[0][1:] else f"stage{'s'[: p > 1]}"
    return Case(3, f" that ask about {p} {whom}", dtypes=ONE, p=p, sizes=sizes)


def schedules(cases: Sequence[Case], holds: str, *orders: Order, named: Mapping[str, str] | None = None) -> Experiment:
    """Tries a function that gives the steps of one stage; any of ``orders`` is right, one for all stages."""

    def expect(job: Job, came: list[dict]) -> list[dict]:
        wanted = [{of: " ".join(order(*sizes)) for of, sizes in _questions(job).items()} for order in orders]
        return [next((want for want in wanted if came == [want] * job.ranks), wanted[0])] * job.ranks

    def fields(job: Job, outcome: Outcome | None) -> dict:
        came = outcome.values if outcome else []
        want = expect(job, came)[0]
        asked_first = next((of for of in want if any(got[of] != want[of] for got in came)), next(iter(want)))
        return dict(zip("spmv", _questions(job)[asked_first]))

    return Experiment(cases, _drive, expect, holds, fields=fields, words=_words, named=named or {})


def steps(kind: str, micros: Iterable[int]) -> list[str]:
    """Steps of one kind."""
    return [f"{kind}{micro}" for micro in micros]


def _questions(job: Job) -> dict[str, tuple[int, ...]]:
    """What a schedule is asked for, in words and in numbers."""
    found = {}
    for m, *v in job["sizes"]:
        words = f"{m} micro-batch{'es' if m > 1 else ''}" + "".join(f" in {n} chunk{'s'[: n > 1]}" for n in v)
        for number in range(job["p"]):
            what = REFUSED if v and m % job["p"] else "the steps"
            found[f"{what} of {'rank' if v else 'stage'} {number} for {words}"] = (number, job["p"], m, *v)
    return found


def _drive(lab, job: Job) -> dict:
    """On a rank: the steps of every stage as text, or what is raised where micro-batches make no whole groups."""
    found = {}
    for of, (number, p, m, *v) in _questions(job).items():
        try:
            found[of] = _told(call(getattr(lab, lab.name), number, p, m, *v))
        except (ValueError, AssertionError) as error:
            if not v or m % p == 0:
                raise
            found[of] = type(error).__name__
    return found


def _told(schedule: object) -> str:
    """A schedule in one line, "F0 F1 B0 B1"; where it is no list of Steps, what it is instead."""
    if not isinstance(schedule, list | tuple):
        return NO_LIST + ("a generator" if isinstance(schedule, Iterator) else " ".join(repr(schedule).split()))
    return " ".join(_named(step) for step in schedule)


def _named(step: object) -> str:
    if not hasattr(step, "_fields"):
        return repr(step)
    kind, micro, chunk = step
    return f"{kind}{micro}.{chunk}" if chunk else f"{kind}{micro}"


def _words(what: str, got: Sequence[str], want: Sequence[str]) -> str:
    """Both in full, or where they are long from the first step on that differs."""
    rank = next(rank for rank, text in enumerate(got) if text != want[rank])
    came, wanted = got[rank], want[rank]
    if came.startswith(NO_LIST):
        return f"rank {rank}: expected a list of Steps, got {came.removeprefix(NO_LIST)[:60]}"
    if max(len(came), len(wanted)) <= 80:
        return f"rank {rank}: expected {wanted}, got {came or 'no steps'}"
    same = len(commonprefix([came.split(), wanted.split()]))
    rests = [" ".join(text.split()[same : same + 10]) or "no more" for text in (wanted, came)]
    return f"rank {rank}, after {same} steps: expected {rests[0]} …, got {rests[1]} …"
