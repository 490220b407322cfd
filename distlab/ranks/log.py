"""The rank's own account of what happens: each event is written before the rank acts, so that it survives a crash."""

from __future__ import annotations

import contextlib
import marshal
import os
import struct
import sys
import time
import types
from pathlib import Path

from distlab.events import KINDS, Compute, Done, Memory
from distlab.ranks.cells import Source, is_learners
from distlab.ranks.counting import Counter

_SHORT = 20e-6  # seconds: what passes between two events, when no operator ran
_LENGTH = struct.Struct("<I")
_EVENT_KINDS = tuple(KINDS.values())
_NUMBERS = {kind: number for number, kind in enumerate(_EVENT_KINDS)}
_PLACE, _GROUP, _NOTE = range(len(_EVENT_KINDS), len(_EVENT_KINDS) + 3)


class Log:
    """Writes events to a file that the notebook's process reads while the rank runs."""

    def __init__(self, path: str, sources: dict[str, Source], started: float, counter: Counter | None = None):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._sources, self._started, self.counter = sources, started, counter
        self._busy_since = self.now()
        self._places: dict[tuple[types.CodeType, int], int] = {}
        self._is_learners: dict[types.CodeType, bool] = {}
        self._kept: dict[int, object] = {}
        self._last_id = self._last_group = self.open_spans = 0

    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._started

    def write(self, event) -> None:
        """Writes one event at once, after the compute that came before it."""
        kind = type(event)
        before = b"" if kind is Done or kind is Memory else self._compute()
        os.write(self._file, before + _framed((_NUMBERS[kind], *event)))
        self._busy_since = time.monotonic() - self._started

    def _compute(self) -> bytes:
        """What ran since the last event, as a record; nothing if it was short and no operator."""
        now = time.monotonic() - self._started
        flops, bytes, operators = self.counter.take() if self.counter else (0.0, 0.0, 0)
        if not operators and now - self._busy_since <= _SHORT:
            return b""
        return _framed((_NUMBERS[Compute], flops, bytes, operators, self._busy_since, now, 0))

    def next_id(self) -> int:
        """A number for the next message, unique on this rank."""
        self._last_id += 1
        return self._last_id

    def new_group(self, name: str, members: tuple[int, ...]) -> int:
        """Writes who is in a group, before anything happens in it; returns its number on this rank."""
        self._last_group += 1
        self._put((_GROUP, self._last_group, name, members))
        return self._last_group

    def note(self, text: str) -> None:
        """Writes what the reader of the recording should know."""
        self._put((_NOTE, text))

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
        frame = sys._getframe(1)
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
            number = self._places[code, line] = len(self._places) + 1
            self._put((_PLACE, number, code.co_filename, line, code.co_name))
        return number


def _framed(record: tuple) -> bytes:
    data = marshal.dumps(record)
    return _LENGTH.pack(len(data)) + data


class NoLog:
    """The log of a rank that nobody watches."""

    counter = None

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
        self._file = None
        self._rest = b""

    def read(self) -> list[tuple]:
        """The records written since the last call: ("event", event), ("place", …) or ("group", …)."""
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
        return ({_PLACE: "place", _GROUP: "group", _NOTE: "note"}[number], *fields)
    return ("event", _EVENT_KINDS[number]._make(fields))
