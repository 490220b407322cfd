"""The check of train_step: one process's loss, gradients and weights at every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from distlab.course.checks.data_parallel.common import (
    Batch,
    bytes_sent,
    copy_of,
    gradients_of,
    listed,
    make_batch,
    mean_of,
    misconceptions,
    same_batch,
    shards_of,
    weights_of,
    with_ranks,
)
from distlab.course.checks.data_parallel.compute_gradients import classifier
from distlab.course.checks.data_parallel.update import steps_and_clears
from distlab.course.compare import compare, difference_by_rank
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import Trial
from distlab.ranks.watching.spans import span


class Awkward(nn.Module):
    """Has what makes averaging hard: tied and frozen weights, a parameter that one row uses, one that none does."""

    def __init__(self):
        super().__init__()
        self.inner, self.again = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()
        self.again.weight = self.inner.weight
        self.frozen = nn.Linear(4, 4).double().requires_grad_(False)
        self.rare, self.unused = (nn.Parameter(torch.randn(4, dtype=torch.float64)) for _ in range(2))
        self.head = nn.Linear(4, 3).double()

    def forward(self, x_BD):
        h_BD = self.frozen(torch.tanh(self.again(torch.tanh(self.inner(x_BD)))))
        rare_B1 = x_BD[:, :1] > 1
        return self.head(h_BD + rare_B1 * self.rare if rare_B1.any() else h_BD)


def awkward(seed: int) -> nn.Module:
    """The awkward model; the same for the same seed."""
    torch.manual_seed(seed)
    return Awkward()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """Adam."""
    return torch.optim.Adam(model.parameters(), lr=0.01)


def trained(replicate, train_step, make_model, make_optimizer, batches: list[Batch], seed: int) -> list[dict]:
    """On a rank: starts from weights of its own, replicates, and notes every step."""
    model = make_model(seed + dist.get_rank())
    replicate(model)
    with span("steps"):
        return history(train_step, model, make_optimizer(model), batches)


def history(step, model: nn.Module, optimizer, batches: list[Batch]) -> list[dict]:
    """Notes of every step the rows that the model saw, the gradients when the optimizer stepped, weights, loss."""
    rows, seen, steps = [], [], []
    watches = (
        model.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0]))),
        optimizer.register_step_pre_hook(lambda *_: seen.append(gradients_of(model))),
    )
    for batch in batches:
        rows.clear(), seen.clear()
        given = copy_of(batch)
        loss = step(model, optimizer, *given)
        notes = dict(rows=sum(rows), num_steps=len(seen), gradients=dict(*seen[-1:]), weights=weights_of(model))
        steps.append(notes | dict(loss=loss, kept=same_batch(batch, given)))
    for watch in watches:
        watch.remove()
    return steps


def _in_turn(shards_of: Callable[[int], list[range]], weighted: bool = True) -> Callable:
    """A step of one process that works through shards in turn and averages; it returns the list of their losses."""

    def step(model, optimizer, x_BD, y_B):
        shards, gradients, losses = shards_of(len(y_B)), [], []
        for shard in shards:
            optimizer.zero_grad()
            losses.append(_mean_loss(model, x_BD[list(shard)], y_B[list(shard)]))
            gradients.append(gradients_of(model))
        average = mean_of(gradients, [len(shard) for shard in shards] if weighted and len(y_B) else None)
        for name, parameter in model.named_parameters():
            parameter.grad = average[name] if parameter.requires_grad else None
        steps_and_clears(optimizer)
        return losses

    return step


def _mean_loss(model, x_BD, y_B) -> float:
    """Adds the gradients of the mean loss of some rows, if there are any."""
    if not len(y_B):
        return 0.0
    loss = F.cross_entropy(model(x_BD), y_B)
    loss.backward()
    return loss.item()


def check_train_step(learners: Callable, trial: Trial) -> str:
    """Tries whole steps against one process: first a step of a plain model, at last all that is hard."""
    for ranks, sizes in ((2, [4]), (3, [7, 7]), (3, [2, 7])):
        _try_training(learners, trial, ranks, sizes, classifier, sgd)
    for ranks, make_optimizer in ((4, adam), (3, sgd), (2, adam), (1, sgd)):
        _try_training(learners, trial, ranks, [8, 7, 2], awkward, make_optimizer)
    return (
        "loss, gradients and weights equal one process's at every step; with 1 to 4 ranks, SGD and Adam, uneven and "
        "empty shards, tied, frozen and unused parameters"
    )


def _try_training(learners, trial: Trial, ranks: int, sizes: list[int], make_model, make_optimizer) -> None:
    batches = [make_batch(trial.seed + i, n) for i, n in enumerate(sizes)]
    case = f"{with_ranks(ranks)} and {'batches' if sizes[1:] else 'a batch'} of {listed(sizes)} rows"
    replicate = getattr(learners, "__globals__", {}).get("replicate", _replicate)
    arguments = replicate, learners, make_model, make_optimizer, batches, trial.seed
    run = trial.watch(case, trained, *arguments, ranks=ranks)
    by_rank = run.values

    def simulated(step) -> list[dict]:
        model = make_model(trial.seed)
        return history(step, model, make_optimizer(model), batches)

    right = simulated(_in_turn(lambda n: [range(n)]))
    try:
        _compare_steps(case, sizes, by_rank, right, {})
    except Wrong:  # only now is it worth working out what the misconceptions would have given
        _compare_steps(case, sizes, by_rank, right, _wrong_histories(simulated, ranks))
        raise
    if copied := bytes_sent(run.recording, {"broadcast"}, after="steps") // len(sizes):
        detail = f"bytes of weights broadcast at each step: expected 0, got {copied}"
        raise Wrong(case, detail, ("replicates",), copied=copied)


def _wrong_histories(simulated: Callable, ranks: int) -> dict[str, list[list[dict]]]:
    """Every rank's notes if all believed in a misconception; under "shards", those with the shards' losses."""

    def shards(num_rows: int) -> list[range]:
        return shards_of(num_rows, ranks)

    return {
        "no-average": [simulated(_in_turn(lambda n, r=rank: [shards(n)[r]])) for rank in range(ranks)],
        "mean-of-means": [simulated(_in_turn(shards, weighted=False))] * ranks,
        "shards": [simulated(_in_turn(shards))] * ranks,
    }


def _compare_steps(case: str, sizes: list[int], by_rank: list, right: list[dict], wrong: Mapping[str, list]) -> None:
    for number, n in enumerate(sizes):
        came = [notes[number] for notes in by_rank]
        beliefs = {id: [notes[number] for notes in believed] for id, believed in wrong.items()}
        _compare_step(f"{case}, step {number + 1}", n, came, right[number], beliefs)


def _replicate(model: nn.Module) -> None:
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), src=0)


def _compare_step(case: str, n: int, came: list[dict], right: dict, wrong: Mapping[str, list[dict]]) -> None:
    """Raises Wrong unless all ranks' notes of a step on ``n`` rows are right."""
    ranks, seen = len(came), sum(notes["rows"] for notes in came)
    fields = dict(ranks=ranks, n=n)
    if seen != n:
        known = {ranks * n: ("no-split",), 0: ("no-forward",)}.get(seen, ())
        raise Wrong(f"{case}, rows that went through the model", f"expected {n}, got {seen}", known, **fields)
    _compare_numbers_of_steps(case, [notes["num_steps"] for notes in came])
    shards = wrong["shards"][0]["loss"] if wrong else []
    for what in ("gradients", "weights"):
        beliefs = {id: [notes[what] for notes in believed] for id, believed in wrong.items() if id != "shards"}
        compare(f"{case}, the {what}", [notes[what] for notes in came], [right[what]] * ranks, beliefs, **fields)
    losses = [notes["loss"] for notes in came]
    if any(isinstance(loss, torch.Tensor) for loss in losses):
        raise Wrong(f"{case}, the loss", f"expected a float, got {losses[0]!r}", ("tensor",))
    _compare_losses(f"{case}, the loss", losses, right["loss"][0], _wrong_losses(shards, right["loss"][0], n), n)
    if not all(notes["kept"] for notes in came):
        raise Wrong(case, "expected the batch as it was, got another")


