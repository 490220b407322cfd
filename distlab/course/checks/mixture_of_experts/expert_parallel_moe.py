"""The check of ExpertParallelMoE: outputs and gradients of one process that has all experts."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.distributed as dist

from distlab.course.checks.mixture_of_experts.common import (
    RETURNED,
    are_apart,
    first_that,
    gradients,
    if_returned,
    kind_of,
    moe,
    too_many_bytes,
)
from distlab.course.checks.mixture_of_experts.way import WIDTH, Counts, sizes, there_and_back
from distlab.course.exercise import Exercise
from distlab.course.kit.case import BOTH, Case, Job
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import misconceptions
from distlab.course.kit.outcome import Outcome

ALPHA = 0.5
KEPT = ["balance_loss", "experts_TK", "counts_E"]  # what the module holds after a forward pass
KEEPS, WITHOUT = "what the module keeps", "parameters without a .grad"
REPEATED = "self.experts called more than once"
ALL_TO_ONE = "all tokens to expert 0"
# Every rank's. A share of 2, 4, 8, … choices is exact in float32, as which the balance loss may have it in float64.
EVEN, ODD = (8, 4, 16, 2), (7, 5, 9, 3)


def case(ranks: int, experts: int, k: int, factor: float | None, special: str = "", tokens=EVEN) -> Case:
    """Experts, choices, capacity factor, and what is special."""
    words = f", {experts} experts, k = {k}"
    words += (", nobody dropped" if factor is None else f", capacity factor {factor}") + f", {special}" * bool(special)
    options = dict(experts=experts, k=k, factor=factor, special=special, tokens=tokens)
    return Case(ranks, words, dtypes=BOTH if tokens == EVEN else (torch.float32,), **options)


def gate_of(job: Job) -> torch.Tensor:
    """The gate's weight; in the case of all tokens to one, the first number of every token decides, not by much.

    Where a probability is nearly 1, float32 has few digits of what is left.
    """
    gate = job.random(job["experts"], WIDTH, of=7)
    if job["special"] == ALL_TO_ONE:
        gate[:, 0] = torch.tensor([2.0] + [0.0] * (job["experts"] - 1))
    return gate


def tokens_of(job: Job, rank: int) -> torch.Tensor:
    """A rank's tokens, which choose without near ties."""

    def draw(number: int) -> torch.Tensor:
        x = job.random(job["tokens"][rank], WIDTH, of=10 * number + rank)
        return torch.cat([x[:, :1].abs() + 1, x[:, 1:] * 0.1], 1) if job["special"] == ALL_TO_ONE else x

    return first_that(lambda x: are_apart((x @ gate_of(job).T).softmax(-1), job["k"]), draw)


def stacked(job: Job, numbers: range) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights of some experts, up_EDH and down_EHD."""
    up = torch.stack([job.random(WIDTH, 4 * WIDTH, of=1000 + e) for e in numbers])
    return up, torch.stack([job.random(4 * WIDTH, WIDTH, of=2000 + e) for e in numbers]) / 4


def slope_of(job: Job, rank: int) -> torch.Tensor:
    """The gradient of a rank's outputs."""
    return job.random(job["tokens"][rank], WIDTH, of=500 + rank)


def forward(layer, x_TD):
    """What :func:`call` compares before and after: the layer's weights and the tokens."""
    return layer.route(x_TD)


