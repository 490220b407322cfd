"""What the checks of lab 09 share: a plain mixture of experts to compare with, and the bytes that leave a rank."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from distlab.course.kit.case import Job
from distlab.course.kit.outcome import Outcome
from distlab.ranks.watching.spans import span

RETURNED = "what is returned"
SIZES_SENT = "the bytes of sizes sent"


class Plan(NamedTuple):
    """Kept assignments by expert: tokens, which of their choices, and how many each expert keeps."""

    tokens: torch.Tensor
    choices: torch.Tensor
    counts: torch.Tensor


def weigh(scores: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """The scores of what was chosen: as they are for one choice, else divided by their sum."""
    weights = scores.gather(1, experts)
    return weights / weights.sum(-1, keepdim=True) if experts.shape[1] > 1 else weights


def plan(experts: torch.Tensor, num_experts: int, capacity: int) -> Plan:
    """Choice by choice, and token by token, who gets into which queue."""
    num_tokens, k = experts.shape
    queues: list[list[tuple[int, int]]] = [[] for _ in range(num_experts)]
    for choice, token in itertools.product(range(k), range(num_tokens)):
        queues[int(experts[token, choice])].append((token, choice))
    kept = [queue[:capacity] for queue in queues]
    pairs = torch.tensor([pair for queue in kept for pair in queue], dtype=torch.int64).reshape(-1, 2)
    return Plan(pairs[:, 0], pairs[:, 1], torch.tensor([len(queue) for queue in kept]))


class Layered(NamedTuple):
    """What a layer of experts makes of one rank's tokens."""

    y: torch.Tensor
    balance: torch.Tensor
    experts: torch.Tensor
    kept: Plan


def moe(x, gate, up, down, k: int, capacity: int, alpha: float) -> Layered:
    """One rank's tokens through all experts, assignment by assignment."""
    probs = (x @ gate.T).softmax(-1)
    experts = probs.topk(k).indices
    share = torch.bincount(experts.flatten(), minlength=len(gate)) / experts.numel()
    kept = plan(experts, len(gate), capacity)
    of, weights = experts[kept.tokens, kept.choices], weigh(probs, experts)[kept.tokens, kept.choices]
    inner = F.gelu(torch.einsum("ad,adh->ah", x[kept.tokens], up[of]))
    rows = weights[:, None] * torch.einsum("ah,ahd->ad", inner, down[of])
    y = torch.zeros_like(x).index_add(0, kept.tokens, rows)
    return Layered(y, alpha * len(gate) * (share * probs.mean(0)).sum(), experts, kept)


def first_that(is_telling: Callable, draw: Callable[[int], torch.Tensor]) -> torch.Tensor:
    """The first of the numbers drawn that show what they are to show."""
    return next(numbers for numbers in map(draw, itertools.count()) if is_telling(numbers))


def are_apart(scores: torch.Tensor, k: int) -> bool:
    """Whether the k best of each token, and the next, are further apart than rounding may move them."""
    best = scores.double().topk(min(k + 1, scores.shape[1])).values
    return bool((best.diff().abs() > 1e-4).all())


def kind_of(value) -> str:
    """What came, in words: "3 tensors", "a tensor of shape (2,)"."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, tuple | list) and value and all(isinstance(part, torch.Tensor) for part in value):
        return f"{len(value)} tensors"
    return f"a {type(value).__name__} of {len(value)}" if isinstance(value, tuple | list) else repr(value)[:60]


def if_returned(kind: str | Sequence[str], came: Sequence[dict], values: Sequence[dict]) -> list[dict]:
    """Each rank's expected ``values``, where it returned the kind of thing that is asked for; else that alone."""
    kinds = [kind] * len(came) if isinstance(kind, str) else kind
    return [{RETURNED: k} | (v if c[RETURNED] == k else {}) for k, c, v in zip(kinds, came, values)]


def gradients(y: torch.Tensor, slope: torch.Tensor, *leaves: torch.Tensor) -> list[torch.Tensor]:
    """The leaves' gradients of the sum of y · slope; zeros where none arrives."""
    if y.requires_grad:
        with span("backward"):
            y.backward(slope.to(y.dtype))
    return [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.clone() for leaf in leaves]


def too_many_bytes(outcome: Outcome, whole: int, others: Sequence[int]) -> Iterator[tuple[str, str]]:
    """The complaint that a rank sends more bytes to others: of whole numbers, or, by rank, of all other numbers."""
    for rank, most in enumerate(others):
        for what, limit, is_whole in ((SIZES_SENT, whole, True), ("the bytes of rows and gradients sent", most, False)):
            sent = _bytes_to_others(outcome, rank, is_whole)
            if sent > limit:
                yield what, f"rank {rank}: expected at most {limit}, got {sent}"
                return


def shown_by(judge: Callable, ids: Mapping[str, str]) -> Callable[[Job, Outcome], tuple[str, ...]]:
    """What an Experiment calls ``shown``: the mistake by what the judge complains of first."""

    def shown(job: Job, outcome: Outcome) -> tuple[str, ...]:
        what, _ = next(judge(job, outcome))
        return (ids[what],) if what in ids else ()

    return shown


def _bytes_to_others(outcome: Outcome, rank: int, is_whole: bool) -> int:
    """What stays on the rank counts for nothing."""
    sent = 0
    for message in outcome.messages(rank):
        if message.kind != "recv" and ("int" in message.dtype) == is_whole:
            members = outcome.members(message)
            parts = message.parts or [1] * len(members)
            kept = message.bytes * parts[members.index(rank)] // max(1, sum(parts))
            sent += message.bytes - kept * (message.kind != "send")
    return sent
