"""The check of AsyncMail: begins at once, waits before use, and lets go at the end."""

from __future__ import annotations

import re
from collections import deque
from itertools import product

import torch
import torch.distributed as dist

from distlab.course.exercise import Exercise, Wrong
from distlab.course.kit.case import Case, Job
from distlab.course.kit.driving import call, under_way
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import misconceptions
from distlab.course.kit.outcome import Outcome
from distlab.course.trial import Trial
from distlab.events import Span, Wait
from distlab.ranks.watching.spans import span

MICROS = [(micro, chunk) for micro in range(2) for chunk in range(2)]
STEPS = [(which, *micro) for micro in MICROS for which in "FB"]
BACKWARDS_FIRST = [(which, *micro) for micro in MICROS for which in "BF"]
READ, TAKEN, LEFT = "read", "what was taken", "what is left after close()"
EXTRA = "tensors that are still in the mail after take()"
GONE = "sent tensors that were not in the mail any more before close()"
_SAID = {
    "unwaited-send": "Work of its isend|isends? .*never waited for",
    "unwaited-receive": "Work of its irecv|irecvs? .*never waited for",
    "twice": "was waited for before",
    "receive-first": r"each (wait )?to receive from the .*\n.*(\.recv\(|irecv\(.*\.wait\()",
    "waits-for-all": r"each (wait )?to receive from the .*\n.*irecv\(",  # begun only: it is take() that waits
}


def value(job: Job, again: bool, step: tuple[str, int, int], rank: int) -> torch.Tensor:
    """What a rank sends: a hundred for each rank, and the tens say of which kind."""
    which, micro, chunk = step
    code = 10_000 * (job.seed % 7) + 1000 * again + 100 * rank + 10 * "FB".index(which) + 2 * micro + chunk
    return torch.arange(3).to(job.dtype) / 4 + code


def drive(lab, job: Job) -> dict:
    """On a rank: two steps with one mail, in which it sends to both neighbours on a ring and receives from both."""
    mail = lab.AsyncMail()
    return _of_step(lab, job, mail, again=False) | _of_step(lab, job, mail, again=True)


def _of_step(lab, job: Job, mail, again: bool) -> dict:
    rank, taken = dist.get_rank(), {}

    def send(which: str, *micro: int) -> None:
        step = lab.Step("Send" + which, *micro)
        mail.boxes[step] = value(job, again, (which, *micro), rank)
        call(mail.send, step)

    def receive(which: str, *micro: int) -> None:
        call(mail.receive, lab.Step("Recv" + which, *micro), torch.full((3,), -1.0, dtype=job.dtype), changes=(1,))

    def take(which: str, *micro: int) -> None:
        room = call(mail.take, lab.Step("Recv" + which, *micro))
        with span(READ):  # at once: now it must be there
            taken[_named(which, *micro)] = room + 0 if isinstance(room, torch.Tensor) else room

    def do(*actions, kinds: str = "FB", micros=range(2), steps=STEPS) -> None:
        for step in steps:
            for action in actions if step[0] in kinds and step[1] in micros else ():
                action(*step)

    if job["sends_first"]:  # each is taken before the next is asked for: others are still on their way
        do(send, steps=BACKWARDS_FIRST)
        for kind in "BF":
            do(receive, take, kinds=kind)
    elif job.ranks > 2:  # all are asked for before any is sent, and some are taken before others are sent
        do(receive)
        for kinds, micro in product("FB", range(2)):
            do(send, kinds=kinds, micros=[micro])
            do(take, kinds=kinds, micros=[micro])
    else:  # what has no tag fills the rooms of both kinds
        do(receive)
        do(send, steps=BACKWARDS_FIRST)
        do(take)
    held = tensors_in(mail)
    extra = [name for name, room in taken.items() if any(_equal(tensor, room) for tensor in held)]
    sent = {tensor.data_ptr() for tensors in under_way() for tensor in tensors.read}
    held = [tensor for tensor in held if tensor.data_ptr() in sent]  # not a copy of what was sent
    gone = [_named(*step) for step in STEPS if not any(torch.equal(t, value(job, again, step, rank)) for t in held)]
    call(mail.close)
    left = [f"{len(kept)} in self.{name}" for name, kept in vars(mail).items() if _is_container(kept) and kept]
    return _in_words(again, taken, gone, extra, left)


def _equal(one: torch.Tensor, other: object) -> bool:
    return isinstance(other, torch.Tensor) and torch.equal(one, other)


def _in_words(again: bool, taken: dict, gone: list, extra: list, left: list) -> dict:
    found = {TAKEN: taken, GONE: gone, EXTRA: extra, LEFT: left}
    return {f"{what} of the second step" if again else what: value for what, value in found.items()}


def _named(which: str, micro: int, chunk: int) -> str:
    return f"{which}{micro}.{chunk}"


def _is_container(kept: object) -> bool:
    return isinstance(kept, dict | list | tuple | set | deque)


