"""Checks what a learner gives to run(): every complaint names the argument, what was expected and what came."""

from __future__ import annotations

import inspect
import math
import sys

import torch

from distlab.ranks.processes.starting import can_fork

MOST_RANKS = 64
_RANK_NAMES = {"rank", "r", "my_rank", "local_rank", "rank_id"}


def check(fn, args: tuple, *, ranks, device, timeout, seed, record, start="auto") -> None:
    """Raises TypeError or ValueError if an argument of run() is wrong."""
    _check_function(fn, args)
    _check_whole("ranks", ranks, 1, MOST_RANKS)
    _check_whole("seed", seed, 0, 2**63 - 1)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout must be a number of seconds, not {timeout!r}")
    if not (0 < timeout < math.inf):
        raise ValueError(f"timeout must be a positive, finite number of seconds, not {timeout!r}")
    if record not in (True, False, "messages"):
        raise ValueError(f'record must be True, "messages" or False, not {record!r}')
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f'device must be "auto", "cpu" or "cuda", not {device!r}')
    if start not in ("auto", "fork", "spawn"):
        raise ValueError(f'start must be "auto", "fork" or "spawn", not {start!r}')
    if start == "fork" and not can_fork():
        raise ValueError(f'start="fork" works on Linux only, and this is {sys.platform}: use start="spawn"')
    if device == "cuda" and torch.cuda.device_count() < ranks:
        expected = f"expected at least {ranks}, found {torch.cuda.device_count()}"
        raise ValueError(f'device="cuda" gives each rank a GPU: {expected}. Use device="cpu", or fewer ranks.')


def _check_whole(name: str, value, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {value!r} ({type(value).__name__})")
    if not least <= value <= most:
        raise ValueError(f"{name} must be from {least:,} to {most:,}, not {value:,}")


def _check_function(fn, args: tuple) -> None:
    if not callable(fn):
        called = " (was it called? write run(f), not run(f()))" if fn is None else ""
        raise TypeError(f"fn must be a function that every rank can call, not {fn!r}{called}")
    try:
        signature = inspect.signature(fn)
    except (ValueError, TypeError):
        return  # some built-in callables have none
    try:
        signature.bind(*args)
    except TypeError as error:
        raise TypeError(_mismatch(fn, signature, args, error)) from None


def _mismatch(fn, signature: inspect.Signature, args: tuple, error: TypeError) -> str:
    name = getattr(fn, "__name__", repr(fn))
    required = [p.name for p in signature.parameters.values() if p.default is p.empty][len(args) :]
    if required and required[0] in _RANK_NAMES:
        return (
            f"fn must not expect its rank as an argument: `{name}{signature}` wants `{required[0]}`. "
            "Ask for it inside the function: rank = dist.get_rank()"
        )
    given = f"run() gave it {len(args)} argument{'s' if len(args) != 1 else ''}"
    return f"fn can't be called with what run() was given: `{name}{signature}`, but {given} ({error})"


def pick_device(device: str, ranks: int) -> str:
    """Decides "auto": CUDA when there are at least two GPUs and one for every rank, the CPU otherwise."""
    if device != "auto":
        return device
    gpus = torch.cuda.device_count()
    return "cuda" if gpus >= max(ranks, 2) else "cpu"
