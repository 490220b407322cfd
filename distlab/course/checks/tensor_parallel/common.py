"""What the checks of lab 08 share: groups of ranks, whole layers to cut, and messages to count."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from distlab.course.exercise import Misconception, Wrong
from distlab.course.trial import RankFailed, Trial
from distlab.events import Message, Span
from distlab.ranks.outcome import Run
from distlab.ranks.watching.spans import span
from distlab.recording import Recording

Groups = list[list[int]]
Tensors = dict[str, torch.Tensor]

# The smallest first; then a size that divides little, one rank alone, and two groups that must not meet.
WORLDS: tuple[Groups, ...] = ([[0, 1]], [[0, 1, 2]], [[0]], [[0, 1], [2, 3]])

# What several exercises say of the same mistakes.
UNTRACKED = (
    "dist.all_reduce was given a tensor that autograd follows, and autograd learns nothing of the sum. Here the "
    "gradient comes out right by luck; behind exp, which needs its own result on the way back, it would not. "
)
SKIPS = (
    "A rank that holds none of the {what} left before the sum, and the others wait for it. Whether a rank takes part "
    "must not hang on what only this rank holds: who has zeros to give gives them."
)
NEVER_JOINED = "never joined"
_UNTRACKED_WARNING = "autograd kernel was not registered"
_NO_ROWS = "my_rows is not there: run the cell further up that takes it from lab 00 (my_rows = from_lab(…).my_rows)"


def misconceptions(**sentences: str) -> tuple[Misconception, ...]:
    return tuple(Misconception(id.replace("_", "-"), says) for id, says in sentences.items())


def in_words(groups: Groups) -> str:
    """ "with 2 ranks", or "with 4 ranks in two groups"."""
    ranks = sum(map(len, groups))
    return f"with {ranks} rank{'s' if ranks > 1 else ''}{' in two groups' if len(groups) > 1 else ''}"


def num_ranks(groups: Groups) -> int:
    return sum(map(len, groups))


def members(groups: Groups) -> list[list[int]]:
    """By rank, the members of its group."""
    return [next(group for group in groups if rank in group) for rank in range(num_ranks(groups))]


def world(groups: Groups) -> Groups:
    """The group that somebody would work in who takes no notice of groups."""
    return [list(range(num_ranks(groups)))]


def enter(groups: Groups):
    """On a rank: makes the groups and returns its own, None for the world."""
    made = [dist.new_group(group) for group in groups] if len(groups) > 1 else [None]
    return next(group for ranks, group in zip(groups, made) if dist.get_rank() in ranks)


def shares(n: int, parts: int) -> list[range]:
    """Every rank's part of n rows, columns or ids: contiguous, the first ranks with one more."""
    size, longer = divmod(n, parts)
    starts = [part * size + min(part, longer) for part in range(parts + 1)]
    return [range(start, stop) for start, stop in zip(starts, starts[1:])]


def share_by_rank(n: int, groups: Groups) -> list[list[int]]:
    """By rank, its part of n within its group."""
    return [list(shares(n, len(group))[group.index(rank)]) for rank, group in enumerate(members(groups))]


def random(seed: int, *shape: int) -> torch.Tensor:
    """Float64 numbers that follow from the seed alone."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def filled(module: nn.Module, seed: int) -> nn.Module:
    """The module in float64, all its parameters drawn from the seed; biases are far from 0."""
    module = module.double()
    for number, parameter in enumerate(module.parameters()):
        with torch.no_grad():
            parameter.copy_(
                random(seed + number, *parameter.shape) / parameter.shape[-1] ** 0.5 + (parameter.dim() < 2)
            )
    return module


def copies(module: nn.Module) -> Tensors:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def gradients(module: nn.Module) -> Tensors:
    """Copies of all gradients, zeros for None."""
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in module.named_parameters()}


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """The tensors that a value keeps alive: a tensor, a module, or lists, tuples and dicts of them."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, nn.Module):
        for part in value.modules():
            yield from tensors_in(vars(part))
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(one)


def bytes_held(module: nn.Module) -> int:
    """Bytes of the memory that a module's parameters and other tensors keep alive."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors_in(module)}.values())


def compare_memory(case: str, held: list[int], numbers: Iterable[int]) -> None:
    """Raises Wrong unless every rank's module keeps the bytes of so many float64 numbers at most."""
    for rank, (bytes, number) in enumerate(zip(held, numbers, strict=True)):
        if bytes > 8 * number:
            detail = f"rank {rank}: expected {8 * number} bytes of memory, its tensors keep {bytes}"
            raise Wrong(f"{case}, the memory", detail, ("keeps-whole",))


@contextmanager
def untracked() -> Iterator[list[bool]]:
    """On a rank: its list is empty unless autograd went back through a message that it knows nothing of."""
    found: list[bool] = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield found
    found.extend(True for warning in said if _UNTRACKED_WARNING in str(warning.message))


