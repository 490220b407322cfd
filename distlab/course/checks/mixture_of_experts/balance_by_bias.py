"""The check of balance_by_bias: biases that choose and do not weigh, and that move against the load."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from distlab.course.checks.mixture_of_experts.common import given, keep_inputs, kind_of, misconceptions
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import Trial

CASES = ((8, 4, 1), (9, 4, 2), (10, 4, 3))


def chosen(balance: Callable, logits: torch.Tensor, bias: torch.Tensor, k: int, gamma: float) -> dict:
    """On a rank: weights, experts, new biases, and the logits' gradient."""
    mine, own = logits.clone().requires_grad_(), bias.clone()
    came = balance(mine, own, k, gamma)
    if not isinstance(came, tuple) or len(came) != 3 or not all(isinstance(part, torch.Tensor) for part in came):
        return dict(type=kind_of(came))
    weights, experts, new = came
    if weights.requires_grad:
        (weights * _slope(weights)).sum().backward()
    gradient = torch.zeros_like(logits) if mine.grad is None else mine.grad
    kept = torch.equal(own, bias) and torch.equal(mine.detach(), logits)
    return dict(type="", weights=weights.detach(), experts=experts, new=new.detach(), gradient=gradient, kept=kept)


def _slope(weights: torch.Tensor) -> torch.Tensor:
    return torch.linspace(1, 3, weights.numel(), dtype=torch.float64).view_as(weights) ** 2


def telling(seed: int, num_tokens: int, bias: torch.Tensor, k: int) -> torch.Tensor:
    """Logits by which mistakes show: where the bias stands, in the mean load and in whose choices are counted."""
    for attempt in itertools.count():
        logits = given(seed + 1000 * attempt, num_tokens, len(bias))
        experts = (logits.sigmoid() + bias).topk(k).indices
        right = directions(experts, len(bias))
        is_floor_seen = not experts.numel() % len(bias) or not torch.equal(right, directions(experts, len(bias), True))
        is_first_seen = k == 1 or not torch.equal(right, directions(experts[:, :1], len(bias)))
        if is_floor_seen and is_first_seen and not torch.equal(experts, (logits + bias).topk(k).indices):
            return logits


def directions(experts: torch.Tensor, num_experts: int, is_floored: bool = False) -> torch.Tensor:
    """Which way each bias goes: 1 for an expert with less than the mean load, which a mistake makes a whole number."""
    load = torch.bincount(experts.flatten(), minlength=num_experts).double()
    return ((load.mean().floor() if is_floored else load.mean()) - load).sign()


def check_balance_by_bias(learners: Callable, trial: Trial) -> str:
    """Tries ``balance_by_bias`` with biases that change the choice."""
    for number, (num_tokens, num_experts, k) in enumerate(CASES):
        case = f"with {num_tokens} tokens, {num_experts} experts and k = {k}"
        bias, gamma = torch.linspace(-0.4, 0.4, num_experts, dtype=torch.float64), 0.01 * (1 + number)
        logits = telling(trial.seed + number, num_tokens, bias, k)
        (found,) = trial.run(case, chosen, learners, logits, bias, k, gamma, ranks=1)
        _compare(case, found, logits, bias, k, gamma)
    return "choice, weights and new biases are right for k = 1, 2 and 3"


def _weights(scores: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    weights = scores.gather(1, experts)
    return weights / weights.sum(-1, keepdim=True) if experts.shape[1] > 1 else weights


def _compare(case: str, found: dict, logits: torch.Tensor, bias: torch.Tensor, k: int, gamma: float) -> None:
    if found["type"]:
        raise Wrong(case, f"expected (weights_TK, experts_TK, new_bias_E), three tensors, got {found['type']}")
    logits = logits.clone().requires_grad_()
    scores = logits.sigmoid()
    experts = (scores + bias).topk(k).indices
    beliefs = {
        "no-bias": [scores.topk(k).indices],
        "inside": [(logits + bias).topk(k).indices],
        "minus": [(scores - bias).topk(k).indices],
        "softmax": [(logits.softmax(-1) + bias).topk(k).indices],
    }
    compare(f"{case}, the experts", [found["experts"]], [experts], beliefs)
    weights = _weights(scores, experts)
    raw = scores.gather(1, experts).detach()
    beliefs = {
        "weighs-bias": [_weights(scores + bias, experts).detach()],
        "not-renormalised": [raw],
        "softmax": [_weights(logits.softmax(-1), experts).detach()],
    }
    compare(f"{case}, the weights", [found["weights"]], [weights.detach()], beliefs)
    load = torch.bincount(experts.flatten(), minlength=len(bias)).double()
    away = directions(experts, len(bias))
    beliefs = {
        "wrong-way": [bias - gamma * away],
        "by-size": [bias + gamma * (load.mean() - load)],
        "unchanged": [bias],
        "steps-only": [gamma * away],
        "floored": [bias + gamma * directions(experts, len(bias), True)],
        "first-only": [bias + gamma * directions(experts[:, :1], len(bias))],
    }
    compare(f"{case}, the new biases", [found["new"]], [bias + gamma * away], beliefs)
    (gradient,) = torch.autograd.grad((weights * _slope(weights)).sum(), logits)
    compare(f"{case}, the gradient of the logits", [found["gradient"]], [gradient])
    keep_inputs(case, [found["kept"]], "what it was given, bias_E too,")


BALANCE_BY_BIAS = Exercise(
    "balance_by_bias",
    check_balance_by_bias,
    misconceptions=misconceptions(
        no_bias="The experts were chosen by their scores alone; the bias is added for the choice.",
        minus="The bias was subtracted; it is added, and an overloaded expert's goes down.",
        softmax="The scores are probabilities by softmax; here each is a sigmoid, by itself.",
        inside="The bias was added to the logits, before the sigmoid. It is added to the score, after it.",
        weighs_bias="The weights hold the bias. It decides who is chosen, and what is chosen is weighed by the score "
        "alone.",
        not_renormalised="With k ≥ 2 the weights are divided by their sum.",
        wrong_way="The biases move the wrong way: an overloaded expert's goes down.",
        by_size="The biases move by the size of the difference; it is gamma up or down, by its sign.",
        unchanged="The biases are as they were.",
        floored="The mean load was cut off to a whole number, so an expert between the two does not move. T · k / E "
        "need not be whole.",
        first_only="The load counts the first choices only; all k choices of a token load an expert.",
        steps_only="These are the steps alone, without the biases that they start from.",
    ),
    hints=(
        "scores = sigmoid of the logits; the experts are the topk of scores + bias, the weights come from "
        "scores.gather(1, experts_TK).",
        "load_E = torch.bincount(experts_TK.flatten(), minlength=E) as floats; new = bias_E + gamma * "
        "(load_E.mean() - load_E).sign().",
    ),
    further=True,
)
