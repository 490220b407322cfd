"""An interrupt of a cell: one ends what runs, later ones wait for the end of the clean-up, and only words are shown."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading

_AGAIN = 0.01  # seconds after which an interrupt that Python has swallowed comes once more


class Interrupted(KeyboardInterrupt):
    """The learner stopped the cell; the message says where everything stood."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the message, without the lines of the runner."""
        return [str(self)]


@contextlib.contextmanager
def put_off():
    """Lets an interrupt come when the block is over and not within it: one that starts a process would lose it."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
        yield  # no interrupt comes here, or none of Python's
        return
    came = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


class OneInterrupt:
    """While it is entered, only the first interrupt raises KeyboardInterrupt; what the others would end is a clean-up.

    What leaves it by an interrupt is an Interrupted. It changes nothing where interrupts are not Python's to handle:
    in other threads than the main one, or where the program has a handler of its own. ``hold()`` puts off the first
    one as well, until the end. ``says`` is the message where nothing more is known.

    What is raised in a ``__del__`` or a callback of a weak reference is printed by Python and gone, and imports have
    such callbacks: an interrupt that falls there comes again.
    """

    def __init__(self, says: str):
        self._says = says
        self._came = self._is_held = self._is_placed = False

    def __enter__(self) -> OneInterrupt:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
            self._hook, sys.unraisablehook = sys.unraisablehook, self._not_lost
            self._is_placed = True
        return self

    def _not_lost(self, unraisable) -> None:
        """Takes the place of sys.unraisablehook, which is told of what Python swallows."""
        if unraisable.exc_type is not KeyboardInterrupt:
            self._hook(unraisable)
            return
        self._came = False
        threading.Timer(_AGAIN, os.kill, (os.getpid(), signal.SIGINT)).start()

    def _handle(self, *_) -> None:
        has_come, self._came = self._came, True
        if not has_come and not self._is_held:
            raise KeyboardInterrupt

    def hold(self, says: str) -> None:
        """Puts off what comes from now on: nothing is left to end but what ends by itself."""
        self._is_held, self._says = True, says

    def __exit__(self, kind, error, _) -> None:
        if self._is_placed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.unraisablehook = self._hook
        if isinstance(error, Interrupted) or (error is None and not (self._came and self._is_held)):
            return
        if error is None or isinstance(error, KeyboardInterrupt):
            raise Interrupted(self._says) from None
