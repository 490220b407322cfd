"""Lab 06: a model cut by layers, activations and their gradients across ranks, and what its stages wait for."""

from __future__ import annotations

from distlab.course.checks.layer_partition.add_tied_gradients import ADD_TIED_GRADIENTS
from distlab.course.checks.layer_partition.backward_stage import BACKWARD_STAGE
from distlab.course.checks.layer_partition.forward_stage import FORWARD_STAGE
from distlab.course.checks.layer_partition.make_stage import MAKE_STAGE
from distlab.course.checks.layer_partition.partition_layers import PARTITION_LAYERS
from distlab.course.checks.layer_partition.partitioned_step import PARTITIONED_STEP
from distlab.course.checks.layer_partition.recv_activation import RECV_ACTIVATION
from distlab.course.checks.layer_partition.send_activation import SEND_ACTIVATION
from distlab.course.exercise import Prediction

LAB = "06_layer_partition"
EXERCISES = (
    MAKE_STAGE,
    SEND_ACTIVATION,
    RECV_ACTIVATION,
    FORWARD_STAGE,
    BACKWARD_STAGE,
    PARTITIONED_STEP,
    PARTITION_LAYERS,
    ADD_TIED_GRADIENTS,
)

_RANKS, _ROWS, _WIDTH = 4, 32, 64
_CUT = 4 * _ROWS * _WIDTH
_GPT = dict(hidden=768, tokens=1024, vocabulary=50_257)


def head_in_layers(hidden: int, tokens: int, vocabulary: int) -> float:
    """How many transformer layers the output layer costs: 2shV FLOPs against 24sh² + 4s²h."""
    return 2 * tokens * hidden * vocabulary / (24 * tokens * hidden**2 + 4 * tokens**2 * hidden)


PREDICTIONS = {
    "06.bytes": Prediction(
        [_CUT, _CUT],
        f"{_ROWS} rows of {_WIDTH} numbers of 4 bytes go forward, and a gradient of the same shape comes back. How "
        "many parameters there are does not matter.",
    ),
    "06.busy": Prediction(
        1 / _RANKS,
        "The stages work one after the other, so the step takes as long as on one rank; each of the 4 ranks works for "
        "a quarter of it.",
    ),
    "06.head": Prediction(
        round(head_in_layers(**_GPT), 1),
        "2shV over 24sh² + 4s²h is V / (12h + 2s) = 50,257 / 11,264.",
    ),
}
