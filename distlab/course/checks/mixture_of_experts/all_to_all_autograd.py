"""The check of all_to_all_autograd: uneven pieces there, and their gradients back."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from distlab.course.checks.mixture_of_experts.common import given, keep_inputs, misconceptions, named, with_ranks
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import RankFailed, Trial
from distlab.ranks.outcome import Run
from distlab.ranks.watching.spans import span
from distlab.recording import Recording

# By rank, how many rows it sends to each rank; then the shape of a row.
CASES: tuple[tuple[list[list[int]], tuple[int, ...]], ...] = (
    ([[1, 2], [2, 1]], (2,)),
    ([[1, 3], [0, 2]], (2,)),
    ([[1, 0, 2], [0, 0, 3], [2, 0, 1]], (3,)),
    ([[3]], (2,)),
    ([[0, 0, 0, 0], [2, 0, 1, 0], [3, 0, 0, 0], [1, 0, 2, 0]], (2, 2)),
)


def moved(all_to_all_autograd: Callable, sizes: list[list[int]], shape: tuple[int, ...], seed: int) -> dict:
    """On a rank: the rows that came, and the gradient of x for a loss that is a sum of y times fixed numbers."""
    rank = dist.get_rank()
    sends, receives = list(sizes[rank]), [row[rank] for row in sizes]
    x = given(seed + rank, sum(sends), *shape).requires_grad_()
    y = all_to_all_autograd(x, sends, receives)
    if not isinstance(y, torch.Tensor):
        return dict(y=y, gradient=torch.zeros_like(x), kept=True, library="")
    library = librarys(y.grad_fn)
    with span("backward"):
        if y.requires_grad and y.shape == (sum(receives), *shape):
            y.backward(_slope(seed, rank, sum(receives), shape, scattered=True))
    gradient = torch.zeros_like(x) if x.grad is None else x.grad
    kept = torch.equal(x.detach(), given(seed + rank, *x.shape)) and sends == sizes[rank]
    return dict(y=y.detach().clone(), gradient=gradient.clone(), kept=kept, library=library)


def librarys(node) -> str:
    """The name of PyTorch's own all-to-all in what autograd has noted, or nothing."""
    if node is None:
        return ""
    owner = getattr(getattr(node, "_forward_cls", None), "__module__", "torch")
    name = node.name()
    if owner.startswith("torch") and "alltoall" in name.replace("_", "").lower():
        return name
    return next(filter(None, (librarys(earlier) for earlier, _ in node.next_functions)), "")


def _slope(seed: int, rank: int, num_rows: int, shape: tuple[int, ...], scattered: bool = False) -> torch.Tensor:
    slope = given(seed + 100 + rank, num_rows, *shape)
    return slope.transpose(0, -1).contiguous().transpose(0, -1) if scattered else slope


def check_all_to_all_autograd(learners: Callable, trial: Trial) -> str:
    """Tries ``all_to_all_autograd`` with pieces of all sizes, empty ones among them."""
    for sizes, shape in CASES:
        ranks = len(sizes)
        case = f"{with_ranks(ranks)} that send {sizes} rows"
        try:
            run = trial.watch(case, moved, learners, sizes, shape, trial.seed, ranks=ranks)
        except RankFailed as failed:
            raise named(failed, _WORDS) from None
        _compare(case, run, sizes, shape, trial.seed)
        _check_messages(case, run, sizes, shape)
    return (
        "rows and gradients are where they belong, by one all-to-all each way; with 1 to 4 ranks, with empty pieces "
        "and with ranks that send or receive nothing"
    )


_WORDS = {
    "tensors": ("incompatible function arguments",),
    "contiguous": ("be contiguous", "Tensors must be contiguous"),
    "wrong-sides": (
        "plit sizes",
        "different sizes in all_to_all",
        "returned an invalid gradient",
        "not divisible",
    ),
    "skips": ("without joining", "never joined", "returned without"),
}


def pieces(tensors: list[torch.Tensor], sizes: list[list[int]]) -> list[torch.Tensor]:
    """By rank, what it receives if ``sizes[i][j]`` rows of ``tensors[i]`` go from i to j."""
    cut = [tensor.split(row) for tensor, row in zip(tensors, sizes)]
    return [torch.cat([row[rank] for row in cut]) for rank in range(len(sizes))]


