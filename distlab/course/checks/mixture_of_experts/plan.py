"""The checks of dispatch and combine: who gets into which queue, and whose results are added up."""

from __future__ import annotations

import sys

import torch

from distlab.course.checks.mixture_of_experts.common import (
    RETURNED,
    gradients,
    if_returned,
    kind_of,
    plan,
    shown_by,
)
from distlab.course.exercise import Exercise
from distlab.course.kit.case import Case, Job
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import misconceptions
from distlab.course.kit.outcome import Outcome
from distlab.events import Span
from distlab.ranks.watching.spans import span

EXAMPLE = [[2, 0], [1, 2], [2, 1], [2, 1]]
SIZES = (8, 3, 1, 2), (8, 4, 2, 9), (9, 4, 2, 3), (7, 5, 3, 2), (6, 3, 2, 0), (5, 6, 1, 1)
MANY = 401
NAMES = "counts_E", "tokens_A", "choices_A"
STEPS = " steps"


def case(tokens: int, experts: int, k: int, capacity: int, words: str = "") -> Case:
    """So many tokens choose k of the experts, at random or, with ``words``, as in the example."""
    words = words or f", {tokens} tokens, {experts} experts, k = {k} and capacity {capacity}"
    return Case(1, words, dtypes=(torch.float64,), tokens=tokens, experts=experts, k=k, capacity=capacity)


def choices_of(job: Job) -> torch.Tensor:
    """The experts of each token, best first."""
    if job.case.words.endswith("example of four tokens"):
        return torch.tensor(EXAMPLE)
    scores = job.random(job["tokens"], job["experts"])
    if job["k"] == 1:  # nobody chooses the last
        scores[:, -1] = -9.0
    return scores.topk(job["k"]).indices


def drive(lab, job: Job) -> dict:
    """On a rank: the plan; a span's name says how many lines of the notebook's Python it took."""
    lines, before = [], sys.gettrace()

    def note(frame, event, _):
        if frame.f_globals is not lab.dispatch.__globals__:
            return None
        lines.append(event)
        return note

    sys.settrace(note)
    try:
        came = call(lab.dispatch, choices_of(job), job["experts"], job["capacity"])
    finally:
        sys.settrace(before)
    with span(f"{len(lines)}{STEPS}"):
        kind = kind_of(came)
    values = [part.tolist() for part in came] if kind == "3 tensors" else []
    return {RETURNED: kind} | dict(zip(NAMES, [*values[2:], *values[:2]]))


def expect(job: Job, came: list[dict]) -> list[dict]:
    """The plan, made choice by choice and token by token."""
    tokens, choices, counts = (part.tolist() for part in plan(choices_of(job), job["experts"], job["capacity"]))
    return if_returned("3 tensors", came, [dict(zip(NAMES, (counts, tokens, choices)))])


def steps(outcome: Outcome | None) -> int:
    """The lines of Python that the plan took."""
    names = (e.name for e in (outcome.events[0] if outcome else ()) if type(e) is Span and e.name.endswith(STEPS))
    return int(next(names, "0").removesuffix(STEPS))


def judge(job: Job, outcome: Outcome):
    """Many tokens take hardly more steps than few."""
    if job["tokens"] == MANY and steps(outcome) >= MANY:
        yield "the steps", f"expected a few lines of Python, got {steps(outcome):,}"


def words(what: str, got: list, want: list) -> str | None:
    """Short plans as a whole."""
    return f"expected {want[0]}, got {got[0]}" if len(str(want[0])) < 80 and what in NAMES else None


DISPATCH = Exercise(
    "dispatch",
    Experiment(
        [
            case(4, 3, 2, 2, words=" and the example of four tokens"),
            *(case(*sizes) for sizes in SIZES),
            case(MANY, 4, 2, 150),
        ],
        drive,
        expect,
        judge=judge,
        fields=lambda job, outcome: {"steps": steps(outcome)},
        shown=shown_by(judge, {"the steps": "loop"}),
        words=words,
        holds="tokens, choices and counts are right for k = 1, 2 and 3, with places for all, for some and for none",
    ),
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
        missing="An expert that no token chose is missing from counts_E, or from what it is made of: one_hot and "
        "bincount only know the experts that occur, unless they are told num_experts.",
        not_by_expert="The assignments are in the order of arrival; all of expert 0's come first, then all of expert "
        "1's.",
        per_choice="Each expert takes up to `capacity` first choices, and as many second ones again. One queue takes "
        "all choices, at most `capacity` in total.",
        queue_order="Each expert has the right assignments, in another order than its queue's: first choices before "
        "second ones, and among each by token. argsort keeps equals as they stood only with stable=True.",
        decoded="Tokens and choices are taken apart by q // k and q % k, as if a token's choices stood together. All "
        "first choices stand first: number q is token q % T, choice q // T.",
        first_only="Only first choices were dispatched; all K choices of a token count.",
        loop="{steps:,} steps for {tokens} tokens: this loops over tokens. one_hot and cumsum count all places at "
        "once.",
    ),
    hints=(
        "Flatten the choices such that all first ones come first: experts_TK.T.flatten(). one_hot and cumsum give each "
        "its place in its queue. Keep those within the capacity, and order them by expert with a stable argsort.",
        "In the flattened order number q is token q % T, choice q // T. To sort the dropped ones out, give them expert "
        "number E before the argsort, and cut the order off after the kept ones.",
    ),
)


# How many tokens, and whose each assignment is: tokens that come once, twice, three times, and not at all.
ASSIGNED = (4, [0, 2, 0, 1]), (5, [4, 1, 4, 3, 1, 1]), (3, []), (6, [5, 3, 1])


def rows_of(job: Job) -> tuple[torch.Tensor, ...]:
    """y_AD, tokens_A, weights_A and x_TD."""
    tokens = torch.tensor(job["assigned"], dtype=torch.int64)
    y, weights = job.random(len(tokens), 3), job.random(len(tokens), of=1).sigmoid()
    return y.requires_grad_(), tokens, weights.requires_grad_(), job.random(job["tokens"], 3, of=2)


def combined(job: Job, out: torch.Tensor, y: torch.Tensor, weights: torch.Tensor) -> dict:
    """The result, and the gradients of rows and weights."""
    arrived = gradients(out, job.random(*out.shape, of=3), y, weights)
    return {"the result": out.detach(), "the gradients of (y_AD, weights_A)": arrived}


def drive_combine(lab, job: Job) -> dict:
    """On a rank: what is made of random rows."""
    args = rows_of(job)
    out = call(lab.combine, *args)
    kind = kind_of(out)
    return {RETURNED: kind} | (combined(job, out, args[0], args[2]) if kind == kind_of(args[3]) else {})


def expect_combine(job: Job, came: list[dict]) -> list[dict]:
    """Row after row added to its token's."""
    y, tokens, weights, x = rows_of(job)
    rows = [torch.zeros(3, dtype=job.dtype) for _ in x]
    for row, token, weight in zip(y, tokens.tolist(), weights):
        rows[token] = rows[token] + weight * row
    return if_returned(kind_of(x), came, [combined(job, torch.stack(rows), y, weights)])


COMBINE = Exercise(
    "combine",
    Experiment(
        [Case(1, f", {t} tokens and assignments of tokens {which}", tokens=t, assigned=which) for t, which in ASSIGNED],
        drive_combine,
        expect_combine,
        fields=lambda job, _: {"token": min(set(range(job["tokens"])) - set(job["assigned"]))},
        holds="tokens with one, two, three experts and with none are right, and gradients reach rows and weights",
    ),
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
