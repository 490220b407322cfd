"""What crosses from the notebook to the ranks and back: functions by value, tensors as copies on the CPU."""

from __future__ import annotations

import inspect
import io
import marshal
import pickle
import types
from collections.abc import Mapping
from dataclasses import dataclass

import cloudpickle
import torch

from distlab.ranks.cells import Source, snapshot

PAYLOAD_LIMIT = 500_000_000
VALUE_LIMIT = 200_000_000
_OWN = __name__.partition(".")[0] + "."


@dataclass(frozen=True)
class Payload:
    """A pickled ``(fn, args)`` and the source text of every function in it.

    ``module`` is the one of distlab's own that ``fn`` is taken from on the ranks, "" if it goes there by value.
    """

    data: bytes
    sources: dict[str, Source]
    module: str = ""


class TooLarge(ValueError):
    """Something is too large to copy to every rank, or back from one."""


def _itself(obj):
    return obj


def _tensor(data: bytes, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape) if data else torch.empty(shape, dtype=dtype)


class _Pickler(cloudpickle.Pickler):
    """Pickles code with its file name, which cloudpickle drops, and stands one object in for another."""

    def __init__(self, file, instead: Mapping[int, object] | None = None):
        super().__init__(file)
        self.filenames: set[str] = set()
        self._instead = dict(instead or {})

    def reducer_override(self, obj):
        if id(obj) in self._instead:
            return _itself, (self._instead[id(obj)],)
        if isinstance(obj, types.CodeType):
            self.filenames.add(obj.co_filename)
            return marshal.loads, (marshal.dumps(obj),)
        return super().reducer_override(obj)


class _ValuePickler(_Pickler):
    """Pickles what a rank returns: tensors leave their graph, their device and the storage they are a view of."""

    def reducer_override(self, obj):
        if isinstance(obj, torch.Tensor) and type(obj) is not torch.nn.Parameter:
            local = obj.to_local() if hasattr(obj, "to_local") else obj
            if local.layout is torch.strided and local.nbytes > self.limit:  # no copy of it is made for nothing
                raise _too_large(local.nbytes, self.limit)
            local = local.detach().cpu().resolve_conj().resolve_neg()
            if local.layout is torch.strided and not local.is_quantized:
                flat = local.contiguous().as_strided((local.numel(),), (1,))  # one element counts as contiguous always
                return _tensor, (flat.view(torch.uint8).numpy().tobytes(), local.dtype, local.shape)
            return local.clone().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return super().reducer_override(obj)


def _dumps(obj, pickler_class, limit: int, **options) -> tuple[bytes, set[str]]:
    file = io.BytesIO()
    pickler = pickler_class(file, **options)
    pickler.limit = limit
    pickler.dump(obj)
    if file.tell() > limit:
        raise _too_large(file.tell(), limit)
    return file.getvalue(), pickler.filenames


def _too_large(size: int, limit: int) -> TooLarge:
    return TooLarge(f"{size / 1e6:,.0f} MB, and at most {limit / 1e6:,.0f} MB can be copied")


def pack(fn, args: tuple, instead: Mapping[int, object] | None = None) -> Payload:
    """Pickles a function and its arguments by value, with all that they use from the notebook.

    ``instead`` maps the ``id`` of an object to the one that takes its place on the ranks.
    Raises TypeError or TooLarge naming the function, argument or global that can't be copied.
    """
    try:
        data, filenames = _dumps((fn, args), _Pickler, PAYLOAD_LIMIT, instead=instead)
    except TooLarge as error:
        raise TooLarge(f"the ranks can't be given copies: {error}{_blame(fn, args)}") from None
    except (TypeError, pickle.PicklingError, AttributeError, RecursionError) as error:
        reason = f"the ranks can't be given a copy: {error}{_blame(fn, args)}"
        raise TypeError(reason) from error
    module = getattr(fn, "__module__", None) or ""
    return Payload(data, snapshot(filenames), module if module.startswith(_OWN) else "")


def _blame(fn, args: tuple) -> str:
    """Names the argument or notebook variable that does not pickle, or else the largest."""
    named = {f"argument {i + 1}": arg for i, arg in enumerate(args)} | _captured(fn)
    sizes = {name: _size(value) for name, value in named.items()}
    broken = [name for name, size in sizes.items() if size is None]
    if broken:
        return f". It is {' and '.join(broken)} that can't be copied; make it inside the function instead"
    large = max(sizes, key=sizes.get, default=None)
    return f". The largest part is {large}, {sizes[large] / 1e6:,.0f} MB; make it inside the function" if large else ""


def _captured(fn) -> dict[str, object]:
    """The notebook variables that a function uses, by name."""
    if not isinstance(fn, types.FunctionType):
        return {}
    used = inspect.getclosurevars(fn)
    return {f"`{name}`": value for name, value in {**used.globals, **used.nonlocals}.items()}


def _size(value) -> int | None:
    try:
        return len(_dumps(value, _Pickler, 10**12)[0])
    except (TypeError, pickle.PicklingError, AttributeError, RecursionError):
        return None


def unpack(data: bytes):
    """Restores what :func:`pack` made: ``(fn, args)``."""
    return pickle.loads(data)


def pack_value(value) -> bytes:
    """Pickles what a rank returns; raises TypeError or TooLarge saying what to return instead."""
    try:
        return _dumps(value, _ValuePickler, VALUE_LIMIT)[0]
    except TooLarge as error:
        raise TooLarge(f"it returned {error}; return a part, or a number made from it") from None
    except (TypeError, pickle.PicklingError, AttributeError, RecursionError, RuntimeError) as error:
        raise TypeError(
            f"it returned a {type(value).__name__} that can't leave its process ({error}); "
            "return tensors, numbers, text, or lists and dicts of them"
        ) from error


def unpack_value(data: bytes):
    """Restores what :func:`pack_value` made."""
    return pickle.loads(data)
