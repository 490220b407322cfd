"""What the checks of lab 08 share: ranks in groups, the way there and back, and what may be sent on it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.distributed as dist

from distlab.course.kit.budget import more_than
from distlab.course.kit.case import Case, Job, listed
from distlab.course.kit.driving import Driver, call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import shares
from distlab.course.kit.outcome import Outcome
from distlab.ranks.watching.spans import span

Groups = tuple[tuple[int, ...], ...]

# The smallest first; then a size that divides little, one rank alone, and two groups that must not meet.
WORLDS: tuple[Groups, ...] = ((0, 1),), ((0, 1, 2),), ((0,),), ((0, 2), (1, 3))

# What several exercises say of the same mistakes.
UNTRACKED = (
    "dist.all_reduce was given a tensor that autograd follows, and autograd learns nothing of the sum. Here the "
    "gradient comes out right by luck; behind exp, which needs its own result on the way back, it would not. "
)
SKIPS = (
    "A rank that holds none of the {what} left before the sum, and the others wait for it. Whether a rank takes part "
    "must not hang on what only this rank holds: who has zeros to give gives them."
)
NONE = "dist.all_reduce works in place and returns None: go on with the tensor that you gave it."
_UNTRACKED_WARNING = "autograd kernel was not registered"
_UNFOLLOWED = "a message that autograd knows nothing of"


@dataclass(frozen=True)
class Seat:
    """Where a rank sits: the number of its group, its place in it, and the group's ranks."""

    group: int
    place: int
    ranks: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Its number in the world."""
        return self.ranks[self.place]

    def part(self, n: int) -> list[int]:
        """This rank's part of n rows, columns, heads or ids."""
        return list(shares(n, len(self.ranks))[self.place])


def case(groups: Groups, words: str = "", **options) -> Case:
    """A case with ranks in groups; a single group is the world."""
    apart = f" in the groups {listed(list(map(list, groups)))}" if len(groups) > 1 else ""
    return Case(sum(map(len, groups)), apart + words, groups=groups, **options)


def seats(job: Job) -> list[Seat]:
    """By rank, where it sits."""
    by_rank = {
        ranks[p]: Seat(number, p, ranks) for number, ranks in enumerate(job["groups"]) for p in range(len(ranks))
    }
    return [by_rank[rank] for rank in range(job.ranks)]


def own_seat(job: Job) -> Seat:
    """On a rank: where it sits."""
    return seats(job)[dist.get_rank()]


def own_group(job: Job):
    """On a rank: its group, None for the world."""
    return _made(job["groups"])[own_seat(job).group] if len(job["groups"]) > 1 else None


@lru_cache
def _made(groups: Groups) -> list:
    return [dist.new_group(ranks) for ranks in groups]


def size_of_groups(job: Job, outcome: Outcome | None) -> dict:
    """The fields of the sentences: how many ranks work together."""
    return {"ranks": len(job["groups"][0])}


def drawn(job: Job, group: int, which: int, *shape: int) -> torch.Tensor:
    """Random numbers number ``which`` of a group, other than those of the other groups."""
    return job.random(*shape, of=100 * group + which)


def all_say(yes: bool) -> bool:
    """On a rank: whether all ranks say yes, so that none goes on alone."""
    answer = torch.tensor(int(yes))
    dist.all_reduce(answer, op=dist.ReduceOp.MIN)
    return bool(answer)


@dataclass(frozen=True)
class Ways:
    """A function of x that is tried both ways: y forward, and backward from a gradient of y the gradient of x.

    ``given(job, seat)`` are its arguments but for the group, and the gradient of y; ``alone(job, seat)`` are the y and
    the gradient of x wanted on that rank. ``forward`` and ``backward`` are how many numbers may be sent, twice those of
    an array for an all-reduce. ``of`` is the number of the argument x, ``names`` are what y and x are called.
    """

    name: str
    given: Callable[[Job, Seat], tuple[Sequence, torch.Tensor]]
    alone: Callable[[Job, Seat], tuple[torch.Tensor, torch.Tensor]]
    forward: int = 0
    backward: int = 0
    of: int = 0
    names: tuple[str, str] = ("y", "x")

    def drive(self, lab, job: Job) -> dict:
        """On a rank: what comes both ways."""
        args, grad_y = self.given(job, own_seat(job))
        function, args = getattr(lab, self.name), (*args, own_group(job))
        found = there_and_back(function, args, grad_y, self.of, self.names)
        plain = call(function, *args)  # as in evaluation, and in a first layer
        return found | {self._plain: plain.detach() if isinstance(plain, torch.Tensor) else plain}

    def expect(self, job: Job, came: list[dict]) -> list[dict]:
        """What one process has."""
        want = [wanted(*self.alone(job, seat), self.names) for seat in seats(job)]
        return [of_rank | {self._plain: of_rank[self.names[0]]} for of_rank in want]

    def judge(self, job: Job, outcome: Outcome):
        """Complaints of what is sent."""
        yield from budget(job, outcome, self.forward, self.backward)

    @property
    def _plain(self) -> str:
        return f"{self.names[0]} where {self.names[1]} need{'s' * (self.names[1] == 'x')} no gradient"

    def experiment(self, drive: Driver, cases: Sequence[Case], holds: str) -> Experiment:
        """All of it as a check; ``drive`` is a module's function that calls this one's.

        (Ranks find that one by its name, where a method would be sent to them with all that it holds.)
        """
        return Experiment(cases, drive, self.expect, judge=self.judge, fields=size_of_groups, tells=GROUPS, holds=holds)


