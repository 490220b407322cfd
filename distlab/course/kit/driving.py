"""On a rank: does the jobs of a check one after the other, and sees what the learner's code was given and changed."""

from __future__ import annotations

import gc
import inspect
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FunctionType, SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn

from distlab.course.kit.case import Job
from distlab.course.trial import ASIDE
from distlab.ranks.shipping.packing import pack_value
from distlab.ranks.watching.layout import Tensors
from distlab.ranks.watching.spans import span

Driver = Callable[[SimpleNamespace, Job], dict]
JOB = "job "

REUSED = "what an earlier call returned"
HELD = "what it was given or returned"
_LOOKS = 100  # for what is held, a millisecond apart
_changed: list[str] = []  # what the calls of the job that runs have changed
_returned: list[torch.UntypedStorage] = []  # kept, so that their memory is not given out again
_passed: list[weakref.ref] = []  # tensors and modules that the calls of the job that runs were given or returned
_kept: list[object] = []


def drive_all(drive: Driver, labs: Sequence[SimpleNamespace], jobs: Sequence[Job]) -> list[tuple[bytes, list[str]]]:
    """On a rank: what came of every job with the exercises of its lab, packed, and what they changed and should not."""
    _differ_in_addresses()
    for lab in labs:
        differ_in_hashes(vars(lab).values())
    found = []
    for number, (lab, job) in enumerate(zip(labs, jobs, strict=True)):
        print(f"{ASIDE}{JOB}{number}", flush=True)
        if number:
            dist.barrier()  # or a rank that has left early would begin this one beside those still in the last
        torch.manual_seed(job.seed)
        _changed.clear()
        _passed.clear()
        if job.case.record is True:
            _returned.clear()  # where memory is looked at, nothing is kept
        with span(f"{JOB}{number}"):
            values = drive(lab, job)
        packed = pack_value(values)  # so that no job holds memory while another runs
        del values
        found.append((packed, [*_changed, *[HELD] * _is_held()]))
    return found


def call(function: Callable, *args, changes: Sequence[int] = ()):
    """Calls a learner's function in a span, and notes which arguments it changed; ``changes`` are those it may."""
    looks = [None if number in changes else _look(arg) for number, arg in enumerate(args)]
    with span("call"):
        value = function(*args)
    modules = (module for each in (*args, value) if isinstance(each, nn.Module) for module in each.modules())
    _passed.extend(map(weakref.ref, (*modules, *_tensors([args, value]))))
    if not changes and _is_reused(value, args):
        _changed.append(REUSED)
    for number, (arg, look) in enumerate(zip(args, looks, strict=True)):
        if number not in changes and not _same(_look(arg), look):
            _changed.append(_name(function, number))
    return value


def under_way() -> list[Tensors]:
    """What the messages of this rank read and write that are begun and not waited for yet."""
    return dist.group.WORLD.tensors_under_way()


def _is_reused(value, args) -> bool:
    """Whether something returned lies in the memory of what an earlier call returned, which it has overwritten."""
    given = {storage.data_ptr() for storage in _storages(args)}
    own = [storage for storage in _storages(value) if storage.data_ptr() not in given and storage.nbytes()]
    is_reused = any(storage.data_ptr() in {earlier.data_ptr() for earlier in _returned} for storage in own)
    _returned.extend(own)
    return is_reused


def _is_held() -> bool:
    """Whether what went into the job's calls, or came out, is there when the job is over and its driver gone."""
    for patience in range(_LOOKS):
        if all(passed() is None for passed in _passed):
            return False
        time.sleep(0.001)  # gloo's threads let a message's tensors go a little after it is done
        if patience == 5:
            gc.collect()  # a circle of objects is let go only now
    return True


def _storages(value) -> Iterator[torch.UntypedStorage]:
    return (tensor.untyped_storage() for tensor in _tensors(value))


def _tensors(value, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, nn.Module):
        yield from _tensors([*value.parameters(), *value.buffers()])
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors(each, depth)
    elif hasattr(value, "__dict__") and not callable(value) and depth < 2:
        yield from _tensors(vars(value), depth + 1)


def _differ_in_addresses() -> None:
    """Gives each rank objects at other addresses than the others: an order taken from a set is then another there."""
    _kept.extend(nn.Parameter(torch.empty(0)) for _ in range(3 * dist.get_rank()))


def differ_in_hashes(functions: Iterable) -> None:
    """Lets hash() give learners' functions other numbers for texts than on other ranks, as in processes of their own.

    Ranks are forked from one process here, and share what Python has drawn for its hashes when that began.
    """
    for function in functions:
        if isinstance(function, FunctionType):
            function.__globals__.setdefault("hash", _own_hash)


def _own_hash(value) -> int:
    return hash((dist.get_rank(), value)) if _holds_text(value) else hash(value)


def _holds_text(value) -> bool:
    return isinstance(value, str | bytes) or isinstance(value, tuple | frozenset) and any(map(_holds_text, value))


def _name(function: Callable, number: int) -> str:
    try:
        return list(inspect.signature(function).parameters)[number]
    except (ValueError, IndexError):
        return f"argument {number + 1}"


def _look(value):
    """What there is to see of a value: numbers of tensors, lists and dicts; the weights of a module, not gradients."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone(), value.requires_grad
    if isinstance(value, nn.Module):
        return [(name, _look(tensor)) for name, tensor in (*value.named_parameters(), *value.named_buffers())]
    if isinstance(value, dict):
        return {key: _look(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_look(each) for each in value]
    return id(value)


def _same(one, other) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        if one.is_floating_point():  # nan is like nan
            return torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
        return torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and one == other