def drive(lab, job: Job) -> dict:
    """On a rank: outputs, what the module keeps, and all gradients."""
    rank, per_rank = dist.get_rank(), job["experts"] // job.ranks
    layer = lab.ExpertParallelMoE(WIDTH, job["experts"], job["k"], job["factor"], ALPHA, job.dtype)
    leaves = {"gate": layer.gate.weight, "up": layer.experts.up_EDH, "down": layer.experts.down_EHD}
    numbers = gate_of(job), *stacked(job, range(rank * per_rank, (rank + 1) * per_rank))
    for leaf, weights in zip(leaves.values(), numbers):
        leaf.data.copy_(weights)
    x, calls = tokens_of(job, rank).requires_grad_(), []
    layer.experts.register_forward_hook(lambda *_: calls.append(1))
    y = call(forward, layer, x)
    kept = [name for name in KEPT if isinstance(getattr(layer, name, None), torch.Tensor)]
    found = {RETURNED: kind_of(y), KEEPS: kept}
    if kind_of(y) != kind_of(x) or kept != KEPT:
        return found
    loss = (y * slope_of(job, rank)).sum() + layer.balance_loss
    *of_weights, of_x = gradients(loss, torch.ones(()), *leaves.values(), x)
    found |= {"y_TD": y.detach(), "balance_loss": layer.balance_loss.detach(), "experts_TK": layer.experts_TK}
    found |= {"counts_E": layer.counts_E.tolist(), "the gradients": dict(zip(leaves, of_weights))}
    found |= {"the gradient of x_TD": of_x, REPEATED: len(calls) > 1}
    return found | {WITHOUT: [name for name, p in layer.named_parameters() if p.grad is None]}


@lru_cache(maxsize=32)
def in_one_process(job: Job) -> tuple[list[dict], Counts]:
    """By rank, what comes of its tokens with the experts of all ranks in one place, and how many each expert takes.

    In float64: with float32 PyTorch uses threads, which wait for each other where others compute too.
    """
    ranks, num = range(job.ranks), job["experts"]
    up, down = (weights.double().requires_grad_() for weights in stacked(job, range(num)))
    gate = [gate_of(job).double().requires_grad_() for _ in ranks]
    x = [tokens_of(job, rank).double().requires_grad_() for rank in ranks]
    places = [len(x[r]) if job["factor"] is None else int(job["factor"] * job["k"] * len(x[r]) / num) for r in ranks]
    layers = [moe(x[r], gate[r], up, down, job["k"], places[r], ALPHA) for r in ranks]
    total = sum((one.y * slope_of(job, rank)).sum() + one.balance for rank, one in enumerate(layers))
    of_leaves = torch.autograd.grad(total, [*x, *gate, up, down])
    *of_x_and_gate, ups, downs = (gradient.to(job.dtype) for gradient in of_leaves)
    counts, want = [one.kept.counts.tolist() for one in layers], []
    for one, of_x, *of_weights in zip(
        layers, of_x_and_gate, of_x_and_gate[job.ranks :], ups.chunk(job.ranks), downs.chunk(job.ranks)
    ):
        y, balance = (result.detach().to(job.dtype) for result in (one.y, one.balance))
        found = {"y_TD": y, "balance_loss": balance, "experts_TK": one.experts}
        found |= {"counts_E": one.kept.counts.tolist(), "the gradients": dict(zip(("gate", "up", "down"), of_weights))}
        want.append(found | {"the gradient of x_TD": of_x, WITHOUT: [], REPEATED: False})
    return want, counts


def expect(job: Job, came: list[dict]) -> list[dict]:
    """What one process gives, where the module keeps all that it is to keep."""
    want, _ = in_one_process(job)
    by_rank = [{KEEPS: KEPT} | (w if got[KEEPS] == KEPT else {}) for got, w in zip(came, want)]
    return if_returned([kind_of(of_rank["y_TD"]) for of_rank in want], came, by_rank)


