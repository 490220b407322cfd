"""The check of walk: who is stuck where, in schedules that finish and in schedules that do not."""

from __future__ import annotations

import re
from collections.abc import Sequence

from distlab.course.checks.pipeline.common import ONE
from distlab.course.exercise import Exercise
from distlab.course.kit.case import Case, Job
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import misconceptions

_GPIPE = "F0 SendF0 F1 SendF1 RecvB0 B0 RecvB1 B1", "RecvF0 F0 RecvF1 F1 B0 SendB0 B1 SendB1"
_IN_TURN = _GPIPE[0], "RecvF0 F0 B0 SendB0 RecvF1 F1 B1 SendB1"
_RECEIVE_FIRST = "RecvB0 F0 SendF0 B0", "RecvF0 F0 B0 SendB0"
_CHAIN = "F0 SendF0 RecvB0 B0", *["RecvF0 F0 SendF0 RecvB0 B0 SendB0"] * 2, "RecvF0 F0 B0 SendB0"
_NO_F0 = "SendF0 RecvB0 B0 F0", *_CHAIN[2:]
_NO_GRADIENT = _CHAIN[0], "RecvF0 F0 SendF0", _CHAIN[3]
_TWO_CHUNKS = (
    "F0 SendF0 RecvF0.1 F0.1 SendF0.1 RecvB0.1 B0.1 SendB0.1 RecvB0 B0",
    "RecvF0 F0 SendF0 RecvF0.1 F0.1 B0.1 SendB0.1 RecvB0 B0 SendB0",
)
# In words, the steps by rank, whether messages block, and where ranks are stuck.
Question = tuple[str, Sequence[str], bool, dict[int, str]]
_TWO: list[Question] = [
    ("GPipe", _GPIPE, False, {}),
    ("one forward and one backward in turn", _IN_TURN, False, {}),
    ("GPipe", _GPIPE, True, {}),
    ("one forward and one backward in turn", _IN_TURN, True, {0: "SendF1", 1: "SendB0"}),
    ("two ranks that receive first", _RECEIVE_FIRST, False, {}),
    ("two ranks that receive first", _RECEIVE_FIRST, True, {0: "RecvB0", 1: "RecvF0"}),
    ("two chunks a rank", _TWO_CHUNKS, True, {}),
]
_MORE: list[Question] = [
    ("four stages, one after the other", _CHAIN, False, {}),
    ("four stages, one after the other", _CHAIN, True, {}),
    ("F0 after its SendF0 on rank 0", _NO_F0, False, {0: "SendF0", 1: "F0", 2: "F0"}),
    ("no backward on rank 1", _NO_GRADIENT, False, {0: "B0"}),
    ("no backward on rank 1", _NO_GRADIENT, True, {0: "RecvB0", 2: "SendB0"}),
]


def drive(lab, job: Job) -> dict:
    """On a rank: where ranks are stuck, as text, for each question."""
    found = {}
    for words, by_rank, blocking, _ in job["questions"]:
        schedule = [[_step(lab.Step, text) for text in steps.split()] for steps in by_rank]
        found[_asked(words, blocking)] = _told(call(lab.walk, schedule, blocking))
    return found


def _step(Step, text: str) -> tuple:
    kind, micro, chunk = re.fullmatch(r"([A-Za-z]+)(\d+)(?:\.(\d+))?", text).groups()
    return Step(kind, int(micro), int(chunk or 0))


def _asked(words: str, blocking: bool) -> str:
    return f"{words}, {'messages that block' if blocking else 'messages that do not block'}"


def _told(stuck: object) -> str:
    """ "rank 0 in SendF1, rank 1 in SendB0"; of what is no dict, what it is."""
    if not isinstance(stuck, dict):
        return " ".join(repr(stuck).split())[:60]
    return ", ".join(f"rank {rank} in {step!r}" for rank, step in sorted(stuck.items(), key=str)) or "all finish"


def expect(job: Job, came: list[dict]) -> list[dict]:
    """The answers, which are the same on every rank."""
    return [{_asked(words, blocks): _told(_Stuck(at)) for words, _, blocks, at in job["questions"]}] * job.ranks


class _Stuck(dict):
    """Steps as text, told as Steps are."""

    def __init__(self, at: dict[int, str]):
        super().__init__({rank: _Text(step) for rank, step in at.items()})


class _Text(str):
    def __repr__(self) -> str:
        return str(self)


WALK = Exercise(
    "walk",
    Experiment(
        [
            Case(2, " that ask about schedules of two stages", dtypes=ONE, questions=_TWO),
            Case(3, " that ask about schedules of more stages", dtypes=ONE, questions=_MORE),
        ],
        drive,
        expect,
        "finds who is stuck and where, with messages that block and that don't; 2 to 4 stages, also several a rank",
        needs=("Step",),
    ),
    misconceptions=misconceptions(
        once="It goes over the ranks once. What a later rank does lets an earlier one go on, as a gradient does that "
        "comes back from the last stage to the first. Go over them again until nothing has moved.",
        no_until="A rank goes on although what it waits for has not happened: a send that blocks is left only when its "
        "receive has been reached.",
        no_before="Steps begin although what they need has not happened: B0 before its gradient has come, SendF0 "
        "before F0.",
        until_first="A step counts as happened only when the rank can go on from it. Then two ends of a message that "
        "blocks each wait for the other to happen first. A step happens when it begins.",
        gives_up="It stops at the first rank that can't go on. Others may still move, and then this one can, too.",
        positions="These are places in the lists; the steps themselves are asked for.",
        one_of_them="Only one of the ranks that are stuck is returned.",
        everyone="Ranks that reached the end of their lists are in it, too: they are not stuck.",
    ),
    hints=(
        "Keep for each rank how many of its steps it has left behind, and one set of all that has happened. When can "
        "you stop: how do you notice that no rank will ever move again?",
        "For each rank, in a loop: if before <= happened, add what happens; if that is in the set and until <= "
        "happened, go on to the next step, else leave the loop. Repeat over all ranks until a whole round changed "
        "nothing.",
    ),
)
