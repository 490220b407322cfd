"""The check of ExpertParallelMoE: outputs and gradients of one process that has all experts."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist

from distlab.course.checks.mixture_of_experts.common import (
    given,
    keep_inputs,
    kind_of,
    misconceptions,
    moe,
    named,
    weigh,
    with_ranks,
)
from distlab.course.compare import compare, difference_by_rank
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import RankFailed, Trial
from distlab.ranks.outcome import Run

WIDTH, ALPHA = 3, 0.5


class Case(NamedTuple):
    """Ranks, experts, choices, capacity factor, and what is special."""

    ranks: int
    experts: int
    k: int
    factor: float | None
    special: str = ""

    def __str__(self) -> str:
        words = f"{with_ranks(self.ranks)}, {self.experts} experts, k = {self.k}"
        words += ", nobody dropped" if self.factor is None else f", capacity factor {self.factor}"
        return f"{words}, {self.special}" if self.special else words

    def tokens(self, rank: int) -> int:
        return 6 + rank

    def capacity(self, rank: int) -> int:
        num = self.tokens(rank)
        return num if self.factor is None else int(self.factor * self.k * num / self.experts)


ALL_TO_ONE = "all tokens to expert 0"
CASES = (
    Case(2, 4, 1, None),
    Case(2, 4, 2, 1.0),
    Case(1, 4, 2, 0.75),
    Case(4, 8, 1, None, ALL_TO_ONE),
    Case(3, 6, 2, 0.6, "most of them dropped"),
    Case(4, 4, 2, 1.25),
)


def gate_of(case: Case, seed: int) -> torch.Tensor:
    """The gate's weight; in the case of all tokens to one, the first number of every token decides."""
    gate = given(seed + 7, case.experts, WIDTH)
    if case.special == ALL_TO_ONE:
        gate[:, 0] = torch.tensor([4.0] + [0.0] * (case.experts - 1))
    return gate


def tokens_of(case: Case, rank: int, seed: int) -> torch.Tensor:
    x = given(seed + rank, case.tokens(rank), WIDTH)
    return torch.cat([x[:, :1].abs() + 3, x[:, 1:] * 0.1], 1) if case.special == ALL_TO_ONE else x


def layered(layer_class: type, case: Case, seed: int) -> dict:
    """On a rank: outputs, balance loss and all gradients of the learner's layer."""
    rank = dist.get_rank()
    layer = layer_class(WIDTH, case.experts, case.k, case.factor, ALPHA, torch.float64)
    with torch.no_grad():
        layer.gate.weight.copy_(gate_of(case, seed))
    x = tokens_of(case, rank, seed).requires_grad_()
    y = layer(x)
    notes = dict(up=layer.experts.up_EDH.detach().clone(), down=layer.experts.down_EHD.detach().clone())
    if not isinstance(y, torch.Tensor) or y.shape != x.shape or not hasattr(layer, "balance_loss"):
        return notes | dict(type="no balance_loss" if isinstance(y, torch.Tensor) else kind_of(y))
    loss = (y * given(seed + 50 + rank, *y.shape)).sum() + layer.balance_loss
    loss.backward()
    leaves = dict(x=x, gate=layer.gate.weight, up=layer.experts.up_EDH)
    gradients = {n: torch.zeros_like(p.detach()) if p.grad is None else p.grad.clone() for n, p in leaves.items()}
    kept = torch.equal(x.detach(), tokens_of(case, rank, seed))
    balance = float(layer.balance_loss)
    return notes | dict(type="", y=y.detach().clone(), balance=balance, gradients=gradients, kept=kept)


def check_expert_parallel_moe(learners: type, trial: Trial) -> str:
    """Tries ``ExpertParallelMoE`` against all experts in one process, assignment by assignment."""
    for case in CASES:
        try:
            run = trial.watch(str(case), layered, learners, case, trial.seed, ranks=case.ranks)
        except RankFailed as failed:
            raise named(failed, _WORDS) from None
        _compare(case, run, trial.seed)
        _check_messages(case, run)
    return (
        "outputs and all gradients are those of one process with all experts; k = 1 and 2, on 1 to 4 ranks, with all "
        "tokens on one expert and with most of them dropped"
    )


_WORDS = {
    "all-counts": ("The size of tensor a", "shape mismatch", "must match", "cannot be broadcast"),
    "skips": ("without joining", "never joined", "returned without", "without receiving", "without sending"),
}


