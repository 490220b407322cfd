"""The check of average_gradients: one process's gradients, weighted by rows."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn

from distlab.course.checks.data_parallel.common import mean_of
from distlab.course.exercise import Exercise
from distlab.course.kit.budget import more_than
from distlab.course.kit.case import Case, Job, listed
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import Tensors, coded, gradients_of, misconceptions
from distlab.course.kit.outcome import Outcome

_COUNTS = 64  # bytes in which ranks may tell each other how many rows they have


def case(rows: list[int], words: str = "", absent: bool = False, hard: bool = False) -> Case:
    """``rows`` are every rank's; ``absent`` takes one gradient away on rank 1, ``hard`` ties and freezes weights."""
    return Case(len(rows), f" holding {listed(rows)} rows{words}", rows=rows, absent=absent, hard=hard)


def model_of(job: Job) -> nn.Sequential:
    """Two layers; where it is hard with one weight for both, and a frozen bias."""
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5)).to(job.dtype)
    if job["hard"]:
        model[1].weight = model[0].weight
        model[0].bias.requires_grad_(False)
    return model


def calls(job: Job) -> dict[str, list[int]]:
    """The rows of each of two calls with one model, by what is said of its gradients; rank 0's stay the same."""
    later = [num_rows + rank + (job.ranks == 1) for rank, num_rows in enumerate(job["rows"])]
    return {"the gradients": job["rows"], "the gradients of a second call": later}


def own_gradients(job: Job, rank: int, rows: list[int]) -> Tensors:
    """What a rank brings, by name; what is frozen, or is not there on this rank, has none."""
    parameters = dict(model_of(job).named_parameters())
    found = dict(zip(parameters, coded([p.shape for p in parameters.values()], rank, job.dtype)))
    is_absent = {"0.weight"} if job["absent"] and rank == 1 else set()
    there = (name for name, p in parameters.items() if p.requires_grad and rows[rank])
    return {name: found[name] for name in there if name not in is_absent}


def drive(lab, job: Job) -> dict:
    """On a rank: its gradients after each call of ``average_gradients``, and which frozen parameters got one."""
    model, rank, found = model_of(job), dist.get_rank(), {}
    for what, rows in calls(job).items():
        own = own_gradients(job, rank, rows)
        for name, parameter in model.named_parameters():
            parameter.grad = own.get(name)
        call(lab.average_gradients, model, rows[rank])
        found[what] = gradients_of(model)
    frozen = [name for name, p in model.named_parameters() if p.grad is not None and not p.requires_grad]
    return found | {"frozen parameters with a .grad": frozen}


def expect(job: Job, came: list[dict]) -> list[dict]:
    """The mean over all rows, on every rank."""
    zeros = gradients_of(model_of(job))
    means = {
        what: mean_of([zeros | own_gradients(job, rank, rows) for rank in range(job.ranks)], rows)
        for what, rows in calls(job).items()
    }
    return [means | {"frozen parameters with a .grad": []}] * job.ranks


def judge(job: Job, outcome: Outcome):
    """Every trainable parameter is sent once; a bucket may be padded, and hold the number of rows too."""
    trainable = sum(p.nbytes for p in model_of(job).parameters() if p.requires_grad)
    of_call = 2 * (trainable + job.ranks * job.dtype.itemsize) + _COUNTS
    yield from more_than(len(calls(job)) * of_call, outcome, "the bytes sent")


AVERAGE_GRADIENTS = Exercise(
    "average_gradients",
    Experiment(
        (
            case([2, 2, 2]),
            case([3, 2, 2]),
            case([5]),
            case([3, 3, 2, 2], hard=True),
            case([3, 2, 2], ", one .grad None on rank 1", absent=True),
            case([1, 0], ", every .grad None on rank 1"),
        ),
        drive,
        expect,
        judge=judge,
        fields=lambda job, _: {"total": sum(job["rows"]), "wide": job["rows"].index(min(job["rows"]))},
        holds="on every rank, every gradient is the mean over the whole batch, weighted by rows; with 1 to 4 ranks, "
        "uneven and empty shards, tied and frozen parameters, and a parameter without a gradient",
    ),
    misconceptions=misconceptions(
        sum="Every gradient is {ranks} times too large: summed over {ranks} ranks, never divided.",
        weighted_sum="Every gradient is {total} times too large: summed over {total} rows, never divided.",
        halved="The sum is divided by 2, however many ranks there are; here it is {ranks}.",
        mean_of_means="This is the mean of the {ranks} ranks' means. A row on rank {wide} counts for more in it "
        "than a row on rank 0, which has more of them: weight each gradient by its number of rows.",
        divided_twice="Every gradient is {ranks} times too small: a mean over all rows, and then divided by {ranks} "
        "ranks too.",
        by_ranks="The sum over rows is divided by the {ranks} ranks; divide it by the {total} rows of all ranks.",
        own_rows="The sum over rows is divided by this rank's own number of rows; divide it by the {total} of all "
        "ranks.",
        old_total="The total of rows is kept from an earlier call, and ranks have other numbers of rows now, as in the "
        "last batch of an epoch: add them up at each call.",
        kept="Every rank still has its own gradients: what was sent did not arrive in .grad.",
        rank_0="Every rank has rank 0's gradients; those of the others are lost.",
        skips_none="A rank skipped a parameter because its .grad is None there, and the others waited for it in "
        "vain: all ranks must make the same calls, so None counts as zeros.",
        leaves_idle="A rank without rows returned before the first all_reduce, and the others waited for it in vain: "
        "it has zeros to give, and takes part.",
        float32_zeros="The zeros for a .grad of None have another dtype than the gradients: use "
        "torch.zeros_like(parameter).",
        none_raises="A .grad is None where no row of this rank used the parameter: it counts as zeros.",
        tied_twice="Tied weights were sent once for each layer that uses them: model.parameters() lists them once.",
        frozen="A frozen parameter (requires_grad=False) was averaged too: bytes sent for nothing, and now an "
        "optimizer may move it.",
    ),
    hints=(
        "The mean over all rows is (Σ rows × gradient) / (Σ rows). Both sums run over the ranks: dist.all_reduce "
        "makes such a sum, in place, on every rank.",
        "First all_reduce a tensor that holds num_rows: that is the total. Then, for each parameter with "
        "requires_grad: put zeros where .grad is None, multiply it by num_rows, all_reduce it, divide it by the total.",
    ),
)
