"""The check of replicate: every rank ends with rank 0's numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from distlab.course.checks.data_parallel.common import Tensors, misconceptions, with_ranks
from distlab.course.compare import compare
from distlab.course.exercise import Exercise
from distlab.course.trial import Trial


def plain_model() -> nn.Module:
    """Has trainable parameters only."""
    return nn.Linear(3, 2).double()


def varied_model() -> nn.Module:
    """Has tied weights, a frozen layer, and buffers of floating-point and whole numbers."""
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3), nn.Linear(3, 2)).double()
    model[2].weight = model[0].weight
    model[3].requires_grad_(False)
    model[1].running_mean.normal_()
    model[1].num_batches_tracked += int(torch.randint(1000, ()))
    return model


_LEFT_OUT = {"trainable parameters": "kept", "frozen parameters": "frozen", "buffers": "buffers"}


def _held(model: nn.Module) -> dict[str, Tensors]:
    """The tensors of a model by kind and name, the very ones."""
    parameters = dict(model.named_parameters())
    return {
        "trainable parameters": {name: p.data for name, p in parameters.items() if p.requires_grad},
        "frozen parameters": {name: p.data for name, p in parameters.items() if not p.requires_grad},
        "buffers": dict(model.named_buffers()),
    }


def replicated(replicate, make_model, seed: int) -> tuple[dict[str, Tensors], dict[str, Tensors]]:
    """On a rank: the tensors of a model of its own before and after ``replicate``."""
    torch.manual_seed(seed + dist.get_rank())
    model = make_model()
    known = dict(model.named_parameters())
    before = {kind: {name: t.clone() for name, t in tensors.items()} for kind, tensors in _held(model).items()}
    replicate(model)
    after = _held(model)
    for tensors in after.values():
        tensors.update({name: known[name].detach() for name in tensors if name in known})
    return before, after


def check_replicate(learners: Callable[[nn.Module], None], trial: Trial) -> str:
    """Tries ``replicate`` on models that differ from rank to rank."""
    for ranks, make_model in ((2, plain_model), (3, varied_model), (4, varied_model), (1, varied_model)):
        case = with_ranks(ranks) + (", which start from different numbers" if ranks > 1 else "")
        before, after = zip(*trial.run(case, replicated, learners, make_model, trial.seed, ranks=ranks))
        for kind, left_out in _LEFT_OUT.items():
            own = [tensors[kind] for tensors in before]
            average = {name: sum(tensors[name].double() for tensors in own) / ranks for name in own[0]}
            beliefs = {left_out: own, "average": [average] * ranks, "wrong-source": [own[-1]] * ranks}
            got = [tensors[kind] for tensors in after]
            compare(f"{case}, {kind}", got, [own[0]] * ranks, beliefs, last=ranks - 1)
    return "every rank holds rank 0's parameters, the frozen ones too, and its buffers; with 1 to 4 ranks"


REPLICATE = Exercise(
    "replicate",
    check_replicate,
    misconceptions=misconceptions(
        kept="Every rank kept its own: nothing of rank 0's has arrived in the model.",
        frozen="The frozen parameters (requires_grad=False) were left out, and the forward pass uses them too.",
        buffers="The buffers were left out: model.parameters() has none of them, model.buffers() has all.",
        average="The ranks hold the average over all ranks; what rank 0 started from is asked for.",
        wrong_source="The ranks hold what rank {last} started from; rank 0's is asked for.",
    ),
    hints=(
        "dist.broadcast(tensor, src=0) sends on rank 0 and overwrites `tensor` on every other rank. "
        "All ranks call it, once for each tensor of the model.",
        "Loop over [*model.parameters(), *model.buffers()]: frozen parameters are among them, and a weight that two "
        "layers share comes once. Broadcast tensor.detach(): the same memory, without autograd.",
    ),
)