def judge(job: Job, outcome: Outcome):
    """The rows of kept tokens to their experts and back, their gradients, and a count for each expert elsewhere."""
    _, counts = in_one_process(job)
    most = [2 * num for num in there_and_back(job, sizes(counts))]
    yield from too_many_bytes(outcome, 8 * (job["experts"] - job["experts"] // job.ranks), most)


def fields(job: Job, outcome: Outcome | None) -> dict:
    """The first thing that is not kept, and the first rank where a parameter has no gradient."""
    values = outcome.values if outcome else []
    absent = (name for got in values for name in KEPT if name not in got[KEEPS])
    return {"name": next(absent, ""), "rank": next((rank for rank, got in enumerate(values) if got.get(WITHOUT)), 0)}


EXPERT_PARALLEL_MOE = Exercise(
    "ExpertParallelMoE",
    Experiment(
        (
            case(2, 4, 1, None),
            case(2, 4, 2, 1.0),
            case(2, 4, 1, 0.6, "rank 1 keeps none of its tokens"),
            case(1, 4, 2, 0.75),
            case(4, 8, 1, None, ALL_TO_ONE),
            case(3, 3, 2, 1.0),
            case(3, 6, 2, 0.6, "most of them dropped", ODD),
            case(4, 4, 2, 1.25),
        ),
        drive,
        expect,
        judge=judge,
        fields=fields,
        holds="outputs and all gradients are those of one process with all experts; k = 1 and 2, on 1 to 4 ranks, with "
        "all tokens on one expert and with most of them dropped",
    ),
    misconceptions=misconceptions(
        passes_on="Where a token was dropped, y_TD holds what came in. It is 0 there: the block's residual adds x once "
        "already, and this would make it twice.",
        residual="x_TD was added to every row. The block's residual does that, outside of this layer.",
        unweighted="The rows were added without their weights.",
        first_weight="Every row was weighed by its token's first weight. choices_A says which of the token's weights "
        "each row has: weights_TK[tokens_A, choices_A].",
        one_choice="Each token went to its first expert only; it has self.k of them.",
        no_limit="Nobody was dropped: each expert takes at most capacity_of(…) assignments from each rank.",
        shared_capacity="The capacity was made of the tokens of all ranks. Every rank counts its own queues, by its "
        "own T.",
        balance_of_all="This is the balance loss over the tokens of all ranks, which is another number and takes "
        "messages. Here each rank's is made of its own logits_TE and experts_TK.",
        balance_of_kept="The balance loss was made of the assignments that were kept. It counts all choices: what is "
        "dropped is just what it should make rarer.",
        renormalised="Where a choice was dropped, the weights of the others were divided by their sum once more. They "
        "were made before, and stay as they are.",
        input_detached="The gradient of x_TD lacks the gate's part: the gate was given x_TD outside of the graph.",
        not_kept="self.{name} is missing after a forward pass. As in MoE, the layer keeps balance_loss, experts_TK and "
        "counts_E for others to read.",
        local_counts="self.counts_E says how many rows have arrived for each expert here, which is counts_L. As in MoE "
        "it is the plan's: how many of this rank's choices each of all E experts keeps.",
        counts_all="self.counts_E counts before dropping; it says how many of this rank's choices each expert keeps.",
        gate_detached="The gate's gradient is that of the balance loss alone: the weights that combine uses are "
        "outside of the graph.",
        divided_already="The experts' gradients are divided by {ranks} here already. That is average_moe_gradients' "
        "work, after the backward pass.",
        experts_detached="No gradient reaches the experts.",
        all_counts="The experts here were given the wrong counts: self.experts holds this rank's experts, and "
        "dispatch_to_ranks says how many rows each of them has (counts_L).",
        skips="A rank did not take part. Also a rank without rows joins each all-to-all, forward and backward.",
        skips_experts="Rank {rank} got no token and skips self.experts, so its experts have no gradient. In training "
        "average_moe_gradients would fail on it, and the others would wait for it. Call self.experts always: with no "
        "rows its gradients are zeros.",
        one_by_one="self.experts was called more than once. It takes the rows of all experts here in one batch.",
    ),
    hints=(
        "Begin with the lines of MoE.route. Between the plan and combine stand dispatch_to_ranks, self.experts and "
        "return_to_tokens instead of self.experts alone.",
        "x_BD, counts_L, way = dispatch_to_ranks(x_TD[tokens_A], self.counts_E); then "
        "y_AD = return_to_tokens(self.experts(x_BD, counts_L), way).",
    ),
    uses=("top_k_gate", "load_balancing_loss", "dispatch", "combine", "dispatch_to_ranks", "return_to_tokens"),
)
