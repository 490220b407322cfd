"""A layer of experts over ranks, as the check of ExpertParallelMoE tries it, and the same in one process."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist

from distlab.course.checks.mixture_of_experts.common import Layered, given, kind_of, moe, with_ranks

WIDTH, ALPHA = 3, 0.5
KEPT = "balance_loss", "experts_TK", "counts_E"  # what the module holds after a forward pass


class Case(NamedTuple):
    """Ranks, experts, choices, capacity factor, and what is special."""

    ranks: int
    experts: int
    k: int
    factor: float | None
    special: str = ""

    def __str__(self) -> str:
        words = f"{with_ranks(self.ranks)}, {self.experts} experts, k = {self.k}"
        words += ", nobody dropped" if self.factor is None else f", capacity factor {self.factor}"
        return f"{words}, {self.special}" if self.special else words

    def tokens(self, rank: int) -> int:
        return 6 + rank

    def capacity(self, rank: int) -> int:
        num = self.tokens(rank)
        return num if self.factor is None else int(self.factor * self.k * num / self.experts)


ALL_TO_ONE = "all tokens to expert 0"
CASES = (
    Case(2, 4, 1, None),
    Case(2, 4, 2, 1.0),
    Case(2, 4, 1, 0.6, "rank 0 keeps none of its tokens"),
    Case(1, 4, 2, 0.75),
    Case(4, 8, 1, None, ALL_TO_ONE),
    Case(3, 6, 2, 0.6, "most of them dropped"),
    Case(4, 4, 2, 1.25),
)


def gate_of(case: Case, seed: int) -> torch.Tensor:
    """The gate's weight; in the case of all tokens to one, the first number of every token decides."""
    gate = given(seed + 7, case.experts, WIDTH)
    if case.special == ALL_TO_ONE:
        gate[:, 0] = torch.tensor([4.0] + [0.0] * (case.experts - 1))
    return gate


def tokens_of(case: Case, rank: int, seed: int) -> torch.Tensor:
    x = given(seed + rank, case.tokens(rank), WIDTH)
    return torch.cat([x[:, :1].abs() + 3, x[:, 1:] * 0.1], 1) if case.special == ALL_TO_ONE else x


def layered(layer_class: type, case: Case, seed: int) -> dict:
    """On a rank: outputs, balance loss and all gradients of the learner's layer."""
    rank = dist.get_rank()
    layer = layer_class(WIDTH, case.experts, case.k, case.factor, ALPHA, torch.float64)
    with torch.no_grad():
        layer.gate.weight.copy_(gate_of(case, seed))
    x = tokens_of(case, rank, seed).requires_grad_()
    y = layer(x)
    notes = dict(up=layer.experts.up_EDH.detach().clone(), down=layer.experts.down_EHD.detach().clone())
    if not isinstance(y, torch.Tensor) or y.shape != x.shape:
        return notes | dict(type=kind_of(y))
    missing = [name for name in KEPT if not isinstance(getattr(layer, name, None), torch.Tensor)]
    if missing:
        return notes | dict(type="", missing=missing)
    loss = (y * given(seed + 50 + rank, *y.shape)).sum() + layer.balance_loss
    loss.backward()
    leaves = dict(x=x, gate=layer.gate.weight, up=layer.experts.up_EDH, down=layer.experts.down_EHD)
    without = [name for name, leaf in leaves.items() if leaf.grad is None]
    gradients = {n: torch.zeros_like(p.detach()) if p.grad is None else p.grad.clone() for n, p in leaves.items()}
    kept = torch.equal(x.detach(), tokens_of(case, rank, seed))
    routes = [layer.experts_TK.clone(), layer.counts_E.tolist()]
    found = dict(type="", missing=[], y=y.detach().clone(), balance=layer.balance_loss.item(), routes=routes)
    return notes | found | dict(gradients=gradients, without=without, kept=kept)


class Expected(NamedTuple):
    """The leaves of all ranks, and what one process makes of them, rank by rank."""

    x: list[torch.Tensor]
    gate: list[torch.Tensor]
    up: torch.Tensor
    down: torch.Tensor
    layers: list[Layered]

    def rows(self, ranks: int) -> list[list[int]]:
        """By rank, how many rows come for each of its experts."""
        total = sum(one.kept.counts for one in self.layers)
        return [part.tolist() for part in total.chunk(ranks)]

    def again(self, case: Case, k: int | None = None, capacity: list[int] | None = None, **changes) -> list:
        """By rank, what comes out if something is done differently."""
        capacity = capacity or [case.capacity(rank) for rank in range(case.ranks)]
        with torch.no_grad():
            return [
                moe(x, gate, self.up, self.down, k or case.k, places, ALPHA, **changes).y
                for x, gate, places in zip(self.x, self.gate, capacity)
            ]


def in_one_process(case: Case, found: list[dict], seed: int) -> Expected:
    """The experts of all ranks in one place, each rank's tokens by themselves."""
    ranks = range(case.ranks)
    up = torch.cat([notes["up"] for notes in found]).requires_grad_()
    down = torch.cat([notes["down"] for notes in found]).requires_grad_()
    gate = [gate_of(case, seed).requires_grad_() for _ in ranks]
    x = [tokens_of(case, rank, seed).requires_grad_() for rank in ranks]
    layers = [moe(x[r], gate[r], up, down, case.k, case.capacity(r), ALPHA) for r in ranks]
    return Expected(x, gate, up, down, layers)
