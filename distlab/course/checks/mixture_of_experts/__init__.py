"""Lab 09: a gate, experts with a capacity, and the all-to-alls that spread them over ranks."""

from __future__ import annotations

import math

from distlab.course.checks.mixture_of_experts.all_to_all import ALL_TO_ALL, ALL_TO_ALL_AUTOGRAD
from distlab.course.checks.mixture_of_experts.average_moe_gradients import AVERAGE_MOE_GRADIENTS
from distlab.course.checks.mixture_of_experts.expert_parallel_moe import EXPERT_PARALLEL_MOE
from distlab.course.checks.mixture_of_experts.gate import BALANCE_BY_BIAS, LOAD_BALANCING_LOSS, TOP_K_GATE
from distlab.course.checks.mixture_of_experts.plan import COMBINE, DISPATCH
from distlab.course.checks.mixture_of_experts.to_ranks import DISPATCH_TO_RANKS, RETURN_TO_TOKENS
from distlab.course.exercise import Prediction

LAB = "09_mixture_of_experts"
EXERCISES = (
    TOP_K_GATE,
    LOAD_BALANCING_LOSS,
    DISPATCH,
    COMBINE,
    ALL_TO_ALL,
    ALL_TO_ALL_AUTOGRAD,
    DISPATCH_TO_RANKS,
    RETURN_TO_TOKENS,
    EXPERT_PARALLEL_MOE,
    AVERAGE_MOE_GRADIENTS,
    BALANCE_BY_BIAS,
)

_ALPHA, _RANKS = 0.01, 4
_FORWARD = len(("dispatch", "return"))


def expected_dropped(num_tokens: int, num_experts: int, capacity: int) -> float:
    """The expected share of tokens beyond their expert's capacity, if each draws its expert at random (top-1)."""
    beyond = sum(
        (n - capacity) * math.comb(num_tokens, n) / num_experts**n * (1 - 1 / num_experts) ** (num_tokens - n)
        for n in range(capacity + 1, min(num_tokens, 3 * num_tokens // num_experts) + 1)
    )
    return num_experts * beyond / num_tokens


PREDICTIONS = {
    "09.balance": Prediction(
        _ALPHA,
        "alpha · E · Σ f P with every f = 1/E is alpha · Σ P, and the probabilities sum to 1.",
    ),
    "09.dropped": Prediction(
        round(100 * expected_dropped(1024, 8, 128), 1),
        "How many tokens draw an expert has mean 128 and standard deviation √(1024 · 1/8 · 7/8) = 10.6. What is above "
        "128 is dropped, on average 0.4 standard deviations: 4.2 of 128. Places that stay empty elsewhere help nobody.",
    ),
    "09.calls": Prediction(
        2 * _FORWARD,
        "Dispatch and return forward; backward the gradients take both ways again.",
    ),
    "09.scale": Prediction(
        _RANKS,
        "The gradients of all 4 ranks' losses arrive at the expert added up, and the batch's loss is their mean.",
    ),
}
