"""A recording as if its messages were of another dtype."""

from __future__ import annotations

from dataclasses import replace

from distlab.events import Event, Message
from distlab.recording import Recording

BYTES_AN_ELEMENT = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}


def in_dtype(recording: Recording, dtype: str) -> Recording:
    """The same run as if every message of floating point numbers had elements of ``dtype``; work stays as it was."""
    if dtype not in BYTES_AN_ELEMENT:
        raise ValueError(f"dtype must be one of {', '.join(BYTES_AN_ELEMENT)}, not {dtype!r}")
    ranks = [[_cast(event, dtype) for event in history] for history in recording.ranks]
    words = f"messages as if in {dtype}"
    return replace(recording, ranks=ranks, as_if=f"{recording.as_if}; {words}" if recording.as_if else words)


def _cast(event: Event, dtype: str) -> Event:
    if type(event) is not Message or event.dtype not in BYTES_AN_ELEMENT:
        return event
    bytes = event.bytes * BYTES_AN_ELEMENT[dtype] // BYTES_AN_ELEMENT[event.dtype]
    return event._replace(dtype=dtype, bytes=bytes)
