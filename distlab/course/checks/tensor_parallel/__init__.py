"""Lab 08: the matrices themselves are cut, and where the parts of a sum meet."""

from __future__ import annotations

from distlab.course.checks.tensor_parallel.attention import PARALLEL_ATTENTION, SHARD_QKV
from distlab.course.checks.tensor_parallel.linear import COLUMN_PARALLEL_LINEAR, PARALLEL_MLP, ROW_PARALLEL_LINEAR
from distlab.course.checks.tensor_parallel.loss import GLOBAL_MAX, TARGET_LOGIT, VOCAB_PARALLEL_CROSS_ENTROPY
from distlab.course.checks.tensor_parallel.pairs import COPY_TO_GROUP, REDUCE_FROM_GROUP
from distlab.course.checks.tensor_parallel.sequence import GATHER_SEQUENCE, REDUCE_SCATTER_SEQUENCE
from distlab.course.checks.tensor_parallel.vocabulary import VOCAB_PARALLEL_EMBEDDING
from distlab.course.exercise import Prediction

LAB = "08_tensor_parallel"
EXERCISES = (
    COPY_TO_GROUP,
    REDUCE_FROM_GROUP,
    COLUMN_PARALLEL_LINEAR,
    ROW_PARALLEL_LINEAR,
    PARALLEL_MLP,
    SHARD_QKV,
    PARALLEL_ATTENTION,
    VOCAB_PARALLEL_EMBEDDING,
    GLOBAL_MAX,
    TARGET_LOGIT,
    VOCAB_PARALLEL_CROSS_ENTROPY,
    GATHER_SEQUENCE,
    REDUCE_SCATTER_SEQUENCE,
)


def elements_a_layer(ranks: int, all_reduces: int = 4) -> float:
    """What one rank sends for one layer, forward and backward, in units of B·T·D elements, around rings."""
    return all_reduces * 2 * (ranks - 1) / ranks


_WIDTH, _VOCABULARY = 12288, 50_257

PREDICTIONS = {
    "08.mlp": Prediction(
        1, "The column cut gives each rank whole columns, GELU needs no others, and the row cut's parts meet once."
    ),
    "08.rows": Prediction(
        [_WIDTH, _WIDTH // 2, 0],
        "Half of 3 × 12,288 rows are 18,432: all 12,288 of Q, the first 6,144 of K, none of V. No head on this rank "
        "has its V.",
    ),
    "08.elements": Prediction(
        [elements_a_layer(ranks) for ranks in (2, 4, 8)],
        "4 all-reduces of BTD elements, each 2(t − 1)/t: 8(t − 1)/t. It grows towards 8 while the compute of a rank "
        "halves each time.",
    ),
    "08.logits": Prediction(
        round(_VOCABULARY / 3),
        "50,257 logits a place against 3 numbers: the maximum, the sum of exponentials, and the target's logit.",
    ),
    "08.norms": Prediction(
        [10, 10],
        "They stay: each of t ranks normalises, adds and drops the same whole tensors. Only the 24 and the attention "
        "are divided by t.",
    ),
}