def refuse_untracked(case: str, found: list[dict]) -> None:
    """Raises Wrong if a rank's entry "untracked" says so."""
    for rank, one in enumerate(found):
        if one.get("untracked"):
            detail = f"rank {rank}: expected a torch.autograd.Function around every message, and there is none"
            raise Wrong(f"{case}, backward", detail, ("untracked",))


def gradient_of(y: torch.Tensor, x: torch.Tensor, grad_y: torch.Tensor) -> torch.Tensor:
    """Goes backward from y, and returns x's gradient; zeros if no way leads back to it."""
    if y.requires_grad:
        y.backward(grad_y)
    return torch.zeros_like(x) if x.grad is None else x.grad


def forward_and_backward(layer: Callable, x: torch.Tensor, grad_y: torch.Tensor) -> dict:
    """On a rank: y and x's gradient, with the way forward and the way back in spans of their own.

    "kept" says whether x and the gradient of y are as they were.
    """
    x, grad_y, given = x.clone().requires_grad_(), grad_y.clone(), (x, grad_y)
    with untracked() as lost:
        with span("forward"):
            y = layer(x)
        with span("backward"):
            fits = isinstance(y, torch.Tensor) and y.shape == grad_y.shape
            grad_x = gradient_of(y, x, grad_y) if fits else torch.zeros_like(x)
    kept = torch.equal(x.detach(), given[0]) and torch.equal(grad_y, given[1])
    y = y.detach() if isinstance(y, torch.Tensor) else y
    return dict(y=y, grad_x=grad_x.clone(), kept=kept, untracked=any(lost))


def watch(trial: Trial, case: str, driver: Callable, *args, groups: Groups, **because: str) -> Run:
    """Does what :meth:`Trial.watch` does; ``because`` maps an id of a misconception to what the failure then says."""
    try:
        return trial.watch(case, driver, *args, ranks=num_ranks(groups))
    except RankFailed as failed:
        cause = failed.error.failures[failed.error.rank]
        said = f"{failed.error.verdict} {cause.type}: {cause.message}".lower()
        if cause.type == "NameError" and "'my_rows'" in cause.message:
            raise Wrong(case, _NO_ROWS) from None
        ids = [
            id.replace("_", "-") for id, words in because.items() if any(w in said for w in words.lower().split("|"))
        ]
        raise failed.because(*ids[:1]) if ids else failed from None


def all_say(yes: bool) -> bool:
    """On a rank: whether all ranks say yes, so that none goes on alone."""
    answer = torch.tensor(int(yes))
    dist.all_reduce(answer, op=dist.ReduceOp.MIN)
    return bool(answer)


def messages_in(recording: Recording, rank: int, name: str) -> list[Message]:
    """The messages that a rank issued in the spans called ``name``."""
    found, inside = [], False
    for event in recording.ranks[rank]:
        if isinstance(event, Span):
            inside = event.name == name or (inside and bool(event.name))
        elif inside and isinstance(event, Message):
            found.append(event)
    return found


def in_own_group(case: str, run: Run, groups: Groups, known: str = "world") -> None:
    """Raises Wrong if a message went through another group than the rank's."""
    for rank, own in enumerate(members(groups)):
        for name in ("forward", "backward"):
            for message in messages_in(run.recording, rank, name):
                asked = list(run.recording.groups[message.group].members)
                if asked != own:
                    detail = f"rank {rank} called {message.kind} with ranks {asked}, and its group is {own}"
                    raise Wrong(case, detail, (known,))


def count(case: str, run: Run, name: str, kinds: dict[str, int], elements: int, known: Iterable = ()) -> None:
    """Raises Wrong unless each rank issued so many messages of each kind in the span, of so many elements each.

    ``known`` are pairs of an id and the elements that it would send in all.
    """
    for rank in range(run.recording.world_size):
        sent = [m for m in messages_in(run.recording, rank, name) if m.elements]
        got = [(m.kind, m.elements) for m in sent]
        want = [(kind, elements) for kind, times in kinds.items() for _ in range(times)]
        if sorted(got) != sorted(want):
            total = sum(m.elements for m in sent)
            ids = tuple(id for id, predicted in known if predicted == total)
            detail = f"messages of rank {rank} {name}: expected {_listed(want)}, got {_listed(got)}"
            raise Wrong(case, detail, ids)


def _listed(messages: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{kind} of {elements} elements" for kind, elements in messages) or "none"


def refuse_whole(case: str, run: Run, most: int, known: str) -> None:
    """Raises Wrong if a message holds more than ``most`` elements."""
    for rank in range(run.recording.world_size):
        for message in run.recording.messages(rank):
            if message.elements > most:
                got = f"{message.kind} of {message.elements}"
                detail = f"rank {rank}: expected messages of at most {most} elements, got {got}"
                raise Wrong(case, detail, (known,))
