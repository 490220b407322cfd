"""The check of make_stage: each rank builds its own layers, and never any other."""

from __future__ import annotations

from torch import nn

from distlab.course.exercise import Exercise
from distlab.course.kit.case import BOTH, Case, Job
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import misconceptions, shares
from distlab.course.kit.outcome import Outcome

SIZES = (2, 4), (1, 4), (3, 8), (3, 7), (4, 10)  # ranks, layers


class Numbered(nn.Module):
    """A layer that notes its place in the model when it runs."""

    def __init__(self, number: int):
        super().__init__()
        self.number = number

    def forward(self, numbers):
        return [*numbers, self.number]


def drive(lab, job: Job) -> dict:
    """On a rank: what ``make_stage`` returned, which layers run in it in order, and which were ever built."""
    built: list[int] = []
    stage = call(lab.make_stage, lambda number: built.append(number) or Numbered(number), job["num_layers"])
    if not isinstance(stage, nn.Sequential):
        return {"what is returned": type(stage).__name__}
    return {
        "what is returned": "Sequential",
        "the layers of each stage": stage([]),
        "the layers that were built": built,
    }


def expect(job: Job, came: list[dict]) -> list[dict]:
    """The layers of each rank."""
    mine = map(list, shares(job["num_layers"], job.ranks))
    whats = "what is returned", "the layers of each stage", "the layers that were built"
    return [dict(zip(whats, ("Sequential", layers, layers))) for layers in mine]


def fields(job: Job, outcome: Outcome | None) -> dict:
    """What came in the place of a Sequential."""
    return {"type": outcome.values[0]["what is returned"] if outcome else ""}


MAKE_STAGE = Exercise(
    "make_stage",
    Experiment(
        [Case(ranks, f" and {n} layers", dtypes=BOTH[:1], num_layers=n) for ranks, n in SIZES],
        drive,
        expect,
        fields=fields,
        holds="every layer is on one rank, in the model's order, in stages that differ by at most one layer; no rank "
        "built a layer of another's; with 1 to 4 ranks",
    ),
    misconceptions=misconceptions(
        everything="Every rank holds all {num_layers} layers, a copy of the whole model on each: a rank keeps its own "
        "stage only, or nothing is saved.",
        builds_all="The stages are right, but every rank built all {num_layers} layers first and then dropped most of "
        "them. A model that does not fit cannot be built whole: call make_layer for this rank's layers only.",
        strided="The layers are dealt out in turn, like cards. An activation would then cross to another rank after "
        "every layer: give each rank neighbouring layers.",
        backwards="The right layers, in the wrong order: the first layer of a stage comes first.",
        last_first="The stages are in reverse: rank 0 holds the first layers, the last rank the last ones.",
        dropped="The last layers are missing: {num_layers} layers do not divide by {ranks}, and the remainder is on "
        "no rank.",
        last_takes_rest="The last rank takes all that is left over. Spread it: stages differ by at most one layer.",
        short_first="Every layer is on one rank, but the shorter stages come first. my_rows gives the longer ranges to "
        "the first ranks, and the lab cuts everything in one way.",
        from_zero="Every rank counts its layers from 0, so all of them build the model's first layers: take the "
        "numbers in the range, not the numbers up to its length.",
        blocks="The first stages are filled up and the last ones get what is left: stages differ by at most one layer.",
        list="A stage must be callable: put the layers into nn.Sequential(*layers), not into a {type}.",
    ),
    hints=(
        "my_rows(num_layers, rank, world_size) is the range of this rank's layers. It was made for rows, and it does "
        "not mind what it counts.",
        "nn.Sequential(*(make_layer(i) for i in mine)), where mine is that range.",
    ),
)
