"""The check of average_moe_gradients: the right scale over the right ranks, for two kinds of parameters."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from distlab.course.checks.mixture_of_experts.common import given, misconceptions, with_ranks
from distlab.course.compare import compare, difference_by_rank
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import Trial
from distlab.ranks.outcome import Run

WIDTH, NUM_EXPERTS = 2, 12
Gradients = dict[str, torch.Tensor]


def build(experts_class: type, rank: int, ranks: int) -> nn.Module:
    """A model of two layers of experts, their gates, and a head."""
    per_rank = NUM_EXPERTS // ranks
    mine = range(rank * per_rank, (rank + 1) * per_rank)
    layers = {name: experts_class(mine, WIDTH, torch.float64) for name in ("first", "second")}
    gates = {f"{name}_gate": nn.Linear(WIDTH, NUM_EXPERTS, bias=False).double() for name in layers}
    return nn.ModuleDict({**gates, **layers, "head": nn.Linear(WIDTH, 3).double()})


def arriving(model: nn.Module, rank: int, seed: int) -> Gradients:
    """The gradients as backward() would leave them on a rank."""
    return {n: given(seed + 100 * rank + i, *p.shape) for i, (n, p) in enumerate(model.named_parameters())}


def averaged(average: Callable, experts_class: type, seed: int) -> dict:
    """On a rank: all gradients afterwards, and whether the weights are as they were."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = build(experts_class, rank, ranks)
    gradients = arriving(model, rank, seed)
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    average(model)
    kept = all(torch.equal(p.detach(), before[name]) for name, p in model.named_parameters())
    return dict(gradients={n: p.grad for n, p in model.named_parameters()}, kept=kept)


def check_average_moe_gradients(learners: Callable, trial: Trial) -> str:
    """Tries ``average_moe_gradients`` on 1 to 4 ranks."""
    experts_class = learners.__globals__["Experts"]
    for ranks in (2, 3, 1, 4):
        run = trial.watch(with_ranks(ranks), averaged, learners, experts_class, trial.seed, ranks=ranks)
        _compare(with_ranks(ranks), run, experts_class, trial.seed)
        _check_messages(with_ranks(ranks), run, experts_class)
    return "the gradients are those of the mean of all ranks' losses, and no expert's has been sent; on 1 to 4 ranks"


def _is_expert(name: str) -> bool:
    return name.startswith(("first.", "second."))


_WITHOUT_MESSAGES = ("dense-alone", "only-divided", "nothing")


def _compare(case: str, run: Run, experts_class: type, seed: int) -> None:
    found, ranks = run.values, len(run.values)
    given_to = [arriving(build(experts_class, r, ranks), r, seed) for r in range(ranks)]
    sums = {name: sum(gradients[name] for gradients in given_to) for name in given_to[0]}

    def after(dense: Callable, expert: Callable) -> list[Gradients]:
        return [{n: (expert if _is_expert(n) else dense)(n, g) for n, g in own.items()} for own in given_to]

    def mean(name, own):
        return sums[name] / ranks

    def scaled(name, own):
        return own / ranks

    def as_it_was(name, own):
        return own

    def total(name, own):
        return sums[name]

    beliefs = {
        "experts-too-large": after(mean, as_it_was),
        "experts-mixed": after(mean, mean),
        "experts-added": after(mean, lambda name, own: sums[name]),
        "dense-added": after(total, scaled),
        "dense-alone": after(as_it_was, scaled),
        "only-divided": after(scaled, scaled),
        "nothing": given_to,
        "added": after(total, as_it_was),
        "experts-twice": after(mean, lambda name, own: own / ranks**2),
    }
    want = after(mean, scaled)
    got, kinds = [one["gradients"] for one in found], {m.kind for m in run.recording.messages()}
    detail = difference_by_rank(got, want)
    if detail and "reduce" in kinds and not difference_by_rank(got[:1], want[:1]):
        raise Wrong(f"{case}, the gradients", detail, ("on-rank-0",))
    if detail and "all_reduce" in kinds and any(not difference_by_rank(got, beliefs[id]) for id in _WITHOUT_MESSAGES):
        raise Wrong(f"{case}, the gradients", detail, ("temporary",))
    compare(f"{case}, the gradients", got, want, beliefs, ranks=ranks)
    for rank, one in enumerate(found):
        if not one["kept"]:
            raise Wrong(case, f"rank {rank}: expected the weights to stay as they were; they have changed")


def _check_messages(case: str, run: Run, experts_class: type) -> None:
    ranks = len(run.values)
    dense = sum(p.numel() for n, p in build(experts_class, 0, ranks).named_parameters() if not _is_expert(n))
    for rank in range(ranks):
        sent = sum(m.elements for m in run.recording.messages(rank))
        if sent > dense:
            detail = f"rank {rank}: expected at most {dense} numbers in all-reduces, got {sent}"
            raise Wrong(case, detail, ("sends-experts",))


AVERAGE_MOE_GRADIENTS = Exercise(
    "average_moe_gradients",
    check_average_moe_gradients,
    misconceptions=misconceptions(
        experts_too_large="The experts' gradients are {ranks} times too large, all others are right. They arrive "
        "summed over the ranks that sent tokens, and the loss is the mean over the ranks: divide them by W.",
        experts_mixed="The experts' gradients are the mean over all ranks, and on every rank these are *different* "
        "experts. An expert's gradient is complete where the expert is: divide it by W, send nothing.",
        experts_added="The experts' gradients are added up over all ranks, and on every rank these are different "
        "experts. An expert's gradient is complete where the expert is.",
        experts_twice="The experts' gradients are divided by W twice.",
        dense_added="The gradients of what every rank holds are summed, not averaged: {ranks} times too large.",
        dense_alone="The gradients of what every rank holds are still this rank's own: average them over all ranks, or "
        "the replicas part.",
        temporary="Gradients were all-reduced, and the sums are lost: all_reduce writes into the tensor that it is "
        "given, and an expression like parameter.grad / W makes a new one. Give it parameter.grad itself.",
        on_rank_0="Only rank 0 has the sums: reduce leaves the others without. all_reduce gives them to every rank.",
        added="Nothing was divided by W: all gradients are {ranks} times too large.",
        only_divided="Everything was divided by W and nothing sent: what every rank holds needs the others' parts.",
        nothing="The gradients are as they were.",
        sends_experts="The result is right, but more was sent than the gradients of what every rank holds.",
    ),
    hints=(
        "Two kinds of parameters. Those of Experts: divide by W. All others: all-reduce, and divide by W.",
        "of_experts = {p for module in model.modules() if isinstance(module, Experts) for p in module.parameters()}; "
        "then one loop over model.parameters().",
    ),
)
