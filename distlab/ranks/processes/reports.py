"""A rank's line to the notebook: what it reports goes out, the word to go and questions come in."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable


class Reports:
    """The rank's end of its connection to the notebook.

    Questions are answered by a thread of its own, because a rank is asked when its main thread is stuck. It is started
    below ``threading``, whose lists are the learner's.
    """

    def __init__(self, connection, answer: Callable[[], None], when_lost: Callable[[], None]):
        self._connection, self._answer, self._when_lost = connection, answer, when_lost
        self._may_go, self._is_lost = threading.Event(), threading.Event()

    def send(self, kind: str, *content) -> None:
        """Reports ("ready",), ("done", pickled value) or ("failed", Failure)."""
        self._connection.send((kind, *content))

    def wait_for_go(self) -> None:
        """Reports that this rank is in the process group, and waits until all are.

        Raises EOFError if the notebook has hung up.
        """
        _thread.start_new_thread(self._listen, ())
        self.send("ready")
        self._may_go.wait()
        if self._is_lost.is_set():
            raise EOFError("the notebook has closed its connection")

    def linger(self, seconds: float) -> None:
        """Stays until the notebook has hung up, at most ``seconds``."""
        self._is_lost.wait(seconds)

    def _listen(self) -> None:
        while True:
            try:
                (kind,) = self._connection.recv()
            except (EOFError, OSError):
                break
            if kind == "go":
                self._may_go.set()
            else:
                self._answer()
        self._is_lost.set()
        self._may_go.set()
        self._when_lost()
