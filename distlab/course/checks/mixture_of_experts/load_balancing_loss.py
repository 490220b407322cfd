"""The check of load_balancing_loss: its value and its gradient."""

from __future__ import annotations

from collections.abc import Callable

import torch

from distlab.course.checks.mixture_of_experts.common import given, keep_inputs, misconceptions, named
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import RankFailed, Trial

# tokens, experts, k, experts that anybody chooses
CASES = ((4, 3, 2, 3), (5, 4, 1, 4), (6, 5, 1, 3), (7, 4, 3, 4))


def weighed(loss_of: Callable, logits: torch.Tensor, experts: torch.Tensor, alpha: float) -> dict:
    """On a rank: the loss and the gradient of the logits."""
    logits, chosen = logits.clone().requires_grad_(), experts.clone()
    before = logits.detach().clone()
    loss = loss_of(logits, chosen, alpha)
    if not isinstance(loss, torch.Tensor) or loss.dim():
        return dict(type=f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else repr(loss))
    if loss.requires_grad:
        loss.backward()
    gradient = torch.zeros_like(before) if logits.grad is None else logits.grad
    kept = torch.equal(logits.detach(), before) and torch.equal(chosen, experts)
    return dict(type="", loss=loss.item(), gradient=gradient, kept=kept)


def check_load_balancing_loss(learners: Callable, trial: Trial) -> str:
    """Tries ``load_balancing_loss`` with one choice, with more, and with experts that nobody chooses."""
    for number, (num_tokens, num_experts, k, chosen) in enumerate(CASES):
        case = f"with {num_tokens} tokens, {num_experts} experts and k = {k}"
        if chosen < num_experts:
            case += f", experts {chosen} to {num_experts - 1} chosen by nobody"
        logits = given(trial.seed + number, num_tokens, num_experts)
        others = given(trial.seed + 50 + number, num_tokens, chosen)
        experts = others.topk(k).indices
        experts[0] = torch.arange(k)
        alpha = 0.01 * (1 + number)
        try:
            (found,) = trial.run(case, weighed, learners, logits, experts, alpha, ranks=1)
        except RankFailed as failed:
            raise named(failed, {"missing": ("must match the size of tensor", "not broadcastable")}) from None
        _compare(case, found, logits, experts, alpha)
    return "value and gradient are right for k = 1, 2 and 3, also with experts that nobody chooses"


def _compare(case: str, found: dict, logits: torch.Tensor, experts: torch.Tensor, alpha: float) -> None:
    if found["type"]:
        raise Wrong(case, f"expected a tensor of shape (), got {found['type']}")
    num_experts, k = logits.shape[1], experts.shape[1]
    logits = logits.clone().requires_grad_()
    mean = logits.softmax(-1).mean(0)
    share = torch.bincount(experts.flatten(), minlength=num_experts).double() / experts.numel()
    first = torch.bincount(experts[:, 0], minlength=num_experts).double() / len(experts)
    loss = alpha * num_experts * (share * mean).sum()
    value = loss.item()
    beliefs = {
        "not-divided": [k * value] if k > 1 else [],
        "no-experts": [value / num_experts],
        "no-alpha": [value / alpha],
        "counts": [value * experts.numel()],
        "sum-of-probs": [value * len(experts)],
        "first-only": [(alpha * num_experts * (first * mean).sum()).item()],
        "probs-only": [(alpha * num_experts * (mean * mean).sum()).item()],
        "shares-only": [(alpha * num_experts * (share * share).sum()).item()],
    }
    compare(f"{case}, the loss", [found["loss"]], [value], beliefs, k=k, experts=num_experts, tokens=len(experts),
            tolerance=1e-7)  # fmt: skip
    (gradient,) = torch.autograd.grad(loss, logits)
    beliefs = {"no-gradient": [torch.zeros_like(gradient)]}
    # float32 shares are fine: bincount / numel() has 7 digits
    compare(f"{case}, the gradient", [found["gradient"]], [gradient], beliefs, tolerance=1e-7)
    keep_inputs(case, [found["kept"]], "what it was given")


LOAD_BALANCING_LOSS = Exercise(
    "load_balancing_loss",
    check_load_balancing_loss,
    misconceptions=misconceptions(
        not_divided="f sums to {k}, not to 1: divide the counts by all T · K choices, not by the tokens. At uniform "
        "routing your loss is {k} · alpha.",
        no_experts="The factor E is missing, so the loss is {experts} times too small. With it the loss is alpha at "
        "uniform routing, for any number of experts.",
        no_alpha="alpha is missing.",
        counts="f are counts here, not shares: divide by all T · K choices.",
        sum_of_probs="P is the sum of the probabilities, {tokens} times too large: it is their mean over the tokens.",
        first_only="f counts the first choices only; all K choices of a token load an expert.",
        probs_only="Both factors are mean probabilities. f is counted: the share of choices that went to an expert.",
        shares_only="Both factors are shares of choices. P is the mean probability: without it there is no gradient.",
        no_gradient="No gradient reaches the logits: P was made outside of the graph.",
        missing="Experts that nobody chooses are missing from f: give bincount a minlength.",
    ),
    hints=(
        "Two rows of E numbers: f by torch.bincount of all choices, divided by how many choices there are; P by "
        "softmax over the experts and the mean over the tokens.",
        "share_E = torch.bincount(experts_TK.flatten(), minlength=E) / experts_TK.numel(); "
        "mean_E = logits_TE.softmax(dim=-1).mean(dim=0).",
    ),
)
