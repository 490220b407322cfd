"""The checks of the ring: its two halves, and the all-reduce that they make."""

from __future__ import annotations

import torch
import torch.distributed as dist

from distlab.course.checks.collectives import traffic
from distlab.course.checks.collectives.bringing import (
    FAILURES,
    SERIAL,
    TRAFFIC,
    brought,
    cases,
    changed,
    in_place,
    spoilt,
    total,
)
from distlab.course.checks.collectives.coding import UNTOUCHED, meant, said
from distlab.course.exercise import Exercise
from distlab.course.kit.case import Case, Job
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import misconceptions
from distlab.course.kit.outcome import Outcome

# Those of a world size are tried in one start. Where chunks are alike, mistakes give numbers; elsewhere ranks fail.
_LENGTHS = {3: [6], 4: [10, 14], 5: [3, 2], 2: [5], 1: [3]}
_CASES = [Case(ranks, f" and length {n}", shape=(n,)) for ranks, lengths in _LENGTHS.items() for n in lengths]


def _own_chunks(rows: list[torch.Tensor]) -> list[torch.Tensor]:
    """Chunk (r + 1) mod n of each rank's row."""
    return [row.tensor_split(len(rows))[(rank + 1) % len(rows)] for rank, row in enumerate(rows)]


def _fields(job: Job, outcome: Outcome | None) -> dict:
    """The length, what does not divide, and the traffic."""
    (length,) = job["shape"]
    more = dict(length=length, rest=length % job.ranks, fewest=job.ranks - 1)
    return traffic.fields(job, outcome) | more


_SHARED = dict(
    chunks="Other chunks travel: at step s, rank r is to send chunk {send} and to receive chunk {receive} (modulo n).",
    remainder="The chunks have {length} // {ranks} elements each, and the last {rest} of {length} belong to none.",
    last_takes_rest="The last chunk takes all that does not divide, {rest} of {length}: use x.tensor_split({ranks}), "
    "where the first chunks are one longer.",
    blocks="The chunks are cut as x.chunk({ranks}) does, rounded up; use x.tensor_split({ranks}), where sizes differ "
    "by at most one.",
    uneven="It works where 3 ranks share the length evenly, and not where {ranks} ranks can't: a chunk that arrives "
    "may be longer or shorter than the one that leaves.",
    short="It works for longer tensors; with fewer elements than ranks some chunks are empty, and that is no error.",
    left="It sends to the left, with the chunks of a ring that sends to the right, to r + 1.",
    leftwards="The numbers are right, but the ring turns to the left: rank r is to send to its right, r + 1.",
    outside="A rank is named which is not there: count modulo {ranks}, so that the ring closes.",
    tuple="tensor_split gives a tuple, and its items can't be set, which parts[c] += … tries. Take the chunk out "
    "first: chunk = parts[c], and then chunk += … writes into x.",
    no_source="It receives from any rank: name the left neighbour, dist.recv(room, left).",
    send_first="Every rank waits in send, and nobody receives: start the send with isend, receive, then wait for it.",
    receive_first="Every rank waits in recv, and nobody has sent: start the send before it.",
    tags="The tags differ: a receive takes only messages with its own tag, and the default is 0.",
    many="The numbers are right, but a step too many was taken: n − 1 are enough.",
    whole="Whole tensors go around: {ranks} times the bytes of a ring, where each message is one chunk.",
    hub="Every message goes through rank 0, which is kept busy while the other links idle.",
    no_ring="The numbers are right, but on a ring every rank sends to one neighbour only.",
    serial=SERIAL,
    **FAILURES,
    **TRAFFIC,
)
_HALF, _WHOLE = traffic.ring(passes=1), traffic.ring(passes=2)

# --- ring_reduce_scatter --------------------------------------------------------------------------

_CHUNK = "chunk (r + 1) mod n"


def scattered(lab, job: Job) -> dict:
    """On a rank: the chunk that is to be complete, and all of x."""
    rank = dist.get_rank()
    came = changed(lab.ring_reduce_scatter, brought(job, rank))
    return {_CHUNK: _own_chunks([came["x"]] * job.ranks)[rank], **came}


RING_REDUCE_SCATTER = Exercise(
    "ring_reduce_scatter",
    Experiment(
        _CASES,
        scattered,
        lambda job, _: in_place([{_CHUNK: chunk} for chunk in _own_chunks([total(job)] * job.ranks)]),
        judge=_HALF,
        shown=_HALF.shown,
        fields=lambda job, outcome: _fields(job, outcome) | {"send": "r − s", "receive": "r − s − 1"},
        words=said,
        tells=meant,
        holds="chunk (r + 1) mod n is complete on rank r, with each rank's contribution once, after n − 1 messages of "
        "one chunk to the neighbour; on 1 to 5 ranks, with lengths that divide, that don't, and that are below n",
    ),
    misconceptions=misconceptions(
        not_in_place="x is as it was: add what arrives to the chunks of x itself, chunk += arriving.",
        few="One step is missing: on {ranks} ranks a ring takes {ranks} − 1 steps.",
        other_chunk="Another chunk is complete, and this one lacks a rank: step s is to send chunk r − s, so that "
        "chunk (r + 1) mod n ends on rank r.",
        overwritten="What arrives replaces this rank's part instead of being added to it.",
        unsummed="Each rank passes on its own numbers; it is to pass on the sum of what it received and its own.",
        **_SHARED,
    ),
    hints=(
        "parts = x.tensor_split(n) gives windows into x: after chunk = parts[c], chunk += … changes x. At each of the "
        "n − 1 steps one part goes to the right, and what comes from the left is added to the part one number below.",
        "At step s: chunk = parts[(r - s - 1) % n], and room for it with torch.empty_like(chunk). work = "
        "dist.isend(parts[(r - s) % n], right), then dist.recv into the room from the left, then work.wait(), and "
        "then add the room to chunk.",
    ),
)