def there_and_back(function: Callable, args: Sequence, grad_y: torch.Tensor, of: int = 0,
                   names: tuple[str, str] = ("y", "x")) -> dict:  # fmt: skip
    """On a rank: what comes forward and what comes back, in spans of these names, to argument number ``of``."""
    y_name, x_name = names
    args, grad_y = list(args), grad_y.clone()
    x = args[of] = args[of].clone().requires_grad_()
    with _untracked() as lost:
        with span("forward"):
            y = call(function, *args)
        came = y.detach().clone() if isinstance(y, torch.Tensor) else y
        is_followed = isinstance(y, torch.Tensor) and y.requires_grad
        if is_followed and y.shape == grad_y.shape:
            with span("backward"):
                call(_go_back, y, grad_y)
    grad_x = None if x.grad is None else x.grad.clone()
    found = {y_name: came, f"requires_grad of {y_name}": is_followed}
    return found | {f"the gradient of {x_name}": grad_x, _UNFOLLOWED: any(lost)}


def wanted(y: torch.Tensor, grad_x: torch.Tensor, names: tuple[str, str] = ("y", "x")) -> dict:
    """What there_and_back is to find."""
    found = {names[0]: y.detach(), f"requires_grad of {names[0]}": True}
    return found | {f"the gradient of {names[1]}": grad_x, _UNFOLLOWED: False}


def _go_back(y, grad_y) -> None:
    y.backward(grad_y)


@contextmanager
def _untracked() -> Iterator[list[bool]]:
    """On a rank: its list is empty unless autograd went back through a message that it knows nothing of."""
    found: list[bool] = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield found
    found.extend(True for warning in said if _UNTRACKED_WARNING in str(warning.message))


WRONG_GROUP = "the groups"
GROUPS = {WRONG_GROUP: "world"}


def budget(job: Job, outcome: Outcome, forward: int = 0, backward: int = 0):
    """Complaints that more numbers were sent on a way than these, or through another group than the rank's own.

    Twice an array's numbers are those of an all-reduce.
    """
    for rank, seat in enumerate(seats(job)):
        for message in outcome.messages(rank, "call"):
            if (members := outcome.members(message)) != list(seat.ranks):
                yield WRONG_GROUP, f"rank {rank}: expected {message.kind} in {list(seat.ranks)}, got {members}"
                return
    for way, numbers in (("forward", forward), ("backward", backward)):
        padding = 2 * job.ranks if numbers else 0
        yield from more_than((numbers + padding) * job.dtype.itemsize, outcome, f"the bytes sent {way}", way)


def asked(what: str, function: Callable, args: Sequence, numbers: dict[str, int], refuses: bool,
          errors: type[Exception] = ValueError) -> dict:  # fmt: skip
    """On a rank: what comes of arguments, or how they are refused, which is to name ``numbers``.

    ``refuses`` says whether they are; ``errors`` of this kind are taken for a refusal, right or wrong.
    """
    value, error = None, None
    try:
        value = call(function, *args)
    except NotImplementedError:
        raise
    except errors as raised:
        error = raised
    found = {"what it raises": "nothing" if error is None else type(error).__name__}
    if not refuses:
        return found | {what: value}
    named = re.findall(r"\d+", str(error))
    return found | {f"whether its words name the {number} {of}": str(number) in named for of, number in numbers.items()}


def refusal(numbers: dict[str, int]) -> dict:
    """What ``asked`` is to find where something is to be refused."""
    return {"what it raises": "ValueError"} | {
        f"whether its words name the {number} {of}": True for of, number in numbers.items()
    }
