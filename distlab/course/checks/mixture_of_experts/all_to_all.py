"""The checks of all_to_all, by messages alone, and all_to_all_autograd: rows and gradients between ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist

from distlab.course.checks.mixture_of_experts.common import (
    RETURNED,
    SIZES_SENT,
    gradients,
    if_returned,
    kind_of,
    shown_by,
    too_many_bytes,
)
from distlab.course.checks.mixture_of_experts.way import Counts, back, pieces, there_and_back
from distlab.course.exercise import Exercise
from distlab.course.kit.case import BOTH, Case, Job
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import NOT_FLOAT32, misconceptions
from distlab.course.kit.outcome import Outcome
from distlab.events import P2P, Touch, Wait

ROWS, OWN = "the rows from others", "the row that stays"
LIBRARY = "the all-to-all of PyTorch's own in the graph"


def case(ranks: int, *shape: int, dtypes=BOTH, is_scattered: bool = False) -> Case:
    """Rows of a shape; scattered ones do not lie in one piece in memory."""
    words = f" and rows of shape {shape}" + ", scattered in memory" * is_scattered
    return Case(ranks, words, dtypes=dtypes, shape=shape, is_scattered=is_scattered)


def table(job: Job, rank: int) -> torch.Tensor:
    """A rank's rows; every number of the world is another."""
    size = job.ranks**2 * torch.Size(job["shape"]).numel()
    numbers = torch.randperm(2 * size, generator=torch.Generator().manual_seed(job.seed))[:size]
    x = (numbers.double() * NOT_FLOAT32).view(job.ranks, job.ranks, *job["shape"])[rank].to(job.dtype)
    return x.transpose(0, -1).contiguous().transpose(0, -1) if job["is_scattered"] else x


def rows_from_others(y: torch.Tensor, rank: int) -> dict[str, torch.Tensor]:
    """Copies of all rows but a rank's own, which is whatever lay in memory if it was forgotten."""
    return {f"row {source}": row.clone() for source, row in enumerate(y) if source != rank}


def drive(lab, job: Job) -> dict:
    """On a rank: what came from others, and what stayed."""
    rank = dist.get_rank()
    x = table(job, rank)
    y = call(lab.all_to_all, x)
    kind = kind_of(y)
    if kind != kind_of(x):
        return {RETURNED: kind}
    has_own = y.dtype == x.dtype and torch.equal(y[rank], table(job, rank)[rank])
    found = {ROWS: rows_from_others(y, rank), OWN: f"{y[rank].tolist()}" if has_own else "other numbers"}
    return found | {RETURNED: "x_WD itself" if y.data_ptr() == x.data_ptr() else kind}


def expect(job: Job, came: list[dict]) -> list[dict]:
    """What every rank had for this one."""
    tables = [table(job, rank) for rank in range(job.ranks)]
    want = []
    for rank in range(job.ranks):
        rows = torch.stack([table[rank] for table in tables])
        want.append({ROWS: rows_from_others(rows, rank), OWN: f"{rows[rank].tolist()}"})
    return if_returned(kind_of(tables[0]), came, want)


def judge(job: Job, outcome: Outcome):
    """A row to every other rank, by messages."""
    row = table(job, 0)[0].nbytes
    for rank in range(job.ranks):
        messages = outcome.messages(rank)
        if collectives := [m.kind for m in messages if m.kind not in P2P]:
            yield "the messages", f"rank {rank}: expected send and recv only, got {collectives[0]}"
        sent = sum(m.bytes for m in messages if m.kind == "send")
        if sent > (job.ranks - 1) * row:
            yield "the bytes sent", f"rank {rank}: expected {(job.ranks - 1) * row}, got {sent}"


def fields(job: Job, outcome: Outcome | None) -> dict:
    """The first rank whose own row is missing, and the collective that was called."""
    found = outcome.values if outcome else []
    ranks = (rank for rank, got in enumerate(found) if got.get(OWN) == "other numbers")
    kinds = (m.kind for m in (outcome.messages(0) if outcome else ()) if m.kind not in P2P)
    return {"rank": next(ranks, 0), "kind": next(kinds, "")}


def loose(outcome: Outcome) -> tuple[str, ...]:
    """Whether rows arrived in memory from which others were still being sent, or sends were not waited for."""
    for rank, events in enumerate(outcome.events):
        sends = {message.id for message in outcome.messages(rank) if message.kind == "send"}
        if any(type(event) is Touch and event.id in sends for event in events):
            return ("overwrites",)
    sends = [{m.id for m in outcome.messages(rank) if m.kind == "send"} for rank in range(len(outcome.events))]
    waited = [{event.id for event in events if type(event) is Wait} for events in outcome.events]
    return ("unwaited",) if any(of_rank - done for of_rank, done in zip(sends, waited)) else ()


