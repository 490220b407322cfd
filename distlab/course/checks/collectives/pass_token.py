"""Exercise pass_token: ranks take turns, and each learns the sum of those before it and itself."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from distlab.course.checks.collectives.calls import CALLS, UNWAITED, numbered
from distlab.course.checks.collectives.coding import coded, coded_sum, compare_coded
from distlab.course.checks.collectives.traffic import (
    WIDENED,
    Failed,
    Traffic,
    not_a_hub,
    not_widened,
    only_sends,
    traffic_by_case,
    watch,
)
from distlab.course.exercise import Exercise, Misconception, Wrong
from distlab.course.trial import Trial

Shapes = list[tuple[int, ...]]


def take_turns(pass_token: Callable, shapes: Shapes) -> list[tuple[object, bool, bool]]:
    """On a rank: what ``pass_token`` returns for each shape, whether its input is as it was, and whether it is that.

    The last time in float32.
    """
    rank, found = dist.get_rank(), []
    for number, (shape, dtype) in enumerate([*((shape, torch.float64) for shape in shapes), ((4,), torch.float32)]):
        before = coded(rank, torch.Size(shape).numel()).reshape(shape).to(dtype)
        x = before.clone()
        with numbered(number):
            got = pass_token(x)
        is_input = isinstance(got, torch.Tensor) and got.data_ptr() == x.data_ptr()
        found.append((got, torch.equal(x, before), is_input))
    return found


def check_pass_token(learners: Callable[[torch.Tensor], torch.Tensor], trial: Trial) -> str:
    """Tries ``pass_token`` on 3 ranks, the fewest on which mistakes can be told apart, and on 2, 4 and 1."""
    for ranks in (3, 2, 4, 1):
        _try(learners, trial, ranks)
    return "rank r returns the sum over ranks 0 to r, and every rank but the last sends once, to the next; 1 to 4 ranks"


def _try(learners: Callable, trial: Trial, ranks: int) -> None:
    case = f"with {ranks} rank{'s' if ranks > 1 else ''}"
    shapes = [(1,), (2, 3), (2 + trial.seed % 5,)]
    try:
        run = watch(trial, PASS_TOKEN.misconceptions, case, take_turns, learners, shapes, ranks=ranks)
    except Failed as failed:
        raise _named(failed, ranks) from None
    for shape, answers in zip(shapes, zip(*run.values)):
        got, kept, is_input = zip(*answers)
        _compare(f"{case} and a tensor of shape {shape}", got, shape)
        if not all(kept):
            raise Wrong(case, "expected x as it was, got another", ("changes",))
        if any(is_input):
            rank = is_input.index(True)
            raise Wrong(case, f"expected a new tensor on rank {rank}, got x itself", ("itself-returned",), rank=rank)
    like = [torch.empty(shape, dtype=torch.float64) for shape in shapes] + [torch.empty(4)]
    for traffic in traffic_by_case(run.recording, like):
        _check_traffic(case, traffic)


def _named(failed: Failed, ranks: int) -> Wrong:
    """Names a hang by where the first and the last rank stand."""
    stands = {rank: failure.function for rank, failure in failed.error.failures.items()}
    if stands.get(ranks - 1, "").startswith(("send to rank 0", "isend to rank 0")):
        return failed.because("circle")
    return failed.because("receive-first") if stands.get(0, "").startswith("recv") else failed


def _compare(case: str, got: tuple, shape: tuple[int, ...]) -> None:
    ranks, length = len(got), torch.Size(shape).numel()

    def sums(by_rank) -> list[torch.Tensor]:
        return [coded_sum(list(contributing), length).reshape(shape) for contributing in by_rank]

    everyone = range(ranks)
    beliefs = {
        "own-only": sums([[r - 1, r] if r else [0] for r in everyone]),
        "not-added": sums([[0]] * ranks),
        "received": sums([[0], *(range(r) for r in everyone[1:])]),
        "alone": sums([[r] for r in everyone]),
        "total": sums([everyone] * ranks),
    }
    compare_coded(case, got, sums([range(r + 1) for r in everyone]), beliefs, "in the result")


def _check_traffic(case: str, traffic: Traffic) -> None:
    only_sends(case, traffic)
    not_widened(case, traffic)
    not_a_hub(case, traffic)
    for rank in range(traffic.ranks) if traffic.ranks > 2 else ():
        peers = [message.peer for message in traffic.sends(rank)]
        if peers != list(range(rank + 1, min(rank + 2, traffic.ranks))):
            line = f"once, to rank {rank + 1}" if rank < traffic.ranks - 1 else "to nobody"
            raise Wrong(case, f"expected rank {rank} to send {line}; it sent to {peers or 'nobody'}")


PASS_TOKEN = Exercise(
    "pass_token",
    check_pass_token,
    misconceptions=(
        Misconception("own-only", "Each rank passes on its own number only, so what came before it is lost."),
        Misconception("not-added", "Rank 0's number arrives everywhere, and nobody adds its own before passing it on."),
        Misconception("received", "Each rank returns what it received; its own number belongs to the sum, too."),
        Misconception("alone", "Every rank returns its own number: what it received was not added."),
        Misconception("total", "Every rank returns the sum over all ranks; rank r is to see ranks 0 to r only."),
        Misconception("changes", "It changed the tensor that it was given; add in a copy, such as x.clone()."),
        Misconception(
            "itself-returned",
            "Rank {rank} returns x itself: whoever then changes the result changes x, too. Return x.clone().",
        ),
        Misconception(
            "circle",
            "The last rank sends to rank 0, which never receives: the token goes along a line, not in a circle.",
        ),
        Misconception(
            "receive-first", "All ranks receive first, so nobody starts: rank 0 is to send without receiving."
        ),
        Misconception(
            "outside",
            "Rank {rank} {does} rank {peer}, which is not there: the first rank has nobody before it, the last nobody "
            "after it.",
        ),
        *CALLS,
        UNWAITED,
        WIDENED,
        Misconception("hub", "Every message goes through rank 0; each rank is to pass the token to its neighbour."),
        Misconception("collective", "It calls {kind}; this exercise is to be built from send and recv alone."),
    ),
    hints=(
        "Two questions decide what a rank does: is there a rank before me (rank > 0) to receive from, and one after "
        "me (rank < world - 1) to send to? Rank 0 answers no to the first, the last rank to the second.",
        "Start with token = x.clone(). If a rank is before you, receive into torch.empty_like(x) from rank - 1 and add "
        "it to the token. Then, if a rank is after you, send the token to rank + 1. Return the token.",
    ),
)
