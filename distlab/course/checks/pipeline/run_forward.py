"""The check of run_forward: what goes on to the next stage, and what is kept for the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from distlab.course.checks.pipeline.common import WIDTH, micro_batches, misconceptions, module, with_ranks
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import RankFailed, Trial


def forward_alone(run_forward: Callable, make_stage: Callable, sizes: Sequence[int], seed: int, ids: bool) -> dict:
    """On a rank, as the stage of its number: what comes out for each micro-batch, and what is kept.

    With ``ids`` the first stage's inputs are whole numbers, and its first layer is an embedding.
    """
    number, num_stages = dist.get_rank(), dist.get_world_size()
    layers, batches = module(number, num_stages, seed), micro_batches(sizes, seed)
    if ids and number == 0:
        layers[0] = nn.Embedding(CODES, WIDTH, dtype=torch.float64)
        batches = [(torch.arange(len(y_b)) % CODES, y_b) for _, y_b in batches]
    stage = make_stage(layers, number, num_stages, WIDTH)
    before = [x_bD.clone() for x_bD, _ in batches]
    outs = [run_forward(stage, k, x_bD, y_b, sum(sizes)) for k, (x_bD, y_b) in enumerate(batches)]
    kept = getattr(stage, "kept", None)
    return {
        "outs": outs,
        "attached": any(isinstance(out, torch.Tensor) and out.requires_grad for out in outs),
        "kept": [_described(kept.get(k), before[k], outs[k]) for k in range(len(sizes))]
        if isinstance(kept, dict)
        else [],
        "same": all(torch.equal(old, x_bD) for old, (x_bD, _) in zip(before, batches)),
    }


CODES = 5


def _described(pair: object, given: torch.Tensor, returned: object) -> dict:
    """What the backward pass can do with what was kept for a micro-batch."""
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(t, torch.Tensor) for t in pair):
        return {"is_pair": False}
    x_bD, out = pair
    return {
        "is_pair": True,
        "is_turned": _equal(x_bD, returned) and _equal(out, given),
        "is_what_went_in": _equal(x_bD, given),
        "is_what_came_out": _equal(out, returned),
        "is_one_number": out.dim() == 0,
        "gets_grad": x_bD.requires_grad,
        "is_leaf": x_bD.is_leaf,
        "has_graph": out.requires_grad,
    }


def _equal(a: torch.Tensor, b: object) -> bool:
    return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a.detach(), b.detach())


def check_run_forward(learners: Callable, trial: Trial) -> str:
    """Tries 1 to 4 stages, with micro-batches that are equal and that are not; at last one that starts with ids."""
    for ranks, sizes in ((2, [2, 2]), (3, [2, 2, 1, 1, 1]), (1, [3, 3, 2]), (4, [1])):
        _try(learners, trial, ranks, sizes)
    _try(learners, trial, 2, [2, 1], ids=True)
    return (
        "outputs are right and detached, losses add up to the mean over the batch, and input and output are kept for "
        "each micro-batch; on 1 to 4 stages, with equal and unequal micro-batches, and with whole numbers as input"
    )


def _try(learners: Callable, trial: Trial, ranks: int, sizes: list[int], ids: bool = False) -> None:
    case = f"{with_ranks(ranks)} and micro-batches of {', '.join(map(str, sizes))} rows"
    case += ", whole numbers as the input of the first stage" if ids else ""
    make_stage = learners.__globals__["Stage"]
    try:
        found = trial.run(case, forward_alone, learners, make_stage, sizes, trial.seed, ids, ranks=ranks)
    except RankFailed as failed:
        raise failed.because(*(["ids"] if "require gradients" in failed.detail else [])) from None
    if not ids:
        _compare_outs(case, [of_rank["outs"] for of_rank in found], sizes, trial.seed)
    for rank, of_rank in enumerate(found):
        if of_rank["attached"]:
            raise Wrong(case, f"rank {rank}: expected a detached output, got one with its graph", ("attached",))
        if not of_rank["same"]:
            raise Wrong(case, f"rank {rank}: expected the input as it was, got another")
        _check_kept(case, rank, ranks, of_rank["kept"])


def _compare_outs(case: str, outs: list, sizes: list[int], seed: int) -> None:
    ranks, batches = len(outs), micro_batches(sizes, seed)
    modules = [module(number, ranks, seed) for number in range(ranks)]
    plain = [[layers(x_bD).detach() for x_bD, _ in batches] for layers in modules]

    def ending(loss_of: Callable) -> list:
        losses = [loss_of(logits, y_b) for logits, (_, y_b) in zip(plain[-1], batches)]
        return [*plain[:-1], losses]

    num_rows, num_micro = sum(sizes), len(sizes)
    beliefs = {
        "mean": ending(F.cross_entropy),
        "sum": ending(lambda logits, y_b: F.cross_entropy(logits, y_b, reduction="sum")),
        "by-number": ending(lambda logits, y_b: F.cross_entropy(logits, y_b) / num_micro),
        "twice": ending(lambda logits, y_b: F.cross_entropy(logits, y_b) / num_rows),
        "no-loss": plain,
    }
    right = ending(lambda logits, y_b: F.cross_entropy(logits, y_b, reduction="sum") / num_rows)
    compare(f"{case}, the outputs", outs, right, beliefs, m=num_micro, n=num_rows)


def _check_kept(case: str, rank: int, ranks: int, kept: list[dict]) -> None:
    missing = [k for k, pair in enumerate(kept) if not pair["is_pair"]]
    if missing or not kept:
        known = ("only-last",) if missing == list(range(len(kept) - 1)) and missing else ()
        known = ("not-kept",) if len(missing) == len(kept) else known
        detail = (
            f"rank {rank}, stage.kept[{missing[0] if missing else 0}]: expected a pair of tensors, input and output"
        )
        raise Wrong(case, detail, known)
    for micro, pair in enumerate(kept):
        where = f"rank {rank}, stage.kept[{micro}]"
        if pair["is_turned"]:
            raise Wrong(case, f"{where}: expected (input, output), got (output, input)", ("turned",))
        if rank and not pair["gets_grad"]:
            raise Wrong(case, f"{where}: expected an input that requires grad, got one that does not", ("no-grad",))
        if rank and not pair["is_leaf"]:
            raise Wrong(case, f"{where}: expected an input that is a leaf, got one that was computed", ("no-leaf",))
        if not pair["has_graph"]:
            raise Wrong(case, f"{where}: expected an output with its graph, got one without", ("no-graph",))
        if rank == ranks - 1 and not pair["is_one_number"]:
            raise Wrong(case, f"{where}: expected the loss as the output, got a tensor of more axes", ("keeps-logits",))
        for what, which in (("is_what_went_in", "input"), ("is_what_came_out", "output")):
            if not pair[what]:
                raise Wrong(case, f"{where}: expected the {which} of this micro-batch, got another tensor")


RUN_FORWARD = Exercise(
    "run_forward",
    check_run_forward,
    misconceptions=misconceptions(
        mean="Each loss is the mean over its own micro-batch, so the {m} of them add up to about {m} times the batch's "
        "loss: divide the sum over rows by the {n} rows of the batch.",
        sum="Each loss is a sum over rows, never divided by the {n} rows of the batch.",
        by_number="Each micro-batch's mean is divided by {m}, their number. That weighs a row in a small micro-batch "
        "more than one in a large: divide the sum over rows by the {n} rows of the batch.",
        twice="The loss is divided twice: it is a mean over the micro-batch's rows already, and is divided by {n} as "
        'well. Ask cross_entropy for the sum, reduction="sum".',
        no_loss="The last stage returns its logits; its output is the loss.",
        attached="The output still carries its graph. Sent, that graph is of no use, and it keeps memory: return a "
        "detached tensor.",
        not_kept="Nothing is kept in stage.kept: the backward pass needs this micro-batch's input and output.",
        only_last="Only the last micro-batch is kept: each needs an entry of its own, stage.kept[micro].",
        no_grad="The kept input does not require grad, so there will be no gradient to send back: earlier stages would "
        "never learn.",
        no_leaf="The kept input is no leaf: only leaves get a .grad. Mark the tensor that goes into the module, and "
        "keep that one.",
        no_graph="The kept output has no graph: detach what is returned, not what is kept.",
        turned="The pair is (input, output), in this order: here they are the other way round.",
        keeps_logits="On the last stage the logits are kept, and the loss is returned: the backward pass starts from "
        "what is kept, and its output is the loss.",
        ids="Only floating point tensors can require grad, and the first stage's input may be token ids. Nobody needs "
        "a gradient of the first stage's input.",
    ),
    hints=(
        "Four things in order: make the input a leaf that requires grad (not on the first stage); run stage.module; on "
        "the last stage turn its output into the loss; keep input and output, return the output detached.",
        "x_bD = x_bD.detach().requires_grad_(not stage.is_first). The loss is F.cross_entropy(out, y_b, "
        'reduction="sum") / num_rows. stage.kept[micro] = x_bD, out.',
    ),
)