def _compare(case: str, run: Run, sizes: list[list[int]], shape: tuple[int, ...], seed: int) -> None:
    ranks, back = len(sizes), [list(column) for column in zip(*sizes)]
    x = [given(seed + rank, sum(sizes[rank]), *shape) for rank in range(ranks)]
    want = pieces(x, sizes)
    turned = [torch.cat(list(y.split(column))[::-1]) for y, column in zip(want, back)]
    compare(f"{case}, the rows", [found["y"] for found in run.values], want, {"backwards": turned})
    slopes = [_slope(seed, rank, sum(back[rank]), shape) for rank in range(ranks)]
    gradients = pieces(slopes, back)
    beliefs = {
        "no-gradient": [torch.zeros_like(one) for one in x],
        "divided": [one / ranks for one in gradients],
        "times": [one * ranks for one in gradients],
        "stays": slopes,
    }
    compare(f"{case}, the gradient", [found["gradient"] for found in run.values], gradients, beliefs, ranks=ranks)
    keep_inputs(case, [found["kept"] for found in run.values], "what it was given")
    for rank, found in enumerate(run.values):
        if found["library"]:
            detail = f"rank {rank}: expected a backward pass of your own, autograd notes {found['library']}"
            raise Wrong(case, detail, ("library",))


def _check_messages(case: str, run: Run, sizes: list[list[int]], shape: tuple[int, ...]) -> None:
    recording: Recording = run.recording
    for rank, row in enumerate(sizes):
        messages = recording.messages(rank)
        others = [m.kind for m in messages if m.kind != "all_to_all"]
        if others:
            detail = f"rank {rank}: expected two all_to_all, forward and backward, got {others[0]} too"
            raise Wrong(case, detail, ("other-messages",), kind=others[0])
        if len(messages) != 2:
            detail = f"rank {rank}: expected two all_to_all, forward and backward, got {len(messages)}"
            raise Wrong(case, detail)
        each = torch.Size(shape).numel()
        if tuple(messages[0].parts) != tuple(n * each for n in row):
            detail = f"rank {rank}: expected to send {row} rows, sent {[n / each for n in messages[0].parts]}"
            raise Wrong(case, detail)


ALL_TO_ALL_AUTOGRAD = Exercise(
    "all_to_all_autograd",
    check_all_to_all_autograd,
    misconceptions=misconceptions(
        no_gradient="No gradient comes back: for autograd, what arrives in a message comes from nowhere. Use "
        "ThereAndBack, with the way home as its second function.",
        wrong_sides="The sizes of the two sides got mixed up. all_to_all_single takes what this rank receives first, "
        "then what it sends, and writes into sum(receives) rows; backward the two change places.",
        tensors="Some of the sizes are tensors. all_to_all_single wants lists of whole numbers: .tolist().",
        library="This is PyTorch's own all-to-all with gradients, which the lab comes to later. Build it here: "
        "ThereAndBack, with one dist.all_to_all_single each way.",
        contiguous="all_to_all_single wants contiguous tensors. A gradient need not be one: .contiguous().",
        divided="The gradient is divided by {ranks}. Each row was used in one place, so its gradient travels home as "
        "it is.",
        times="The gradient is {ranks} times too large. Each row was used in one place: nothing is added up.",
        stays="The gradient was handed on without a message: these are the gradients of the rows that arrived, not of "
        "those that were sent.",
        backwards="The pieces lie in reversed order: those from rank 0 come first.",
        skips="A rank did not take part. Also a rank without rows joins each all-to-all, forward and backward.",
        other_messages="{kind} was called besides. The sizes are known already: one all_to_all_single each way.",
    ),
    hints=(
        "Write one function move(rows, sends, receives): an empty tensor of sum(receives) rows, all_to_all_single into "
        "it, return it. Forward it is called with (sends, receives), backward with (receives, sends).",
        "dist.all_to_all_single(moved, rows.contiguous(), receives, sends); then return ThereAndBack.apply(x_AD, "
        "there, back), where there and back call move.",
    ),
)
