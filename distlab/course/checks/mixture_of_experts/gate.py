"""The checks of the gate: top_k_gate and its balance, by a loss and by biases."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch

from distlab.course.checks.mixture_of_experts.common import (
    RETURNED,
    are_apart,
    first_that,
    gradients,
    if_returned,
    kind_of,
    weigh,
)
from distlab.course.exercise import Exercise
from distlab.course.kit.case import BOTH, Case, Job
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import misconceptions

ALPHA, GAMMA = 0.3, 2**-5  # which float32 has exactly: loads may be of that dtype
SCALAR = kind_of(torch.ones(()))
EXPERTS, WEIGHTS, BIASES, GRADIENT = "the experts", "the weights", "the new biases", "the gradient of the logits"


def case(tokens: int, experts: int, k: int, words: str = "", dtypes=BOTH, **options) -> Case:
    """So many tokens and experts, k of which each token chooses."""
    words = f", {tokens} tokens, {experts} experts and k = {k}{words}"
    return Case(1, words, dtypes=dtypes, tokens=tokens, experts=experts, k=k, **options)


def drawn(job: Job, number: int = 0) -> torch.Tensor:
    """Logits of the case's size."""
    return job.random(job["tokens"], job["experts"], of=number)


def found(job: Job, logits: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor) -> dict:
    """The choice, and the gradient of the logits for a loss that looks at the weights."""
    (gradient,) = gradients(weights, job.random(*weights.shape, of=-1), logits)
    return {EXPERTS: experts, WEIGHTS: weights.detach(), GRADIENT: gradient}


def gated_logits(job: Job) -> torch.Tensor:
    """Logits without near ties."""
    apart = first_that(lambda logits: are_apart(logits.softmax(-1), job["k"]), lambda number: drawn(job, number))
    return apart.requires_grad_()


def drive_gate(lab, job: Job) -> dict:
    """On a rank: what comes of such logits."""
    logits = gated_logits(job)
    came = call(lab.top_k_gate, logits, job["k"])
    kind = kind_of(came)
    return {RETURNED: kind} | (found(job, logits, *came) if kind == "2 tensors" else {})


def expect_gate(job: Job, came: list[dict]) -> list[dict]:
    """The best k by probability."""
    logits = gated_logits(job)
    probs = logits.softmax(-1)
    experts = probs.topk(job["k"]).indices
    return if_returned("2 tensors", came, [found(job, logits, weigh(probs, experts), experts)])


