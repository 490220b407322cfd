"""DrawnRun: what a learner's run() returns, a Run that can draw itself.

It stands above ``ranks``, ``machine`` and ``show``, so that none of them needs to know another.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from distlab.machine.hardware import Machine
from distlab.machine.machines import classroom
from distlab.ranks import launch
from distlab.ranks.outcome import Run
from distlab.recording import Recording

if TYPE_CHECKING:
    from distlab.show import KindsPicture, MemoryPicture, TimelinePicture, TrafficPicture


class DrawnRun(Run):
    """A finished run, to look at: each drawing is a text in a terminal, and a picture with that text in a notebook."""

    def timeline(
        self, machine: Machine | str = classroom, during: str = "", dtype: str | None = None
    ) -> TimelinePicture:
        """What each rank did when: as modelled on ``machine``, or as "measured" on this computer.

        ``during`` is a span's name: from its first begin to its last end on any rank. ``dtype`` ("bfloat16") sends
        messages as if their elements were of that type. ``.save("step.json")`` writes the timeline as a trace for
        ui.perfetto.dev and chrome://tracing, ``.save("step.png")`` as an image.
        """
        return _show().timeline(self._recorded(), machine, during, dtype)

    def traffic(self) -> TrafficPicture:
        """The bytes from rank to rank."""
        return _show().traffic(self._recorded())

    def bytes_by_kind(self) -> KindsPicture:
        """The messages of each rank and their bytes, by kind."""
        return _show().bytes_by_kind(self._recorded())

    def memory(self, rank: int = 0) -> MemoryPicture:
        """The bytes that a rank holds, by kind, over time."""
        return _show().memory(self._recorded(), rank)

    def _recorded(self) -> Recording:
        if self.recording is None:
            raise ValueError("There is nothing to draw: this run was not recorded (record=False).")
        return self.recording


def _show():
    """The room of pictures, opened at the first of them: matplotlib takes as long to import as some runs take."""
    from distlab import show

    return show


@functools.wraps(launch.run, assigned=("__doc__", "__annotations__"))  # shown to the learner as this one's
def run(fn, *args, **settings) -> DrawnRun:
    return DrawnRun(**vars(launch.run(fn, *args, **settings)))
