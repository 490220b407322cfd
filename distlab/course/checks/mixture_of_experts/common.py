"""What the checks of lab 09 share: a plain mixture of experts to compare with, and what each rank sends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F

from distlab.course.exercise import Wrong
from distlab.course.kit.case import listed, with_ranks
from distlab.course.kit.fixtures import misconceptions
from distlab.course.trial import RankFailed

__all__ = [
    "Plan",
    "counting_lines",
    "given",
    "keep_inputs",
    "kind_of",
    "listed",
    "misconceptions",
    "moe",
    "named",
    "plan",
    "weigh",
    "with_ranks",
]


class Plan(NamedTuple):
    """Kept assignments by expert: tokens, which of their choices, and how many each expert keeps."""

    tokens: torch.Tensor
    choices: torch.Tensor
    counts: torch.Tensor


def given(seed: int, *shape: int) -> torch.Tensor:
    """Float64 numbers that follow from the seed alone."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weigh(probs: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k best of each token, best first, and their weights: raw for k = 1, else divided by their sum."""
    weights, experts = probs.topk(k)
    return weights / weights.sum(-1, keepdim=True) if k > 1 else weights, experts


def plan(
    experts: torch.Tensor,
    num_experts: int,
    capacity: int,
    by_token: bool = False,
    keep_last: bool = False,
    per_choice: bool = False,
) -> Plan:
    """Token by token, who gets into which queue.

    ``by_token`` takes all choices of a token before the next token's; ``keep_last`` drops whoever came first;
    ``per_choice`` gives first, second, … choices the whole capacity each.
    """
    num_tokens, k = experts.shape
    order = [(t, c) for c in range(k) for t in range(num_tokens)]
    queues: list[list[tuple[int, int]]] = [[] for _ in range(num_experts)]
    for token, choice in sorted(order) if by_token else order:
        queues[int(experts[token, choice])].append((token, choice))
    kept = [queue[-capacity:] if keep_last and capacity else queue[:capacity] for queue in queues]
    if per_choice:
        kept = [[pair for c in range(k) for pair in [p for p in queue if p[1] == c][:capacity]] for queue in queues]
    pairs = torch.tensor([pair for queue in kept for pair in queue], dtype=torch.int64).reshape(-1, 2)
    return Plan(pairs[:, 0], pairs[:, 1], torch.tensor([len(queue) for queue in kept]))


class Layered(NamedTuple):
    """What a layer of experts makes of one rank's tokens."""

    y: torch.Tensor
    balance: torch.Tensor
    experts: torch.Tensor
    kept: Plan


def moe(
    x: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    k: int,
    capacity: int,
    alpha: float,
    reweigh: Callable = lambda weights: weights,
) -> Layered:
    """One rank's tokens through all experts, assignment by assignment; ``reweigh`` changes the weights of choices."""
    logits = x @ gate.T
    probs = logits.softmax(-1)
    weights, experts = weigh(probs, k)
    share = torch.bincount(experts.flatten(), minlength=len(gate)) / experts.numel()
    kept, rows = plan(experts, len(gate), capacity), [torch.zeros_like(one) for one in x]
    weights = reweigh(weights)
    for token, choice in zip(kept.tokens.tolist(), kept.choices.tolist()):
        e = experts[token, choice]
        rows[token] = rows[token] + weights[token, choice] * (F.gelu(x[token] @ up[e]) @ down[e])
    return Layered(torch.stack(rows), alpha * len(gate) * (share * probs.mean(0)).sum(), experts, kept)


def counting_lines(function: Callable, *args):
    """What a function returns, and how many lines of Python ran in it and in its neighbours of the notebook."""
    lines, before = 0, sys.gettrace()

    def note(frame, event, _):
        nonlocal lines
        if frame.f_globals is not function.__globals__:
            return None
        lines += 1
        return note

    sys.settrace(note)
    try:
        return function(*args), lines
    finally:
        sys.settrace(before)


def kind_of(value) -> str:
    """What came, in words: "a tuple of 2", "a Tensor"."""
    name = type(value).__name__
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"a {name} of {len(value)}" if isinstance(value, tuple | list) else repr(value)


def keep_inputs(case: str, kept: list[bool], what: str) -> None:
    """Raises Wrong if a rank's input has changed."""
    for rank, is_kept in enumerate(kept):
        if not is_kept:
            where = f"rank {rank}: " if len(kept) > 1 else ""
            raise Wrong(case, f"{where}expected {what} to stay as it was; its numbers have changed")


def named(failed: RankFailed, words: Mapping[str, tuple[str, ...]], **fields) -> Wrong:
    """The failure, named as the first misconception one of whose words stands in what the ranks said."""
    failures = failed.error.failures.values()
    said = "\n".join([failed.error.verdict, *(failure.message or "" for failure in failures)])
    for id, known in words.items():
        if any(word in said for word in known):
            return failed.because(id, **fields)
    return failed
