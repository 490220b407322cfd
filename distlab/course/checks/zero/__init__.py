"""Lab 05: ZeRO, one optimizer shared by all ranks."""

from __future__ import annotations

from distlab.course.checks.zero.further import CLIP_SHARDED, PREFETCH, RESHARD
from distlab.course.checks.zero.gather import GATHER, RELEASE
from distlab.course.checks.zero.partition import PARTITION
from distlab.course.checks.zero.reduce_gradient import REDUCE_GRADIENT
from distlab.course.checks.zero.zero1 import ZERO1_BY_ALL_REDUCE, ZERO1_STEP
from distlab.course.checks.zero.zero2 import ZERO2_STEP
from distlab.course.exercise import Prediction
from distlab.machine.memory import FP32, MIXED, Recipe, bytes_by_kind, elements_sent

LAB = "05_zero"
EXERCISES = (
    PARTITION,
    ZERO1_BY_ALL_REDUCE,
    ZERO1_STEP,
    ZERO2_STEP,
    GATHER,
    RELEASE,
    REDUCE_GRADIENT,
    PREFETCH,
    CLIP_SHARDED,
    RESHARD,
)

_RANKS = 4


def _by_stage(recipe: Recipe) -> list[float]:
    return [sum(bytes_by_kind(stage, _RANKS, recipe)) for stage in range(4)]


PREDICTIONS = {
    "05.mixed": Prediction(
        _by_stage(MIXED),
        "Stage 0 holds 2 + 2 + 12; stage 1 cuts the 12 by 4, stage 2 the gradients' 2 as well, stage 3 all 16.",
    ),
    "05.fp32": Prediction(
        _by_stage(FP32), "4 + 4 + 8, of which stage 1 cuts the 8, stage 2 the gradients' 4 as well, stage 3 all 16."
    ),
    "05.forms": Prediction(
        2 + 1, "An all-reduce moves 2Ψ (N − 1)/N elements from each rank, and the all-gather of the weights Ψ more."
    ),
    "05.sends": Prediction(
        next(stage for stage in range(4) if elements_sent(1, stage, _RANKS) > elements_sent(1, 0, _RANKS)),
        "Stages 1 and 2 send what an all-reduce sends, 2Ψ. Stage 3 gathers the weights twice: 3Ψ, 1.5 times as much.",
    ),
}