def _compare_numbers_of_steps(case: str, numbers: list[int]) -> None:
    for rank, number in enumerate(numbers):
        if number != 1:
            known = ("no-step",) if not any(numbers) else ()
            raise Wrong(f"{case}, optimizer steps", f"rank {rank}: expected 1, got {number}", known)


def _wrong_losses(shards: list[float], want: float, n: int) -> dict[str, list]:
    """What each misconception would have returned, by rank; ``shards`` are the losses of the shards."""
    ranks = len(shards)
    if not shards:
        return {}
    return {
        "own-loss": shards,
        "loss-of-means": [sum(shards) / ranks] * ranks,
        "loss-sum": [sum(shards)] * ranks,
        "loss-rows": [want * n] * ranks,
    }


def _compare_losses(case: str, got: list, want: float, beliefs: Mapping[str, list], n: int) -> None:
    if difference_by_rank(got, [want] * len(got)) and not difference_by_rank(got, [want] * len(got), 1e-6):
        raise Wrong(case, f"rank 0: expected {want!r}, got {got[0]!r}", ("rounded",))
    compare(case, got, [want] * len(got), beliefs, n=n)


TRAIN_STEP = Exercise(
    "train_step",
    check_train_step,
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
        own_loss="Each rank returns the loss of its own shard; that of the whole batch is asked for.",
        loss_of_means="The loss is the mean of the ranks' means: weight each by its rows, as the gradients.",
        loss_sum="The loss is the sum of the ranks' losses; the mean over all rows is asked for.",
        loss_rows="The loss is the sum over all {n} rows: divide it by {n}.",
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