# --- ring_all_gather ------------------------------------------------------------------------------


def _own(job: Job) -> list[torch.Tensor]:
    """Each rank's chunk (r + 1) mod n, of numbers of its own."""
    return _own_chunks([brought(job, rank) for rank in range(job.ranks)])


def gathered(lab, job: Job) -> dict:
    """On a rank: x after the gather, of which only the rank's own chunk held anything before."""
    rank = dist.get_rank()
    x = spoilt(job, torch.full_like(brought(job, rank), UNTOUCHED))
    _own_chunks([x] * job.ranks)[rank].copy_(_own(job)[rank])
    return changed(lab.ring_all_gather, x)


def _all_chunks(job: Job, came: list[dict]) -> list[dict]:
    """All chunks in their places, on every rank."""
    *others, last = _own(job)  # the last rank has chunk 0
    return in_place([{"x": torch.cat([last, *others])}] * job.ranks)


RING_ALL_GATHER = Exercise(
    "ring_all_gather",
    Experiment(
        _CASES,
        gathered,
        _all_chunks,
        judge=_HALF,
        shown=_HALF.shown,
        fields=lambda job, outcome: _fields(job, outcome) | {"send": "r + 1 − s", "receive": "r − s"},
        words=said,
        tells=meant,
        holds="every rank has all chunks in their places, after n − 1 messages of one chunk to the neighbour; "
        "on 1 to 5 ranks, with lengths that divide, that don't, and that are below n",
    ),
    misconceptions=misconceptions(
        not_in_place="x is as it was: receive into the chunks of x itself.",
        few="One chunk never arrived: on {ranks} ranks a ring takes {ranks} − 1 steps.",
        wrong_start="It starts with chunk r, which is not complete: the chunk that rank r holds is chunk "
        "(r + 1) mod n.",
        not_forwarded="Each step sends the rank's own chunk again; what came a step ago is to go on.",
        added="What arrives was added to what stood there; a finished chunk is to replace it.",
        **_SHARED,
    ),
    hints=(
        "parts = x.tensor_split(n) gives windows into x, so that a chunk received into parts[c] stands in x. "
        "The loop is that of ring_reduce_scatter, with every chunk's number one higher, and without adding.",
        "At step s send parts[(r + 1 - s) % n] to the right with isend, receive parts[(r - s) % n] from the left, "
        "and wait for the isend. What you received is what you send at the next step.",
    ),
)

# --- ring_all_reduce ------------------------------------------------------------------------------

RING_ALL_REDUCE = Exercise(
    "ring_all_reduce",
    Experiment(
        cases({3: [(6,), (7,), (2,), (2, 4)], 2: [(5,)], 4: [(8,), (10,), (3, 2, 3)], 1: [(3,)]}),
        lambda lab, job: changed(lab.ring_all_reduce, brought(job, dist.get_rank())),
        lambda job, _: in_place([{"x": total(job)}] * job.ranks),
        judge=_WHOLE,
        shown=_WHOLE.shown,
        fields=lambda job, outcome: traffic.fields(job, outcome) | {"fewest": 2 * (job.ranks - 1)},
        words=said,
        tells=meant,
        holds="x holds the sum on every rank, for any shape and length; each rank sends 2(n − 1) messages of about an "
        "n-th of it, so 2(n − 1)/n tensors, in 2(n − 1) steps; on 1 to 4 ranks",
    ),
    misconceptions=misconceptions(
        not_in_place="x is as it was: the ring worked on a copy. x.view(-1) is x itself, seen flat.",
        mean="The sum was divided by {ranks}; all-reduce adds up, and whoever wants a mean divides.",
        swapped="The halves are swapped: first the sums are formed, by the reduce-scatter, and then they spread.",
        returns_nothing="A None is used as a tensor: both halves work in place and return nothing, so go on with the "
        "view itself.",
        half="Only one chunk holds the sum on each rank: the all-gather is missing.",
        no_gather="The second half adds, too: it is to pass the complete chunks on, as ring_all_gather does.",
        twice="Each rank's own numbers count twice: the sum is to replace x, not to be added to it.",
        rows="A tensor of shape {shape} was cut along its first axis into uneven chunks: give the ring a flat view, "
        "x.view(-1).",
        whole="Whole tensors go around: (n − 1)S bytes a rank, and a ring of chunks needs 2(n − 1)/n S.",
        hub="Every message goes through rank 0, whose row of the traffic is (n − 1)S bytes.",
        no_ring="The sums are right, but on a ring every rank sends to its neighbours only.",
        many="The sums are right, but a rank sent more than 2(n − 1) messages.",
        send_first="Every rank waits in send, and nobody receives: start the send with isend, receive, then wait for "
        "it.",
        serial=SERIAL,
        **TRAFFIC,
    ),
    hints=(
        "You have both halves, and both work in place: after ring_reduce_scatter, chunk (r + 1) mod n of the tensor is "
        "complete, and that is where ring_all_gather starts.",
        "flat = x.view(-1) is the same memory as x, seen as one long row. Give it to one half, and then to the other.",
    ),
    uses=("ring_reduce_scatter", "ring_all_gather"),
)
