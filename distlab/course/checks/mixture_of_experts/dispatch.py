"""The check of dispatch: who gets into which queue, in which order."""

from __future__ import annotations

from collections.abc import Callable

import torch

from distlab.course.checks.mixture_of_experts.common import (
    Plan,
    counting_lines,
    given,
    keep_inputs,
    kind_of,
    misconceptions,
    plan,
)
from distlab.course.compare import compare, difference
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import Trial
from distlab.events import Compute
from distlab.ranks.outcome import Run

EXAMPLE = torch.tensor([[2, 0], [1, 2], [2, 1], [2, 1]])
CASES = ((8, 3, 1, 2), (8, 4, 2, 9), (9, 4, 2, 3), (7, 5, 3, 2), (6, 3, 2, 0), (5, 6, 1, 1))
MANY = 400


def planned(dispatch: Callable, cases: list[tuple[torch.Tensor, int, int]]) -> list[dict]:
    """On a rank: the plan of each case, and the lines that it took."""
    found = []
    for experts, num_experts, capacity in cases:
        mine = experts.clone()
        came, lines = counting_lines(dispatch, mine, num_experts, capacity)
        if isinstance(came, tuple) and len(came) == 3 and all(isinstance(part, torch.Tensor) for part in came):
            found.append(dict(type="", plan=list(came), lines=lines, kept=torch.equal(mine, experts)))
        else:
            found.append(dict(type=kind_of(came)))
    return found


def check_dispatch(learners: Callable, trial: Trial) -> str:
    """Tries ``dispatch`` on the lab's example, then on random choices, at last on many tokens."""
    _try(learners, trial, "the example of four tokens", [(EXAMPLE, 3, 2)])
    cases = []
    for number, (num_tokens, num_experts, k, capacity) in enumerate(CASES):
        experts = given(trial.seed + number, num_tokens, num_experts).topk(k).indices
        cases.append((experts, num_experts, capacity))
    _try(learners, trial, "random choices", cases)
    many = given(trial.seed, MANY, 4).topk(2).indices
    run = _try(learners, trial, f"{MANY} tokens", [(many, 4, 150)])
    operators = sum(event.operators for event in run.recording.events(Compute, 0))
    lines = run.values[0][0]["lines"]
    if max(operators, lines) >= MANY:
        detail = f"expected a few operators and lines of Python, got {operators:,} and {lines:,}"
        raise Wrong(f"with {MANY} tokens", detail, ("loop",), steps=max(operators, lines))
    return "tokens, choices and counts are right for k = 1, 2 and 3, with places for all, for some and for none"


def _try(learners: Callable, trial: Trial, title: str, cases: list[tuple[torch.Tensor, int, int]]) -> Run:
    run = trial.watch(title, planned, learners, cases, ranks=1, record=True)
    for (experts, num_experts, capacity), found in zip(cases, run.values[0]):
        num_tokens, k = experts.shape
        case = f"with {num_tokens} tokens, {num_experts} experts, k = {k} and capacity {capacity}"
        _compare(title if len(cases) == 1 else case, found, experts, num_experts, capacity)
    return run


def _compare(case: str, found: dict, experts: torch.Tensor, num_experts: int, capacity: int) -> None:
    if found["type"]:
        raise Wrong(case, f"expected (tokens_A, choices_A, counts_E), three tensors, got {found['type']}")
    want, got = plan(experts, num_experts, capacity), Plan(*found["plan"])
    beliefs = _beliefs(experts, num_experts, capacity, want)
    believed = tuple(id for id, wrong in beliefs.items() if difference(wrong, want) and not difference(got, wrong))
    if not believed and difference(got, want) and not difference(_sorted(got), _sorted(want)):
        believed = ("queue-order",)
    if believed:
        raise Wrong(case, _first(got, want), believed[:1])
    for name in ("counts", "tokens", "choices"):
        compare(f"{case}, {name}", [getattr(got, name).tolist()], [getattr(want, name).tolist()])
    keep_inputs(case, [found["kept"]], "experts_TK")


