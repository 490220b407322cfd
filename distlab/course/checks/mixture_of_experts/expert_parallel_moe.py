"""The check of ExpertParallelMoE: outputs and gradients of one process that has all experts."""

from __future__ import annotations

import torch

from distlab.course.checks.mixture_of_experts.common import given, keep_inputs, misconceptions, named
from distlab.course.checks.mixture_of_experts.parallel_layer import (
    ALPHA,
    CASES,
    KEPT,
    Case,
    Expected,
    in_one_process,
    layered,
)
from distlab.course.compare import compare, difference_by_rank
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import RankFailed, Trial
from distlab.events import Span
from distlab.ranks.outcome import Run


def check_expert_parallel_moe(learners: type, trial: Trial) -> str:
    """Tries ``ExpertParallelMoE`` against all experts in one process, assignment by assignment."""
    for case in CASES:
        try:
            run = trial.watch(str(case), layered, learners, case, trial.seed, ranks=case.ranks)
        except RankFailed as failed:
            raise named(failed, _WORDS) from None
        _compare(case, run, trial.seed)
        _check_calls(case, run)
    return (
        "outputs and all gradients are those of one process with all experts; k = 1 and 2, on 1 to 4 ranks, with all "
        "tokens on one expert and with most of them dropped"
    )


_WORDS = {
    "all-counts": ("The size of tensor a", "shape mismatch", "must match", "cannot be broadcast"),
    "skips": ("without joining", "never joined", "returned without", "without receiving", "without sending"),
}


def _compare(case: Case, run: Run, seed: int) -> None:
    found = run.values
    for rank, notes in enumerate(found):
        if notes["type"]:
            raise Wrong(str(case), f"rank {rank}: expected y_TD, of x_TD's shape, got {notes['type']}")
        if notes["missing"]:
            name = notes["missing"][0]
            detail = f"rank {rank}: expected tensors as {', '.join(f'self.{one}' for one in KEPT)}, self.{name} is none"
            raise Wrong(str(case), detail, ("not-kept",), name=name)
    expected = in_one_process(case, found, seed)
    _compare_outputs(case, found, expected)
    _compare_balance(case, found, expected)
    _compare_routes(case, found, expected)
    _compare_gradients(case, found, expected, seed)
    keep_inputs(str(case), [notes["kept"] for notes in found], "x_TD")


def _compare_outputs(case: Case, found: list[dict], expected: Expected) -> None:
    got, want = [notes["y"] for notes in found], [one.y.detach() for one in expected.layers]
    detail = difference_by_rank(got, want)
    if detail is None:
        return
    x = [one.detach() for one in expected.x]
    num_kept = [torch.bincount(one.kept.tokens, minlength=len(y)) for one, y in zip(expected.layers, want)]
    shared = sum(len(one) for one in x)
    of_all = shared if case.factor is None else int(case.factor * case.k * shared / case.experts)
    variants = {
        "passes-on": [[torch.where((n == 0)[:, None], a, b) for n, a, b in zip(num_kept, x, want)]],
        "residual": [[a + b for a, b in zip(x, want)]],
        "no-limit": [expected.again(case, capacity=[len(one) * case.k for one in x])],
        "shared-capacity": [expected.again(case, capacity=[of_all] * case.ranks)],
        "unweighted": [expected.again(case, reweigh=torch.ones_like)],
        "first-weight": [expected.again(case, reweigh=lambda weights: weights[:, :1].expand_as(weights))],
        "one-choice": [expected.again(case, k=1), expected.again(case, reweigh=_first_only)],
    }
    believed = tuple(id for id, ways in variants.items() if any(not difference_by_rank(got, way) for way in ways))
    raise Wrong(f"{case}, y_TD", detail, believed)


def _first_only(weights: torch.Tensor) -> torch.Tensor:
    return weights * torch.eye(weights.shape[1], dtype=weights.dtype)[0]


