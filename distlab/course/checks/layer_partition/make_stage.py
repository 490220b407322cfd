"""The check of make_stage: each rank builds its own layers, and never any other."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from distlab.course.checks.layer_partition.common import borders, misconceptions, named, with_ranks
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import RankFailed, Trial


class Numbered(nn.Linear):
    """A layer that knows its place in the model."""

    def __init__(self, number: int):
        super().__init__(2, 2)
        self.number = number


def built(make_stage, num_layers: int) -> dict:
    """On a rank: what ``make_stage`` returned, which layers stand in it in order, and which were ever built."""
    numbers = []

    def make_layer(number: int) -> nn.Module:
        numbers.append(number)
        return Numbered(number)

    stage = make_stage(make_layer, num_layers)
    modules = stage.modules() if isinstance(stage, nn.Module) else ()
    held = [module.number for module in modules if isinstance(module, Numbered)]
    return dict(type=type(stage).__name__, held=held, built=numbers)


def check_make_stage(learners: Callable, trial: Trial) -> str:
    """Tries ``make_stage`` where the ranks divide the layers, and where they do not."""
    for ranks, num_layers in ((2, 4), (1, 4), (3, 8), (4, 10)):
        case = f"{with_ranks(ranks)} and {num_layers} layers"
        try:
            by_rank = trial.run(case, built, learners, num_layers, ranks=ranks)
        except RankFailed as failed:
            raise named(failed, {"no-my-rows": "name 'my_rows' is not defined"}) from None
        _check(case, by_rank, num_layers)
    return (
        "every layer is on one rank, in the model's order, in stages that differ by at most one layer; no rank built "
        "a layer of another's; with 1 to 4 ranks"
    )


def _check(case: str, by_rank: list[dict], num_layers: int) -> None:
    ranks = len(by_rank)
    want = [list(layers) for layers in borders(num_layers, ranks)]
    beliefs = _wrong_layers(num_layers, ranks)
    fields = dict(ranks=ranks, num_layers=num_layers, mine=len(want[0]))
    for rank, came in enumerate(by_rank):
        if came["type"] != "Sequential":
            known = ("list",) if came["type"] in ("list", "ModuleList", "tuple", "generator") else ()
            raise Wrong(case, f"rank {rank}: expected an nn.Sequential, got a {came['type']}", known, **came)
    compare(f"{case}, the layers of each stage", [came["held"] for came in by_rank], want, beliefs, **fields)
    everything = [list(range(num_layers))] * ranks
    compare(f"{case}, the layers that were built", [came["built"] for came in by_rank], want,
            {"builds-all": everything}, **fields)  # fmt: skip


def _wrong_layers(n: int, ranks: int) -> dict[str, list[list[int]]]:
    size, block, places = n // ranks, -(-n // ranks), range(ranks)
    return {
        "everything": [list(range(n))] * ranks,
        "strided": [list(range(n))[rank::ranks] for rank in places],
        "backwards": [list(layers)[::-1] for layers in borders(n, ranks)],
        "dropped": [list(range(rank * size, (rank + 1) * size)) for rank in places],
        "last-takes-rest": [list(range(rank * size, n if rank == ranks - 1 else (rank + 1) * size)) for rank in places],
        "blocks": [list(range(n))[rank * block : (rank + 1) * block] for rank in places],
        "short-first": [list(range(n - layers.stop, n - layers.start)) for layers in reversed(borders(n, ranks))],
        "from-zero": [list(range(len(layers))) for layers in borders(n, ranks)],
        "last-first": [list(layers) for layers in reversed(borders(n, ranks))],
    }


MAKE_STAGE = Exercise(
    "make_stage",
    check_make_stage,
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
        no_my_rows="my_rows is lab 00's, and the cell that fetches it has not run: run the cell with "
        'from_lab("start_here").my_rows above this exercise first.',
        blocks="The first stages are filled up and the last ones get what is left: stages differ by at most one layer.",
        list="A stage must be callable: put the layers into nn.Sequential(*layers), not into a {type}.",
    ),
    hints=(
        "my_rows(num_layers, rank, world_size) is the range of this rank's layers. It was made for rows, and it does "
        "not mind what it counts.",
        "nn.Sequential(*(make_layer(i) for i in mine)), where mine is that range.",
    ),
)