def tensors_in(kept: object, depth: int = 4) -> list[torch.Tensor]:
    """All tensors in containers and objects inside one another; not those that a Work may hold."""
    if isinstance(kept, torch.Tensor):
        return [kept]
    if not _is_container(kept):
        kept = {} if isinstance(kept, dist.Work) else getattr(kept, "__dict__", {})
    each = list(kept.values() if hasattr(kept, "values") else kept)
    return [tensor for inner in each for tensor in tensors_in(inner, depth - 1)] if depth else []


def expect(job: Job, came: list[dict]) -> list[dict]:
    """Forwards come from the left, backwards from the right; two ranks are each other's left and right."""

    def taken(rank: int, again: bool) -> dict:
        ways = {"F": -1, "B": 1}
        return {_named(*step): value(job, again, step, (rank + ways[step[0]]) % job.ranks) for step in STEPS}

    both = (False, True)
    steps = [[_in_words(again, taken(rank, again), [], [], []) for again in both] for rank in range(job.ranks)]
    return [first | second for first, second in steps]


def judge(job: Job, outcome: Outcome):
    """What is taken was waited for before, and not only in close()."""
    for rank, events in enumerate(outcome.events):
        ids = {message.id for message in outcome.messages(rank) if message.kind == "recv"}
        waited = read = early = 0
        for event in events:
            waited += type(event) is Wait and event.id in ids
            if type(event) is Span and event.name == READ:
                read += 1
                early += waited < read
        if early:
            yield "tensors that take() returned before a wait for them", f"rank {rank}: expected 0, got {early}"


class _Mails(Experiment):
    """Knows some mistakes by what the runner says of a Work: which rank it says it of is chance, and so no patch's."""

    def __call__(self, learners, trial: Trial) -> str:
        try:
            return super().__call__(learners, trial)
        except Wrong as wrong:
            said = "\n".join([wrong.detail, *trial.loose_ends])
            ids = wrong.believed or tuple(id for id, words in _SAID.items() if re.search(words, said))[:1]
            raise Wrong(wrong.case, wrong.detail, ids, wrong.general, wrong.plain, **wrong.fields) from None


def case(ranks: int, sends_first: bool) -> Case:
    """Ranks on a ring."""
    return Case(ranks, f" that all {'send' if sends_first else 'receive'} first", sends_first=sends_first)


ASYNC_MAIL = Exercise(
    "AsyncMail",
    _Mails(
        [case(ranks, sends_first) for ranks in (3, 2, 4) for sends_first in (True, False)],
        drive,
        expect,
        judge=judge,
        needs=("Step",),
        named={GONE: "let-go", EXTRA: "hoards", LEFT: "not-forgotten"},
        holds="sends and receives only begin, take waits, close waits for the rest; 2 to 4 ranks, whoever begins",
    ),
    misconceptions=misconceptions(
        send_first="send() waits until the message has been received, and all ranks sit there: it is only to begin, "
        "with isend, and close() waits.",
        receive_first="Every rank waits to receive, and nobody has sent: receive() is only to begin, with irecv, and "
        "take() waits. send() begins at once, not later.",
        waits_for_all="take() waits for more than its own message: ranks wait for one another if what they also wait "
        "for is sent, or received, only after this one has been taken.",
        unwaited_send="The Work of an isend was never waited for: the tensor may be let go only after its wait(). "
        "Keep each pair of Work and tensor in self.leaving; close() waits for all of them.",
        unwaited_receive="The Work of an irecv was never waited for: the tensor may be read only after its wait(). "
        "Keep the Work in self.arriving; take() waits for it.",
        let_go="A tensor that was sent is kept nowhere until close(), or only a copy of it is: its memory can be used "
        "anew while it is still on its way. Keep the one that isend was given beside its Work in self.leaving.",
        twice="A Work is waited for a second time: take() and close() must forget the Works that they have waited for, "
        "since the mail is used for the next step, too.",
        not_forgotten="Works that were waited for stay in the mail, and with them their tensors: take() pops its Work "
        "from self.arriving, and close() leaves self.leaving empty.",
        hoards="Tensors stay in self.boxes after they were sent or taken, and keep their memory: pop them.",
        no_tag="An activation was taken for a gradient: here both come from the same rank. What has one tag is handed "
        "over in the order in which it was sent, whatever it is meant for; with the tag, on both sides, each kind has "
        "an order of its own.",
    ),
    hints=(
        "isend and irecv take the same arguments as send and recv, return at once, and give a Work, whose wait() "
        "returns when it is done. Where must each Work be kept, and which method waits for it?",
        "send: self.leaving.append((dist.isend(tensor, peer, tag=tag), tensor)). receive: self.arriving[step] = "
        "dist.irecv(room, peer, tag=tag). take: self.arriving.pop(step).wait(). close: wait for each in self.leaving.",
    ),
)