def _compare_balance(case: Case, found: list[dict], expected: Expected) -> None:
    got, want = [notes["balance"] for notes in found], [float(one.balance.detach()) for one in expected.layers]
    with torch.no_grad():
        probs = (torch.cat(expected.x) @ expected.gate[0].T).softmax(-1)
        experts = probs.topk(case.k).indices
        share = torch.bincount(experts.flatten(), minlength=case.experts) / experts.numel()
        everybody = float(ALPHA * case.experts * (share * probs.mean(0)).sum())
    beliefs = {"balance-of-all": [everybody] * case.ranks}
    compare(f"{case}, balance_loss", got, want, beliefs, tolerance=1e-6)


def _compare_routes(case: Case, found: list[dict], expected: Expected) -> None:
    got, layers = [notes["routes"] for notes in found], expected.layers
    compare(f"{case}, experts_TK", [one[0] for one in got], [one.experts for one in layers])
    beliefs = {
        "local-counts": expected.rows(case.ranks),
        "counts-all": [torch.bincount(one.experts.flatten(), minlength=case.experts).tolist() for one in layers],
    }
    compare(f"{case}, counts_E", [one[1] for one in got], [one.kept.counts.tolist() for one in layers], beliefs)


def _compare_gradients(case: Case, found: list[dict], expected: Expected, seed: int) -> None:
    ranks, layers, gate = range(case.ranks), expected.layers, expected.gate
    balance = sum(one.balance for one in layers)
    slopes = [given(seed + 50 + r, *expected.x[r].shape) for r in ranks]
    total = sum((one.y * slope).sum() for one, slope in zip(layers, slopes)) + balance
    *grads, up, down = torch.autograd.grad(total, [*expected.x, *gate, expected.up, expected.down], retain_graph=True)
    of_balance = torch.autograd.grad(balance, gate)
    ups, downs = up.chunk(case.ranks), down.chunk(case.ranks)
    want = [dict(gate=grads[case.ranks + r], up=ups[r], down=downs[r]) for r in ranks]
    scaled = [one | {name: one[name] / case.ranks for name in ("up", "down")} for one in want]
    cut_off = [one | {name: 0 * one[name] for name in ("up", "down")} for one in want]
    beliefs = {
        "gate-detached": [one | dict(gate=of_balance[r]) for r, one in enumerate(want)],
        "divided-already": scaled,
        "experts-detached": cut_off,
    }
    got = [{name: notes["gradients"][name] for name in want[0]} for notes in found]
    compare(f"{case}, the gradients", got, want, beliefs, tolerance=1e-7, ranks=case.ranks)
    got = [notes["gradients"]["x"] for notes in found]
    compare(f"{case}, the gradient of x_TD", got, grads[: case.ranks], tolerance=1e-7)
    for rank, notes in enumerate(found):
        if notes["without"]:
            detail = f"rank {rank}: expected a gradient, if only of zeros, got None for {', '.join(notes['without'])}"
            is_idle = not sum(expected.rows(case.ranks)[rank])
            raise Wrong(str(case), detail, ("skips-experts",) if is_idle else (), rank=rank)


def _check_calls(case: Case, run: Run) -> None:
    for rank in range(case.ranks):
        kinds = [m.kind for m in run.recording.messages(rank) if "float" in m.dtype]
        if kinds != ["all_to_all"] * 4:
            detail = f"rank {rank}: expected rows and gradients in 4 all_to_all, got {', '.join(kinds) or 'none'}"
            raise Wrong(str(case), detail)
        calls = sum(span.name == "E" for span in run.recording.events(Span, rank))
        if calls > 1:
            detail = f"rank {rank}: expected one call of self.experts, got {calls}"
            raise Wrong(str(case), detail, ("one-by-one",))


EXPERT_PARALLEL_MOE = Exercise(
    "ExpertParallelMoE",
    check_expert_parallel_moe,
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
        balance_of_all="This is the balance loss over the tokens of all ranks. That is different, not wrong, and needs "
        "messages; here each rank's is that of its own tokens, as in most frameworks.",
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
