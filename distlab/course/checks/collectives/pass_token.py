"""The check of pass_token: ranks take turns, and each learns the sum of those before it and itself."""

from __future__ import annotations

import torch
import torch.distributed as dist

from distlab.course.checks.collectives import traffic
from distlab.course.checks.collectives.bringing import FAILURES, TRAFFIC, brought, cases, few_messages
from distlab.course.checks.collectives.coding import meant, said
from distlab.course.exercise import Exercise
from distlab.course.kit.case import Job
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import misconceptions
from distlab.course.kit.outcome import Outcome


def drive(lab, job: Job) -> dict:
    """On a rank: what ``pass_token`` returns, and whether that is what it was given."""
    x = brought(job, dist.get_rank())
    with few_messages():
        result = call(lab.pass_token, x)
    is_x = isinstance(result, torch.Tensor) and result.data_ptr() == x.data_ptr()
    return {"the result": result, "the result is x itself": is_x}


def expect(job: Job, came: list[dict]) -> list[dict]:
    """Rank r's is the sum over ranks 0 to r, in a new tensor."""
    sums = [sum(brought(job, other) for other in range(rank + 1)) for rank in range(job.ranks)]
    return [{"the result": each, "the result is x itself": False} for each in sums]


def _to_the_next(job: Job, outcome: Outcome):
    for rank, sent_to in enumerate(traffic.peers(outcome)):
        if sent_to != list(range(rank + 1, min(rank + 2, job.ranks))):
            wanted = f"rank {rank + 1}, once" if rank < job.ranks - 1 else "nobody"
            got = ", ".join(map(str, sent_to)) or "nobody"
            return "line", "whom ranks send to", f"expected rank {rank} to send to {wanted}; it sent to {got}"
    return None


_JUDGE = traffic.Judge(traffic.no_hub, _to_the_next)

PASS_TOKEN = Exercise(
    "pass_token",
    Experiment(
        cases({3: [(1,), (2, 3), (5,)], 2: [(3,)], 4: [(2, 2)], 1: [(2,)]}),  # 3: the fewest that tell mistakes apart
        drive,
        expect,
        judge=_JUDGE,
        shown=_JUDGE.shown,
        fields=traffic.fields,
        words=said,
        tells=meant,
        holds="rank r returns the sum over ranks 0 to r, and every rank but the last sends once, to the next; "
        "1 to 4 ranks",
    ),
    misconceptions=misconceptions(
        own_only="Each rank passes on its own number only, so what came before it is lost.",
        not_added="Rank 0's number arrives everywhere, and nobody adds its own before passing it on.",
        received="Each rank returns what it received; its own number belongs to the sum, too.",
        alone="Every rank returns its own number: what it received was not added.",
        total="Every rank returns the sum over all ranks; rank r is to see ranks 0 to r only.",
        changes="It changed the tensor that it was given; add in a copy, such as x.clone().",
        itself_returned="Some rank returns x itself: whoever then changes the result changes x, too. Return x.clone().",
        backwards="The token goes from the last rank to the first; rank r is to see ranks 0 to r.",
        circle="The last rank sends to rank 0, which never receives: the token goes along a line, not in a circle.",
        line="The sums are right, but the token is to go along the line: each rank sends once, to the next, and the "
        "last one to nobody.",
        receive_first="All ranks receive first, so nobody starts: rank 0 is to send without receiving.",
        outside="A rank is named which is not there: the first rank has nobody before it, the last nobody after it.",
        hub="Every message goes through rank 0; each rank is to pass the token to its neighbour.",
        **FAILURES,
        **TRAFFIC,
    ),
    hints=(
        "Two questions decide what a rank does: is there a rank before me (rank > 0) to receive from, and one after "
        "me (rank < world - 1) to send to? Rank 0 answers no to the first, the last rank to the second.",
        "Start with token = x.clone(). If a rank is before you, receive into torch.empty_like(x) from rank - 1 and add "
        "it to the token. Then, if a rank is after you, send the token to rank + 1. Return the token.",
    ),
)
