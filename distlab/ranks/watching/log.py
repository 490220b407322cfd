"""The rank's own account of what happens: each event is written before the rank acts, so that it survives a crash."""

from __future__ import annotations

import contextlib
import io
import itertools
import marshal
import os
import struct
import sys
import threading
import time
import types
from pathlib import Path

from distlab.events import KINDS, Compute, Done, Memory
from distlab.ranks.cells import Source, is_learners
from distlab.ranks.watching.counting import OperatorCounter

_NOTHING_TO_HIDE = contextlib.nullcontext()
_SHORT = 20e-6  # seconds: what passes between two events, when no operator ran
_LENGTH = struct.Struct("<I")
_EVENT_KINDS = tuple(KINDS.values())
_NUMBERS = {kind: number for number, kind in enumerate(_EVENT_KINDS)}
_OTHERS = ("place", "group", "note", "threads")
_PLACE, _GROUP, _NOTE, _THREADS = range(len(_EVENT_KINDS), len(_EVENT_KINDS) + len(_OTHERS))


class Log:
    """Writes events to a file that the notebook's process reads while the rank runs.

    Any thread may write: each record is one write to a file that is open for appending. Only the thread that made the
    log, the rank's main one, has its compute counted.
    """

    def __init__(self, path: str, sources: dict[str, Source], started: float, counter: OperatorCounter | None = None):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._sources, self._started, self.counter = sources, started, counter
        self._main = threading.get_ident()
        self._busy_since = self.now()
        self._places: dict[tuple[types.CodeType, int], int] = {}
        self._numbering = threading.Lock()
        self._is_learners: dict[types.CodeType, bool] = {}
        self._kept: dict[int, object] = {}
        self._ids = itertools.count(1)
        self._last_group = self.open_spans = 0

    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._started

    def write(self, event) -> None:
        """Writes one event at once, after the compute that came before it."""
        kind, thread = type(event), threading.get_ident()
        if thread != self._main:
            os.write(self._file, _framed((_NUMBERS[kind], thread, *event)))
            return
        before = b"" if kind is Done or kind is Memory else self._compute()
        os.write(self._file, before + _framed((_NUMBERS[kind], thread, *event)))
        self._busy_since = time.monotonic() - self._started

    def _compute(self) -> bytes:
        """What ran since the last event, as a record; nothing if it was short and no operator."""
        now = time.monotonic() - self._started
        flops, bytes, operators, products = self.counter.take() if self.counter else (0.0, 0.0, 0, ())
        if not operators and now - self._busy_since <= _SHORT:
            return b""
        return _framed((_NUMBERS[Compute], self._main, flops, bytes, operators, self._busy_since, now, 0, products))

    @property
    def is_on_main_thread(self) -> bool:
        """Whether the rank's main thread asks, whose compute and memory are looked at."""
        return threading.get_ident() == self._main

    def next_id(self) -> int:
        """A number for the next message, unique on this rank."""
        return next(self._ids)

    def new_group(self, name: str, members: tuple[int, ...], world: int = 0) -> int:
        """Writes who is in a group, before anything happens in it; returns its number on this rank.

        ``world`` is the number of the world that the group is made in, 0 for a world itself.
        """
        self._last_group += 1
        self._put((_GROUP, self._last_group, name, members, world))
        return self._last_group

    def answer(self, acting: tuple[int, ...]) -> None:
        """Writes which threads of this rank could still act by themselves."""
        self._put((_THREADS, acting))

    def note(self, text: str) -> None:
        """Writes what the reader of the recording should know."""
        self._put((_NOTE, text))

    def unseen(self) -> contextlib.AbstractContextManager:
        """Hides from the counting of compute what the learner did not call: what a backend does inside a message."""
        if self.counter is None or not self.is_on_main_thread:  # other threads are not counted anyway
            return _NOTHING_TO_HIDE
        return self.counter.hidden()

    def keep(self, id: int, work) -> None:
        """Keeps a Work alive until it has been waited for."""
        self._kept[id] = work

    def release(self, id: int) -> None:
        """Lets a Work go."""
        self._kept.pop(id, None)

    def _put(self, record: tuple) -> None:
        os.write(self._file, _framed(record))

    def place(self) -> int:
        """The learner's line that is running now, as a number; 0 if there is none."""
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            mine = self._is_learners.get(code)
            if mine is None:
                mine = self._is_learners[code] = is_learners(code.co_filename, self._sources)
            if mine:
                return self._number_of(code, frame.f_lineno)
            frame = frame.f_back
        return 0

    def _number_of(self, code: types.CodeType, line: int) -> int:
        number = self._places.get((code, line))
        if number is None:
            with self._numbering:  # another thread may use a number as soon as it stands in the table: written first
                number = len(self._places) + 1
                self._put((_PLACE, number, code.co_filename, line, code.co_name))
                self._places[code, line] = number
        return number


def _framed(record: tuple) -> bytes:
    data = marshal.dumps(record)
    return _LENGTH.pack(len(data)) + data


class NoLog:
    """The log of a rank that nobody watches."""

    counter = None

    def answer(self, acting: tuple[int, ...]) -> None:
        """Nobody asks."""

    def now(self) -> float:
        """No time is kept."""
        return 0.0

    def write(self, event) -> None:
        """Nothing is written."""


@contextlib.contextmanager
def counting(log: Log | NoLog):
    """Counts the compute of what runs inside, where the log asks for it."""
    with log.counter or contextlib.nullcontext():
        yield


class LogReader:
    """Reads a rank's log as it grows."""

    def __init__(self, path: str):
        self._path = Path(path)
        self._file: io.FileIO | None = None
        self._rest = b""

    def read(self) -> list[tuple]:
        """The records written since the last call: ("event", event, thread), ("place", …), ("group", …) and so on."""
        if self._file is None:
            if not self._path.exists():
                return []
            self._file = open(self._path, "rb", buffering=0)
        data = self._rest + self._file.read()
        records, at = [], 0
        while at + 4 <= len(data):
            (length,) = _LENGTH.unpack_from(data, at)
            if at + 4 + length > len(data):
                break
            records.append(_decode(marshal.loads(data[at + 4 : at + 4 + length])))
            at += 4 + length
        self._rest = data[at:]
        return records

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()


def _decode(record: tuple) -> tuple:
    number, *fields = record
    if number >= _PLACE:
        return (_OTHERS[number - _PLACE], *fields)
    thread, *fields = fields
    return ("event", _EVENT_KINDS[number]._make(fields), thread)
