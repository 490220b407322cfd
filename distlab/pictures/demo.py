"""The README's second picture: a demo, driven to the state that says most."""

from __future__ import annotations

from distlab.demos.data_parallel import NUM_STEPS, draw
from distlab.show.board import Board
from distlab.show.look import MID, TEXT


def board() -> Board:
    """Data parallelism on four ranks that forget to divide: they agree, and no comparison of replicas finds it."""
    return draw(ranks=4, forget_to_divide=True, forget_to_broadcast=False, step=NUM_STEPS)


def svg() -> str:
    """The file. It stands in no notebook, whose colour of words it could take, and not every reader knows ``var``."""
    return board().svg().replace(TEXT, MID)
