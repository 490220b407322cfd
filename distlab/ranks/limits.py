"""How long a run may take: seconds on the clock, or, on a machine that others use too, seconds of work done."""

from __future__ import annotations

import time

import psutil

_LOOK_EVERY = 0.5
_STANDSTILL = 2.0
_FACTOR = 10


class ClockLimit:
    """Passed when ``seconds`` have gone by since :meth:`start`."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.start()

    def start(self) -> None:
        """Starts counting: the ranks are ready."""
        self._started = time.monotonic()

    def passed(self, pids: list[int]) -> bool:
        """Whether the time is up for the processes ``pids``."""
        return self.elapsed() > self.seconds

    @property
    def words(self) -> str:
        """What is said of a run that has passed it."""
        return f"not finished after {self.seconds:g} s (timeout={self.seconds:g})"

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started


class WorkLimit(ClockLimit):
    """Passed when ``seconds`` have gone by *and* the ranks have worked that long or do nothing: slow is not stuck.

    ``work`` are the seconds that they may work, all together, if not ``seconds``.
    """

    def __init__(self, seconds: float, work: float = 0.0):
        super().__init__(seconds)
        self._most_work = work or seconds
        self._work, self._looked, self._moved = 0.0, 0.0, time.monotonic()

    def passed(self, pids: list[int]) -> bool:
        """Whether the processes ``pids`` have used up the time, or stand still after it."""
        now = time.monotonic()
        if now - self._looked > _LOOK_EVERY:
            self._looked, work = now, sum(map(_cpu_seconds, pids))
            if work > self._work + 0.01:
                self._work, self._moved = work, now
        used_up = self._work > self._most_work or self.elapsed() > _FACTOR * self.seconds
        return super().passed(pids) and (used_up or now - self._moved > _STANDSTILL)

    @property
    def words(self) -> str:
        """As :meth:`ClockLimit.words`: nobody has set this limit, and the clock may show more."""
        return f"not finished after {self.seconds:g} s of work"


def _cpu_seconds(pid: int) -> float:
    try:
        return sum(psutil.Process(pid).cpu_times()[:2])
    except psutil.Error:
        return 0.0  # it has ended
