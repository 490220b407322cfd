"""The check of top_k_gate: the best k, their weights, and the gradient that reaches the gate."""

from __future__ import annotations

from collections.abc import Callable

import torch

from distlab.course.checks.mixture_of_experts.common import given, keep_inputs, kind_of, misconceptions, weigh
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import Trial

CASES = ((3, 4, 1), (3, 4, 2), (6, 5, 3), (7, 2, 1))


def gated(top_k_gate: Callable, logits: torch.Tensor, k: int) -> dict:
    """On a rank: weights, experts, and the gradient of the logits for a loss that looks at the weights."""
    logits = logits.clone().requires_grad_()
    before = logits.detach().clone()
    came = top_k_gate(logits, k)
    if not isinstance(came, tuple) or len(came) != 2 or not all(isinstance(part, torch.Tensor) for part in came):
        return dict(type=kind_of(came))
    weights, experts = came
    if weights.requires_grad and weights.shape == (len(logits), k):
        (weights * _slope(len(logits), k)).sum().backward()
    gradient = torch.zeros_like(before) if logits.grad is None else logits.grad
    kept = torch.equal(logits.detach(), before)
    return dict(type="", weights=weights.detach(), experts=experts, gradient=gradient, kept=kept)


def check_top_k_gate(learners: Callable, trial: Trial) -> str:
    """Tries ``top_k_gate`` with one choice, then with more."""
    for number, (num_tokens, num_experts, k) in enumerate(CASES):
        case = f"with {num_tokens} tokens, {num_experts} experts and k = {k}"
        logits = given(trial.seed + number, num_tokens, num_experts)
        (found,) = trial.run(case, gated, learners, logits, k, ranks=1)
        _compare(case, found, logits, k)
    return "weights and experts are right for k = 1, 2 and 3, best first, and the gate has its gradient"


def _slope(num_tokens: int, k: int) -> torch.Tensor:
    return torch.linspace(1, 2, num_tokens * k, dtype=torch.float64).view(num_tokens, k) ** 2


def _compare(case: str, found: dict, logits: torch.Tensor, k: int) -> None:
    if found["type"]:
        raise Wrong(case, f"expected (weights_TK, experts_TK), two tensors, got {found['type']}")
    logits = logits.clone().requires_grad_()
    probs = logits.softmax(-1)
    weights, experts = weigh(probs, k)
    worst, along = probs.topk(k, largest=False).indices, logits.softmax(0).topk(k)
    beliefs = {"worst": [worst], "backwards": [experts.flip(1)], "over-tokens": [along.indices]}
    compare(f"{case}, the experts", [found["experts"]], [experts], beliefs)
    raw = probs.topk(k).values.detach()
    over_tokens = along.values / along.values.sum(-1, keepdim=True) if k > 1 else along.values
    beliefs = {
        "always-1": [torch.ones_like(raw)] if k == 1 else [],
        "not-renormalised": [raw],
        "logits": [logits.topk(k).values.detach()],
        "over-tokens": [over_tokens.detach()],
    }
    compare(f"{case}, the weights", [found["weights"]], [weights.detach()], beliefs, sums=f"{raw[0].sum():.3f}")
    (gradient,) = torch.autograd.grad((weights * _slope(*weights.shape)).sum(), logits)
    beliefs = {"no-gradient": [torch.zeros_like(gradient)]}
    compare(f"{case}, the gradient of the logits", [found["gradient"]], [gradient], beliefs)
    keep_inputs(case, [found["kept"]], "logits_TE")


TOP_K_GATE = Exercise(
    "top_k_gate",
    check_top_k_gate,
    misconceptions=misconceptions(
        always_1="With k = 1 every weight is 1, whatever the gate says: a constant has no gradient, and the gate would "
        "never learn. Renormalise for k ≥ 2 only.",
        not_renormalised="These are the probabilities as they are; the first token's sum to {sums}. With k ≥ 2 divide "
        "them by their sum.",
        no_gradient="No gradient reaches the logits: the weights were made outside of the graph.",
        logits="These weights are the gate's logits. Make probabilities of them first, by softmax over the experts.",
        over_tokens="The softmax runs over the tokens; each token's probabilities over the experts should sum to 1.",
        worst="These are the experts with the lowest probability.",
        backwards="These are the right experts, in the wrong order: the best comes first.",
    ),
    hints=(
        "Softmax over the experts (the last axis), then topk: it returns values and places, best first.",
        "weights_TK, experts_TK = probs_TE.topk(k). If k > 1, divide weights_TK by its sum over the last axis, with "
        "keepdim=True.",
    ),
)
