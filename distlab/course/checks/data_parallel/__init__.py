"""Lab 02: the five steps of data-parallel training, put together, and the shuffle that all ranks agree on."""

from __future__ import annotations

from distlab.course.checks.data_parallel.average_gradients import AVERAGE_GRADIENTS
from distlab.course.checks.data_parallel.compute_gradients import COMPUTE_GRADIENTS
from distlab.course.checks.data_parallel.epoch_indices import EPOCH_INDICES
from distlab.course.checks.data_parallel.replicate import REPLICATE
from distlab.course.checks.data_parallel.split_batch import SPLIT_BATCH
from distlab.course.checks.data_parallel.train_step import TRAIN_STEP
from distlab.course.checks.data_parallel.update import UPDATE
from distlab.course.exercise import Prediction

LAB = "02_data_parallel"
EXERCISES = (REPLICATE, SPLIT_BATCH, COMPUTE_GRADIENTS, AVERAGE_GRADIENTS, UPDATE, TRAIN_STEP, EPOCH_INDICES)

_WIDTHS = 64, 64, 10
_BYTES = sum(4 * (num_in + 1) * num_out for num_in, num_out in zip(_WIDTHS, _WIDTHS[1:]))


def _ring_bytes(num_bytes: int, ranks: int) -> float:
    """What one rank sends in a ring all-reduce."""
    return 2 * (ranks - 1) / ranks * num_bytes


PREDICTIONS = {
    "02.lr": Prediction(
        4, "The sum over 4 ranks is 4 times the mean, and plain SGD moves by lr × gradient: it acts like 4 × lr."
    ),
    "02.bytes": Prediction(
        round(_ring_bytes(_BYTES, 4)),
        f"S is {_BYTES // 4:,} gradients of 4 bytes, {_BYTES:,}; a ring over 4 ranks sends 2 × 3/4 of it.",
    ),
    "02.ranks": Prediction(
        _ring_bytes(_BYTES, 4) / _ring_bytes(_BYTES, 2),
        "2 (W − 1) / W is 1 for two ranks and 1.5 for four: compute a rank halves, and what it sends grows.",
    ),
}
