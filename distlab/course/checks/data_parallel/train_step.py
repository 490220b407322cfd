"""The check of train_step: many ranks train like one process, step for step."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from distlab.course.checks.data_parallel.common import batch_of
from distlab.course.checks.data_parallel.compute_gradients import classifier
from distlab.course.exercise import Exercise
from distlab.course.kit.budget import bytes_sent
from distlab.course.kit.case import Case, Job, listed
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import gradients_of, misconceptions, weights_of
from distlab.course.kit.outcome import Outcome


class Awkward(nn.Module):
    """Has what makes averaging hard: tied and frozen weights, a parameter that one row uses, one that none does."""

    def __init__(self):
        super().__init__()
        self.inner, self.again = nn.Linear(4, 4), nn.Linear(4, 4)
        self.again.weight = self.inner.weight
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.rare, self.unused = (nn.Parameter(torch.randn(4)) for _ in range(2))
        self.head = nn.Linear(4, 3)

    def forward(self, x_BD):
        h_BD = self.frozen(torch.tanh(self.again(torch.tanh(self.inner(x_BD)))))
        rare_B1 = x_BD[:, :1] > 1
        return self.head(h_BD + rare_B1 * self.rare if rare_B1.any() else h_BD)


def case(ranks: int, sizes: list[int], hard: bool = False, adam: bool = False) -> Case:
    """Batches of so many rows, one after the other."""
    words = f" and {'batches' if sizes[1:] else 'a batch'} of {listed(sizes)} rows"
    return Case(ranks, words, sizes=sizes, hard=hard, adam=adam)


def start(job: Job) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model and its optimizer, the same for the same job."""
    torch.manual_seed(job.seed)
    model = Awkward().to(job.dtype) if job["hard"] else classifier(job)
    if job["adam"]:  # a larger eps: by Adam's own, a gradient of rounding errors moves a weight as far as any other
        return model, torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-3)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def history(step, job: Job) -> dict:
    """Of every step the rows that the model saw, the gradients when the optimizer stepped, weights, loss."""
    model, optimizer = start(job)
    rows, seen, notes = [], [], {}
    model.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    optimizer.register_step_pre_hook(lambda *_: seen.append(gradients_of(model)))
    for number, size in enumerate(job["sizes"]):
        rows.clear(), seen.clear()
        loss = step(model, optimizer, *batch_of(job, size, of=number))
        at = f"step {number + 1}, "
        notes |= {f"{at}rows that went through the model": sum(rows), f"{at}optimizer steps": len(seen)}
        notes |= {f"{at}the gradients": dict(*seen[-1:]), f"{at}the weights": weights_of(model), f"{at}the loss": loss}
    return notes


def drive(lab, job: Job) -> dict:
    """On a rank: what :func:`history` says, and the rows by rank summed up."""
    notes = history(lambda model, optimizer, *batch: call(lab.train_step, model, optimizer, *batch, changes=(0,)), job)
    for name in notes:
        if name.endswith("rows that went through the model"):
            total = torch.tensor(notes[name])
            dist.all_reduce(total)
            notes[name] = total.item()
    return notes


def _one_process(model, optimizer, x_BD, y_B) -> float:
    loss = F.cross_entropy(model(x_BD), y_B)
    loss.backward()
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def judge(job: Job, outcome: Outcome):
    """The weights are equal already: nobody sends them again."""
    model, _ = start(job)
    trainable = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    most = len(job["sizes"]) * 2 * (trainable + 2 * job.ranks * job.dtype.itemsize)
    sent = bytes_sent(outcome, 0)
    if sent > most:
        yield "the bytes sent", f"rank 0: expected at most {most}, got {sent}"


def fields(job: Job, outcome: Outcome | None) -> dict:
    """The rows of a batch, and what was broadcast at each step."""
    messages = outcome.messages(0, "call") if outcome else []
    copied = sum(m.bytes for m in messages if m.kind == "broadcast") // len(job["sizes"])
    return {"n": job["sizes"][0], "copied": copied}


TRAIN_STEP = Exercise(
    "train_step",
    Experiment(
        (
            case(2, [4]),
            case(3, [7, 7]),
            case(3, [2, 7]),
            case(4, [8, 7, 2], hard=True, adam=True),
            case(3, [8, 7, 2], hard=True),
            case(2, [8, 7, 2], hard=True, adam=True),
            case(1, [8, 7, 2], hard=True),
        ),
        drive,
        lambda job, _: [history(_one_process, job)] * job.ranks,
        judge=judge,
        fields=fields,
        holds="loss, gradients and weights equal one process's at every step; with 1 to 4 ranks, SGD and Adam, uneven "
        "and empty shards, tied, frozen and unused parameters",
    ),
    misconceptions=misconceptions(
        no_split="Every rank put the whole batch through the model, {ranks} times the work: split_batch gives a "
        "rank its shard.",
        no_forward="No row went through the model: compute_gradients is missing.",
        no_step="No optimizer took a step: `update` is missing.",
        no_average="Every rank stepped with its own gradients, so the replicas drift apart: average_gradients comes "
        "after compute_gradients and before update.",
        mean_of_means="The gradients are the mean of the {ranks} ranks' means: tell average_gradients how many rows "
        "this rank has, not how many the batch has.",
        replicates="The model is sent again at every step, {copied} bytes of weights that are equal already: replicate "
        "belongs before the first step.",
        loss_again="The loss is worked out by another forward pass, with the weights after the step: compute_gradients "
        "has returned that of this rank's rows before it.",
        own_loss="Each rank returns the loss of its own shard; that of the whole batch is asked for.",
        loss_of_means="The loss is the mean of the ranks' means: weight each by its rows, as the gradients.",
        loss_sum="The loss is the sum of the ranks' losses; the mean over all rows is asked for.",
        loss_rows="The loss is the sum over all {n} rows: divide it by {n}.",
        float32_zero="The loss of a rank without rows is float32 here, and those of the others are not: "
        "torch.tensor(0.0) is float32. compute_gradients gives 0 in the right dtype there.",
        tensor="The loss is a tensor; a float is asked for: .item() makes one.",
        rounded="The loss is right to seven digits only, so it went through float32 somewhere: torch.tensor(0.25) "
        "is float32, while a sum of tensors keeps their dtype.",
    ),
    hints=(
        "Four calls, in the order of the picture: split_batch, compute_gradients, average_gradients, update. "
        "Each rank then has its shard's loss; that of the batch takes one all_reduce more.",
        "average_gradients wants the number of rows in this rank's shard, len(y_b). For the loss: multiply the shard's "
        "by its rows, all_reduce it, divide it by len(y_B), and return .item().",
    ),
    uses=("replicate", "split_batch", "compute_gradients", "average_gradients", "update"),
)