ALL_TO_ALL = Exercise(
    "all_to_all",
    Experiment(
        (
            case(2, dtypes=(torch.int64, torch.float32)),
            case(3, 2),
            case(1, 3),
            case(4, 3, 2, is_scattered=True),
        ),
        drive,
        expect,
        judge=judge,
        fields=fields,
        loose=loose,
        named={"its isend": "unwaited"},
        shown=shown_by(judge, {"the messages": "collective", "the bytes sent": "too-many"}),
        holds="every row is with its rank, by one message for each pair of ranks each way; on 1 to 4 ranks",
    ),
    misconceptions=misconceptions(
        nothing_moved="This is x as it was: nothing has changed places.",
        own_row="Every rank sent the row with its own number. Row r goes to rank r.",
        first_row="Every rank sent its row 0. Row r goes to rank r.",
        order_of_arrival="The rows lie in the order in which they were received, beginning with this rank's own. What "
        "rank s sent belongs into row s.",
        backwards="The rows are in reversed order: what rank s sent belongs into row s.",
        keeps_nothing="Row {rank} of rank {rank} is missing: what a rank has for itself it keeps, without a message.",
        overwrites="Rows are received into the tensor from which others are still being sent, and overwrite those: a "
        "rank may get back what it sent itself. Receive into a tensor of its own.",
        send_first="All ranks wait to send and nobody receives. Start every send with isend, then receive, then wait.",
        receive_first="All ranks wait to receive and nobody has sent. Start every send with isend before you receive.",
        unwaited="The Works of the isends were never waited for, so that a message may not have left when the function "
        "returns: keep them, and wait for each.",
        itself="A rank sends to itself. Its own row it simply copies.",
        scattered="A row does not lie contiguously in memory; make x_WD contiguous before you send parts of it.",
        collective="You called {kind}, a collective. Build this one from messages: isend and recv.",
        too_many="A rank sends more than the one row to each other rank.",
    ),
    hints=(
        "Three loops over the other ranks: start an isend of row r to rank r and keep its handle; receive into row s "
        "of the result from rank s; wait for the handles. Your own row you copy.",
        "sending = [dist.isend(x_WD[other], other) for other in others], then dist.recv(y_WD[other], other) for each "
        "other, then one.wait() for each of sending.",
    ),
)


def uneven(sent: Counts, *shape: int) -> Case:
    """By rank, how many rows it sends to each rank; then the shape of a row."""
    return Case(len(sent), f" that send {sent} rows", sent=sent, shape=shape)


def scattered(x: torch.Tensor) -> torch.Tensor:
    """The same numbers, not in one piece in memory."""
    return x.transpose(0, -1).contiguous().transpose(0, -1)


def rows_of(job: Job, rank: int) -> torch.Tensor:
    """What a rank sends."""
    x = job.random(sum(job["sent"][rank]), *job["shape"], of=rank)
    return scattered(x) if len(job["shape"]) > 1 else x


def slopes_of(job: Job) -> list[torch.Tensor]:
    """By rank, the gradients of the rows that arrive there."""
    return [scattered(job.random(sum(row), *job["shape"], of=9 + rank)) for rank, row in enumerate(back(job["sent"]))]


def librarys(node) -> str:
    """The name of PyTorch's own all-to-all in what autograd has noted, or nothing."""
    if node is None:
        return ""
    owner = getattr(getattr(node, "_forward_cls", None), "__module__", "torch")
    if owner.startswith("torch") and "alltoall" in node.name().replace("_", "").lower():
        return node.name()
    return next(filter(None, (librarys(earlier) for earlier, _ in node.next_functions)), "")


def drive_autograd(lab, job: Job) -> dict:
    """On a rank: the rows that came, and the gradient of those that were sent."""
    rank = dist.get_rank()
    x, sends, receives = rows_of(job, rank).requires_grad_(), job["sent"][rank], back(job["sent"])[rank]
    y = call(lab.all_to_all_autograd, x, list(sends), receives)
    slope, kind = slopes_of(job)[rank], kind_of(y)
    if kind != kind_of(slope):
        return {RETURNED: kind}
    found = {RETURNED: kind, "the rows": y.detach().clone(), LIBRARY: librarys(y.grad_fn)}
    return found | {"the gradient": gradients(y, slope, x)[0]}


def expect_autograd(job: Job, came: list[dict]) -> list[dict]:
    """Every rank's rows and gradients."""
    y, slopes = pieces([rows_of(job, rank) for rank in range(job.ranks)], job["sent"]), slopes_of(job)
    pairs = zip(y, pieces(slopes, back(job["sent"])))
    want = [{"the rows": rows, "the gradient": gradient, LIBRARY: ""} for rows, gradient in pairs]
    return if_returned([kind_of(slope) for slope in slopes], came, want)


def judge_autograd(job: Job, outcome: Outcome):
    """Rows to others and their gradients; all know the sizes."""
    return too_many_bytes(outcome, 0, there_and_back(job, job["sent"], torch.Size(job["shape"]).numel()))


def fields_autograd(job: Job, outcome: Outcome | None) -> dict:
    """What whole numbers were sent by."""
    return {"kind": next((m.kind for m in (outcome.messages(0) if outcome else ()) if "int" in m.dtype), "")}


ALL_TO_ALL_AUTOGRAD = Exercise(
    "all_to_all_autograd",
    Experiment(
        (
            uneven([[1, 2], [2, 1]], 2),
            uneven([[1, 3], [0, 2]], 2),
            uneven([[1, 0, 2], [0, 0, 3], [2, 0, 1]], 3),
            uneven([[3]], 2),
            uneven([[0, 0, 0, 0], [2, 0, 1, 0], [3, 0, 0, 0], [0, 0, 0, 0]], 2, 3),  # the last rank has no part in it
        ),
        drive_autograd,
        expect_autograd,
        judge=judge_autograd,
        fields=fields_autograd,
        named={"never joined": "skips"},
        shown=shown_by(judge_autograd, {SIZES_SENT: "other-messages"}),
        holds="rows and gradients are where they belong, and nothing is sent besides; with 1 to 4 ranks, with empty "
        "pieces and with ranks that send or receive nothing",
    ),
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