TOP_K_GATE = Exercise(
    "top_k_gate",
    Experiment(
        [case(3, 4, 1), case(3, 4, 2), case(6, 5, 3), case(7, 2, 1)],
        drive_gate,
        expect_gate,
        fields=lambda job, _: {"sums": f"{gated_logits(job).softmax(-1).topk(job['k']).values[0].sum():.3f}"},
        holds="weights and experts are right for k = 1, 2 and 3, best first, and the gate has its gradient",
    ),
    misconceptions=misconceptions(
        always_1="With k = 1 every weight is 1, whatever the gate says: a constant has no gradient, and the gate would "
        "never learn. Renormalise for k ≥ 2 only.",
        not_renormalised="These are the probabilities as they are; the first token's sum to {sums}. With k ≥ 2 divide "
        "them by their sum.",
        no_gradient="No gradient reaches the logits: the weights were made outside of the graph.",
        softmax_again="The k probabilities went through softmax once more: divide them by their sum.",
        sum_detached="The sum by which the weights are divided is outside of the graph. It depends on the logits too: "
        "without its part their gradient is another.",
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


def choices_of(job: Job) -> torch.Tensor:
    """The experts of each token: some are chosen more often, and first choices are shared out unlike the others."""
    token, choice = torch.arange(job["tokens"])[:, None], torch.arange(job["k"])
    return (token**2 + choice) % job["chosen"]


def drive_loss(lab, job: Job) -> dict:
    """On a rank: the loss of random logits, and their gradient."""
    logits = drawn(job).requires_grad_()
    loss = call(lab.load_balancing_loss, logits, choices_of(job), ALPHA)
    if kind_of(loss) != SCALAR:
        return {RETURNED: kind_of(loss)}
    return {RETURNED: SCALAR, "the loss": loss.detach(), GRADIENT: gradients(loss, torch.ones(()), logits)[0]}


def expect_loss(job: Job, came: list[dict]) -> list[dict]:
    """Shares and mean probabilities, counted and added up."""
    logits, choices = drawn(job).requires_grad_(), choices_of(job)
    share = torch.bincount(choices.flatten(), minlength=job["experts"]).to(job.dtype) / choices.numel()
    loss = ALPHA * job["experts"] * (share * logits.softmax(-1).mean(0)).sum()
    (gradient,) = torch.autograd.grad(loss, logits)
    return if_returned(SCALAR, came, [{"the loss": loss.detach(), GRADIENT: gradient}])


LOAD_BALANCING_LOSS = Exercise(
    "load_balancing_loss",
    Experiment(
        (  # shares may be float32 whatever the logits are: of 2, 4, 8, … choices that has all of them exactly
            case(4, 3, 2, chosen=3),
            case(8, 5, 1, chosen=5),
            case(16, 5, 1, ", experts 3 to 4 chosen by nobody", chosen=3),
            case(7, 4, 3, chosen=4, dtypes=(torch.float32,)),
        ),
        drive_loss,
        expect_loss,
        holds="value and gradient are right for k = 1, 2 and 3, also with experts that nobody chooses",
    ),
    misconceptions=misconceptions(
        not_divided="f sums to {k}, not to 1: divide the counts by all T · K choices, not by the tokens. At uniform "
        "routing your loss is {k} · alpha.",
        no_experts="The factor E is missing, so the loss is {experts} times too small. With it the loss is alpha at "
        "uniform routing, for any number of experts.",
        mean_first="P is the softmax of the mean logits here; it is the mean of the tokens' probabilities.",
        chosen_only="E is the number of all experts; those that no token chose were not counted.",
        recomputed="f was counted from the largest logits. It counts the choices that were made, experts_TK, which "
        "need not be those.",
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


@lru_cache(maxsize=8)
def telling(job: Job) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and biases that tell mistakes apart, in every draw."""
    bias = torch.linspace(-0.4, 0.4, job["experts"], dtype=job.dtype)
    return first_that(lambda logits: all(tells(logits, bias, job["k"])), lambda number: drawn(job, number)), bias


def tells(logits: torch.Tensor, bias: torch.Tensor, k: int) -> Iterator[bool]:
    """Whether it shows where the bias stands, whose choices count, and that the mean load may be nobody's or one's."""
    scores, size = logits.sigmoid(), len(bias)
    experts = (scores + bias).topk(k).indices
    right = directions(experts, size)
    if experts.numel() % size:
        yield not torch.equal(right, directions(experts, size, is_floored=True))
    else:
        yield sorted(set(right.tolist())) == [-1, 0, 1]
    yield k == 1 or not torch.equal(right, directions(experts[:, :1], size))
    yield are_apart(scores + bias, k)
    for other in (scores, logits + bias, scores - bias, logits.softmax(-1) + bias):
        yield not torch.equal(experts, other.topk(k).indices)


def directions(experts: torch.Tensor, num_experts: int, is_floored: bool = False) -> torch.Tensor:
    """Which way each bias goes: 1 for an expert with less than the mean load, which a mistake makes a whole number."""
    load = torch.bincount(experts.flatten(), minlength=num_experts).double()
    return ((load.mean().floor() if is_floored else load.mean()) - load).sign()


def drive_bias(lab, job: Job) -> dict:
    """On a rank: what comes of such logits."""
    logits, bias = (numbers.clone() for numbers in telling(job))
    came = call(lab.balance_by_bias, logits.requires_grad_(), bias, job["k"], GAMMA)
    if kind_of(came) != "3 tensors":
        return {RETURNED: kind_of(came)}
    return {RETURNED: "3 tensors", BIASES: came[2].detach()} | found(job, logits, came[0], came[1])


def expect_bias(job: Job, came: list[dict]) -> list[dict]:
    """Chosen with the bias, weighed without it."""
    logits, bias = (numbers.clone() for numbers in telling(job))
    scores = logits.requires_grad_().sigmoid()
    experts = (scores + bias).topk(job["k"]).indices
    chosen = found(job, logits, weigh(scores, experts), experts)
    want = {name: chosen[name] for name in (EXPERTS, WEIGHTS)}
    want[BIASES] = bias + GAMMA * directions(experts, len(bias)).to(job.dtype)
    return if_returned("3 tensors", came, [want | chosen])


BALANCE_BY_BIAS = Exercise(
    "balance_by_bias",
    Experiment(
        [case(8, 4, 1), case(9, 4, 2), case(10, 5, 3)],  # the mean loads: 2, 4.5, and 6
        drive_bias,
        expect_bias,
        holds="choice, weights and new biases are right for k = 1, 2 and 3, also for an expert with just the mean load",
    ),
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
        at_the_mean="An expert with exactly the mean load has moved. Its bias stays: the sign of 0 is 0.",
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