def _sorted(plan: Plan) -> list:
    """How many assignments there are, and those of each expert, sorted."""
    pairs, ends = list(zip(plan.tokens.tolist(), plan.choices.tolist())), plan.counts.cumsum(0).tolist()
    return [len(pairs), *(sorted(pairs[start:end]) for start, end in zip([0, *ends], ends))]


def _first(got: Plan, want: Plan) -> str:
    """The first part of a plan that is not as it should be."""
    for name in ("counts", "tokens", "choices"):
        mine, right = getattr(got, name).tolist(), getattr(want, name).tolist()
        if mine != right:
            return f"{name}: expected {right}, got {mine}"
    return ""


def _beliefs(experts: torch.Tensor, num_experts: int, capacity: int, want: Plan) -> dict[str, Plan]:
    """The plans that misconceptions would make."""
    num_tokens, k = experts.shape
    unlimited = plan(experts, num_experts, experts.numel())
    whole = [t for t in range(num_tokens) if int((want.tokens == t).sum()) == k]
    is_whole = torch.isin(want.tokens, torch.tensor(whole, dtype=torch.int64))
    of = experts[want.tokens, want.choices]
    counts = torch.bincount(of[is_whole], minlength=num_experts)
    in_order = want.choices * num_tokens + want.tokens
    in_queue = in_order.argsort()
    return {
        "unlimited": unlimited,
        "one-more": plan(experts, num_experts, capacity + 1),
        "one-less": plan(experts, num_experts, max(capacity - 1, 0)),
        "by-token": plan(experts, num_experts, capacity, by_token=True),
        "keeps-last": plan(experts, num_experts, capacity, keep_last=True),
        "whole-token": Plan(want.tokens[is_whole], want.choices[is_whole], counts),
        "counts-all": want._replace(counts=unlimited.counts),
        "not-by-expert": Plan(want.tokens[in_queue], want.choices[in_queue], want.counts),
        "decoded": Plan(in_order // k, in_order % k, want.counts),
        "per-choice": plan(experts, num_experts, capacity, per_choice=True),
        "first-only": plan(experts[:, :1], num_experts, capacity),
    }


DISPATCH = Exercise(
    "dispatch",
    check_dispatch,
    misconceptions=misconceptions(
        unlimited="Nobody was dropped: an expert takes at most `capacity` assignments.",
        one_more="Every full queue holds one too many: places counted from 0 are kept if smaller than the capacity.",
        one_less="Every full queue holds one too few: places counted from 1 are kept up to the capacity itself.",
        by_token="A token's second choice came before the next token's first. All first choices come before all "
        "second choices: transpose before you flatten.",
        keeps_last="The first in a queue were dropped for the last. Who comes when the queue is full is dropped.",
        whole_token="A token that lost one choice has lost the others too. Each assignment is kept or dropped by "
        "itself.",
        counts_all="The counts are those before dropping; they say how many each expert keeps.",
        not_by_expert="The assignments are in the order of arrival; all of expert 0's come first, then all of expert "
        "1's.",
        per_choice="Each expert takes up to `capacity` first choices, and as many second ones again. One queue takes "
        "all choices, at most `capacity` in total.",
        queue_order="Each expert has the right assignments, in another order than its queue's: first choices before "
        "second ones, and among each by token. argsort keeps equals as they stood only with stable=True.",
        decoded="Tokens and choices are taken apart by q // k and q % k, as if a token's choices stood together. All "
        "first choices stand first: number q is token q % T, choice q // T.",
        first_only="Only first choices were dispatched; all K choices of a token count.",
        loop="{steps:,} steps for 400 tokens: this loops over tokens. one_hot and cumsum count all places at once.",
    ),
    hints=(
        "Flatten the choices such that all first ones come first: experts_TK.T.flatten(). one_hot and cumsum give each "
        "its place in its queue. Keep those within the capacity, and order them by expert with a stable argsort.",
        "In the flattened order number q is token q % T, choice q // T. To sort the dropped ones out, give them expert "
        "number E before the argsort, and cut the order off after the kept ones.",
    ),
)