def _compare(case: Case, run: Run, seed: int) -> None:
    ranks, found = range(case.ranks), run.values
    for rank, notes in enumerate(found):
        if notes["type"]:
            raise Wrong(str(case), f"rank {rank}: expected y_TD and .balance_loss, got {notes['type']}")
    up = torch.cat([notes["up"] for notes in found]).requires_grad_()
    down = torch.cat([notes["down"] for notes in found])
    gate = [gate_of(case, seed).requires_grad_() for _ in ranks]
    x = [tokens_of(case, rank, seed).requires_grad_() for rank in ranks]
    results = [moe(x[r], gate[r], up, down, case.k, case.capacity(r), ALPHA) for r in ranks]
    y, balance = [r[0] for r in results], [r[1] for r in results]
    slopes = [given(seed + 50 + r, *x[r].shape) for r in ranks]
    _compare_outputs(case, found, x, y, gate, up, down, [r[2] for r in results])
    _compare_balance(case, [notes["balance"] for notes in found], [float(b.detach()) for b in balance], x, gate[0])
    total = sum((one * slope).sum() for one, slope in zip(y, slopes)) + sum(balance)
    leaves = [*x, *gate, up]
    grads = torch.autograd.grad(total, leaves, retain_graph=True)
    of_balance = torch.autograd.grad(sum(balance), gate)
    per_rank = case.experts // case.ranks
    ups = list(grads[-1].split(per_rank))
    want = [dict(gate=grads[case.ranks + r], up=ups[r]) for r in ranks]
    beliefs = {
        "gate-detached": [dict(gate=of_balance[r], up=ups[r]) for r in ranks],
        "divided-already": [dict(gate=want[r]["gate"], up=ups[r] / case.ranks) for r in ranks]
        if case.ranks > 1
        else [],
        "experts-detached": [dict(gate=want[r]["gate"], up=torch.zeros_like(ups[r])) for r in ranks],
    }
    beliefs = {id: wrong for id, wrong in beliefs.items() if len(wrong) and difference_by_rank(wrong, want)}
    got = [{name: notes["gradients"][name] for name in ("gate", "up")} for notes in found]
    compare(f"{case}, the gradients", got, want, beliefs, tolerance=1e-7, ranks=case.ranks)
    got = [notes["gradients"]["x"] for notes in found]
    compare(f"{case}, the gradient of x_TD", got, list(grads[: case.ranks]), tolerance=1e-7)
    keep_inputs(str(case), [notes["kept"] for notes in found], "x_TD")


def _compare_outputs(case: Case, found: list[dict], x, y, gate, up, down, num_kept) -> None:
    ranks, want = range(case.ranks), [one.detach() for one in y]
    got = [notes["y"] for notes in found]
    if difference_by_rank(got, want) is None:
        return
    with torch.no_grad():
        everybody = [moe(x[r], gate[r], up, down, case.k, len(x[r]) * case.k, ALPHA)[0] for r in ranks]
        shared = sum(case.tokens(r) for r in ranks)
        capacity = shared if case.factor is None else int(case.factor * case.k * shared / case.experts)
        whole = [moe(x[r], gate[r], up, down, case.k, capacity, ALPHA)[0] for r in ranks]
        weights = [weigh((x[r] @ gate[r].T).softmax(-1), case.k)[0] for r in ranks]
        beliefs = {
            "passes-on": [torch.where((num_kept[r] == 0)[:, None], x[r], want[r]).detach() for r in ranks],
            "residual": [(x[r] + want[r]).detach() for r in ranks],
            "no-limit": everybody,
            "shared-capacity": whole,
        }
        if case.k == 1:
            beliefs["unweighted"] = [want[r] / weights[r] for r in ranks]
    beliefs = {id: wrong for id, wrong in beliefs.items() if difference_by_rank(wrong, want)}
    compare(f"{case}, y_TD", got, want, beliefs, ranks=case.ranks)


def _compare_balance(
    case: Case, got: list[float], want: list[float], x: list[torch.Tensor], gate: torch.Tensor
) -> None:
    with torch.no_grad():
        probs = (torch.cat(x) @ gate.T).softmax(-1)
        experts = probs.topk(case.k).indices
        share = torch.bincount(experts.flatten(), minlength=case.experts) / experts.numel()
        everybody = float(ALPHA * case.experts * (share * probs.mean(0)).sum())
    beliefs = {"balance-of-all": [everybody] * case.ranks}
    compare(f"{case}, balance_loss", got, want, beliefs, tolerance=1e-6)


def _check_messages(case: Case, run: Run) -> None:
    for rank in range(case.ranks):
        kinds = [m.kind for m in run.recording.messages(rank) if "float" in m.dtype]
        if kinds != ["all_to_all"] * 4:
            detail = f"rank {rank}: expected rows and gradients in 4 all_to_all, got {', '.join(kinds) or 'none'}"
            raise Wrong(str(case), detail)


EXPERT_PARALLEL_MOE = Exercise(
    "ExpertParallelMoE",
    check_expert_parallel_moe,
    misconceptions=misconceptions(
        passes_on="Where a token was dropped, y_TD holds what came in. It is 0 there: the block's residual adds x once "
        "already, and this would make it twice.",
        residual="x_TD was added to every row. The block's residual does that, outside of this layer.",
        unweighted="The rows were added without their weights.",
        no_limit="Nobody was dropped: each expert takes at most capacity_of(…) assignments from each rank.",
        shared_capacity="The capacity was made of the tokens of all ranks. Every rank counts its own queues, by its "
        "own T.",
        balance_of_all="This is the balance loss over the tokens of all ranks. That is different, not wrong, and needs "
        "messages; here each rank's is that of its own tokens, as in most frameworks.",
        gate_detached="The gate's gradient is that of the balance loss alone: the weights that combine uses are "
        "outside of the graph.",
        divided_already="The experts' gradients are divided by {ranks} here already. That is average_moe_gradients' "
        "work, after the backward pass.",
        experts_detached="No gradient reaches the experts.",
        all_counts="The experts here were given the wrong counts: self.experts holds this rank's experts, and "
        "dispatch_to_ranks says how many rows each of them has (counts_L).",
        skips="A rank did not take part. Also a rank without rows joins each all-to-all.",
    ),
    hints=(
        "Begin with the lines of MoE.route. Between the plan and combine stand dispatch_to_ranks, self.experts and "
        "return_to_tokens instead of self.experts alone.",
        "x_BD, counts_L, way = dispatch_to_ranks(x_TD[tokens_A], self.counts_E); then "
        "y_AD = return_to_tokens(self.experts(x_BD, counts_L), way).",
    ),
    uses=("top_k_gate", "load_balancing_loss", "dispatch", "combine", "dispatch_to_ranks", "return_to_tokens"),
)
