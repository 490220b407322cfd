"""What the ranks print: captured at the file descriptors, capped, shown whole lines at a time."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections import Counter

KEPT_BYTES = 64_000
SHOWN_LINES = 200
STREAM_AFTER = 2.0
STREAM_EVERY = 0.25

_NOISE = re.compile(
    r"Unable to resolve hostname|^\[[WEI]\d{3,4} .*(socket|ProcessGroupGloo|TCPStore|NNPACK|HeartbeatMonitor)"
    r"|^frame #\d+: |^Exception raised from |^\[Gloo\] Rank \d+ is connected to "
)


class Tape:
    """The output of one rank, read by a thread of its own: its beginning, its end, and how much lay between."""

    def __init__(self, descriptor: int):
        self._head, self._tail = bytearray(), bytearray()
        self.num_bytes = self.num_lines = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._pump, args=(descriptor,), daemon=True)
        self._thread.start()

    def _pump(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb", buffering=0) as stream:
            while chunk := stream.read(1 << 16):
                self._append(chunk)

    def _append(self, chunk: bytes) -> None:
        with self._lock:
            self.num_bytes += len(chunk)
            self.num_lines += chunk.count(b"\n")
            room = max(0, KEPT_BYTES - len(self._head))
            self._head += chunk[:room]
            self._tail += chunk[room:]
            del self._tail[:-KEPT_BYTES]

    def finish(self, patience: float = 1.0) -> None:
        """Waits until all that was printed has been read."""
        self._thread.join(patience)

    def last_words(self) -> str:
        """What native code said when it gave up, as C++ runtimes put it, or nothing."""
        found = re.findall(r"what\(\):\s*(.*)|Fatal Python error: (.*)", self.text())
        return max(found[-1]) if found else ""

    def text(self) -> str:
        """The text so far; a carriage return overwrites its line, as on a terminal."""
        with self._lock:
            head, tail, missing = bytes(self._head), bytes(self._tail), self.num_bytes
        missing -= len(head) + len(tail)
        if missing:
            head = head[: head.rfind(b"\n") + 1] or head
            tail = tail[tail.find(b"\n") + 1 :]
            lines = self.num_lines - head.count(b"\n") - tail.count(b"\n")
            head += f"… {lines:,} lines left out …\n".encode()
        return _overwrite((head + tail).decode("utf-8", "replace"))


def _overwrite(text: str) -> str:
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)


def without_noise(text: str) -> str:
    """Leaves out the lines that torch's native code writes and no learner can use."""
    return "".join(line for line in text.splitlines(keepends=True) if not _NOISE.search(line))


def by_rank(texts: list[str]) -> str:
    """Lays out what each rank printed; ranks that printed the same share their lines."""
    ranks_of: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        ranks_of.setdefault(text, []).append(rank)
    return "".join(_prefixed(ranks, text) for text, ranks in ranks_of.items() if text.strip())


def name_ranks(ranks: list[int]) -> str:
    """Names ranks in words: "rank 2", "ranks 0 and 3", "ranks 0-3"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}-{ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _prefixed(ranks: list[int], text: str) -> str:
    lines = text.splitlines()
    kept = lines if len(lines) <= SHOWN_LINES else [*lines[: SHOWN_LINES // 2], *lines[-SHOWN_LINES // 2 :]]
    shown = [f"[{name_ranks(ranks)}] {line}\n" for line in kept]
    if len(kept) < len(lines):
        shown.insert(SHOWN_LINES // 2, f"… {len(lines) - len(kept):,} more lines in .output[{ranks[0]}] …\n")
    return "".join(shown)


class Screen:
    """Shows tapes in the cell: all at once after a short run, line by line during a long one (never in CI)."""

    def __init__(self, tapes: list[Tape], rename):
        self._tapes, self._rename = tapes, rename
        self._shown: Counter[int] = Counter()
        self._streaming = "CI" not in os.environ
        self._next = time.monotonic() + STREAM_AFTER
        self._has_streamed = False

    def tick(self) -> None:
        """Shows the new whole lines, if the run is long enough to stream and it is time."""
        if self._streaming and time.monotonic() >= self._next:
            self._has_streamed = True
            self._next = time.monotonic() + STREAM_EVERY
            self._write(self._new_lines(whole_only=True))

    def close(self, show: bool) -> list[str]:
        """Shows what is left, if asked to, and returns each rank's text."""
        for tape in self._tapes:
            tape.finish()
        texts = self.texts()
        if show:
            self._write(self._new_lines(whole_only=False) if self._has_streamed else by_rank(texts))
        return texts

    def texts(self) -> list[str]:
        """What each rank has printed so far."""
        return [without_noise(self._rename(tape.text())) for tape in self._tapes]

    def _new_lines(self, whole_only: bool) -> str:
        fresh = []
        for rank, text in enumerate(self.texts()):
            lines = text.splitlines(keepends=True)
            if whole_only and lines and not lines[-1].endswith("\n"):
                lines.pop()
            new = lines[self._shown[rank] : SHOWN_LINES]
            if self._shown[rank] < SHOWN_LINES <= len(lines):
                new.append(f"… more lines in .output[{rank}] …\n")
            self._shown[rank] = max(self._shown[rank], len(lines))
            fresh += [f"[rank {rank}] {line.rstrip()}\n" for line in new]
        return "".join(fresh)

    @staticmethod
    def _write(text: str) -> None:
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()
