"""Lab 07: schedules as data, who is stuck in them, GPipe and 1F1B."""

from __future__ import annotations

from itertools import count

from distlab.course.checks.pipeline.async_mail import ASYNC_MAIL
from distlab.course.checks.pipeline.bubble_fraction import BUBBLE_FRACTION, bubble
from distlab.course.checks.pipeline.gpipe_schedule import GPIPE_SCHEDULE
from distlab.course.checks.pipeline.interleaved_schedule import INTERLEAVED_SCHEDULE
from distlab.course.checks.pipeline.one_f_one_b_schedule import ONE_F_ONE_B_SCHEDULE
from distlab.course.checks.pipeline.run_backward import RUN_BACKWARD
from distlab.course.checks.pipeline.run_forward import RUN_FORWARD
from distlab.course.checks.pipeline.walk import WALK
from distlab.course.exercise import Prediction

LAB = "07_pipeline"
EXERCISES = (
    GPIPE_SCHEDULE,
    WALK,
    BUBBLE_FRACTION,
    RUN_FORWARD,
    RUN_BACKWARD,
    ASYNC_MAIL,
    ONE_F_ONE_B_SCHEDULE,
    INTERLEAVED_SCHEDULE,
)


def _fewest(num_stages: int, most: float) -> int:
    """The smallest number of micro-batches whose bubble is at most ``most``."""
    return next(m for m in count(1) if bubble(num_stages, m) <= most)


PREDICTIONS = {
    "07.backward": Prediction(
        round(bubble(4, 8), 4),
        "Both the idle time and the wall time grow by the same factor: the share does not depend on how long a forward "
        "or a backward takes, only on p and m.",
    ),
    "07.tenth": Prediction(
        [_fewest(4, 0.1), _fewest(8, 0.1)],
        "(p - 1) / (m + p - 1) is at most 1/10 if m is at least 9 (p - 1).",
    ),
    "07.messages": Prediction(
        2 * 8, "8 activations to rank 2, and 8 gradients to rank 0. Rank 0 sends 8 in all, and so does rank 3."
    ),
    "07.finish": Prediction(
        "no", "Each waits in its send, and the receive that would let the other go on comes only after it."
    ),
    "07.same": Prediction(
        [round(bubble(4, 8), 4), min(8, 4)],
        "The bubble is GPipe's, (p - 1) / (m + p - 1). But a stage holds at most p micro-batches instead of all m.",
    ),
    "07.slow": Prediction(
        "GPipe", "1F1B has at most p micro-batches on their way, and each now takes longer to come back."
    ),
}
