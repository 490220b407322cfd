"""The check of combine: weighted sums by token, nothing for the dropped, and gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch

from distlab.course.checks.mixture_of_experts.common import given, keep_inputs, misconceptions
from distlab.course.compare import compare, difference_by_rank
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import Trial

CASES = ((4, [0, 2, 0, 1]), (5, [4, 1, 4, 3, 1, 1]), (3, []), (6, [5, 3, 1]))
WIDTH = 3


def combined(combine: Callable, y: torch.Tensor, tokens: torch.Tensor, weights: torch.Tensor, x: torch.Tensor) -> dict:
    """On a rank: the result, and the gradients of rows and weights."""
    mine = [y.clone(), tokens.clone(), weights.clone(), x.clone()]
    leaves = mine[0].requires_grad_(), mine[2].requires_grad_()
    out = combine(*mine)
    if not isinstance(out, torch.Tensor) or out.shape != x.shape:
        what = f"a tensor of shape {tuple(out.shape)}" if isinstance(out, torch.Tensor) else repr(type(out).__name__)
        return dict(type=what)
    if out.requires_grad:
        (out * _slope(out)).sum().backward()
    gradients = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    kept = all(torch.equal(now.detach(), then) for now, then in zip(mine, (y, tokens, weights, x)))
    return dict(type="", out=out.detach(), gradients=gradients, kept=kept)


def check_combine(learners: Callable, trial: Trial) -> str:
    """Tries ``combine`` with tokens that come once, twice and not at all."""
    for number, (num_tokens, tokens) in enumerate(CASES):
        case = f"with {num_tokens} tokens and assignments of tokens {tokens}"
        y, x = given(trial.seed + number, len(tokens), WIDTH), given(trial.seed + 20 + number, num_tokens, WIDTH)
        weights = given(trial.seed + 40 + number, len(tokens)).sigmoid()
        args = y, torch.tensor(tokens, dtype=torch.int64), weights, x
        (found,) = trial.run(case, combined, learners, *args, ranks=1)
        _compare(case, found, *args)
    return "tokens with one, two, three experts and with none are right, and gradients reach rows and weights"


def _slope(out: torch.Tensor) -> torch.Tensor:
    return torch.arange(1, 1 + out.numel(), dtype=torch.float64).view_as(out)


def _compare(case: str, found: dict, y, tokens, weights, x) -> None:
    if found["type"]:
        raise Wrong(case, f"expected a tensor of shape {tuple(x.shape)}, got {found['type']}")
    want, overwritten, unweighted = (torch.zeros_like(x) for _ in range(3))
    counts = torch.bincount(tokens, minlength=len(x))
    for row, token, weight in zip(y, tokens.tolist(), weights):
        want[token] += weight * row
        unweighted[token] += row
        overwritten[token] = weight * row
    of_weights = torch.zeros(len(x), dtype=weights.dtype).index_add(0, tokens, weights)
    dropped = (counts == 0)[:, None]
    beliefs = {
        "passes-on": [torch.where(dropped, x, want)],
        "residual": [x + want],
        "unweighted": [unweighted],
        "overwrites": [overwritten],
        "renormalised": [want / of_weights.where(of_weights > 0, 1)[:, None]],
        "mean": [want / counts.clamp(min=1)[:, None]],
    }
    token = int(dropped.nonzero()[0, 0]) if dropped.any() else 0
    beliefs = {id: wrong for id, wrong in beliefs.items() if difference_by_rank(wrong, [want])}
    compare(f"{case}, the result", [found["out"]], [want], beliefs, token=token)
    slope = _slope(x)[tokens]
    right = [weights[:, None] * slope, (slope * y).sum(1)]
    beliefs = {
        "weights-detached": [[right[0], torch.zeros_like(right[1])]],
        "rows-detached": [[torch.zeros_like(right[0]), right[1]]],
        "no-gradient": [[torch.zeros_like(one) for one in right]],
    }
    compare(f"{case}, the gradients of (y_AD, weights_A)", [found["gradients"]], [right], beliefs)
    keep_inputs(case, [found["kept"]], "what it was given")


COMBINE = Exercise(
    "combine",
    check_combine,
    misconceptions=misconceptions(
        passes_on="Token {token} was dropped, and its row is what came in. The layer returns 0 for it: the block's "
        "residual adds x once already, and this would make it twice.",
        residual="x was added to every row. The block's residual does that, outside of this layer.",
        unweighted="The rows were added without their weights: the gate would have no say, and no gradient.",
        overwrites="Of a token's experts only the last one counts: rows were assigned, not added. index_add adds.",
        renormalised="The weights of each token were divided by their sum once more. They were made before anybody was "
        "dropped and stay as they are: what is lost is lost.",
        mean="Each sum was divided by the number of experts. The weights do the weighing.",
        weights_detached="No gradient reaches the weights, so the gate would not learn.",
        rows_detached="No gradient reaches the experts' rows, so they would not learn.",
        no_gradient="No gradient reaches rows or weights: the result was made outside of the graph.",
    ),
    hints=(
        "Start from zeros of x_TD's shape and add each weighted row at its token's place.",
        "weights_A[:, None] * y_AD are the weighted rows; torch.zeros_like(x_TD).index_add(0, tokens_A, rows) adds "
        "them up.",
    ),
)
