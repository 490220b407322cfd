"""What crosses from the notebook to the ranks and back: functions by value, tensors as copies on the CPU."""

from __future__ import annotations

import io
import marshal
import pickle
import types
from collections.abc import Mapping
from dataclasses import dataclass

import cloudpickle
import torch

from distlab.ranks.cells import Source, snapshot
from distlab.ranks.shipping import naming
from distlab.ranks.shipping.captures import captured
from distlab.ranks.shipping.reasons import reason_of, with_article

PAYLOAD_LIMIT = 500_000_000
VALUE_LIMIT = 200_000_000
_OWN = __name__.partition(".")[0] + "."
_DEPTH = 5
_ADVICE = "return tensors, numbers, text, or lists and dicts of them (of a model, its state_dict())"
_FILES = (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.RawIOBase)


@dataclass(frozen=True)
class Payload:
    """A pickled ``(fn, args)`` and the source text of every function in it.

    ``modules`` are those of distlab's own that something in it is taken from on the ranks.
    """

    data: bytes
    sources: dict[str, Source]
    modules: tuple[str, ...] = ()


class TooLarge(ValueError):
    """Something is too large to copy to every rank, or back from one."""


class _NoCopy(Exception):
    """Something does not pickle; the message says why."""


def _itself(obj):
    return obj


def _tensor(data: bytes, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape) if data else torch.empty(shape, dtype=dtype)


class _Pickler(cloudpickle.Pickler):
    """Pickles code with its file name, which cloudpickle drops, and stands one object in for another."""

    def __init__(self, file, instead: Mapping[int, object] | None = None):
        super().__init__(file)
        self.filenames: set[str] = set()
        self.modules: set[str] = set()
        self._instead = dict(instead or {})

    def reducer_override(self, obj):
        if id(obj) in self._instead:
            return _itself, (self._instead[id(obj)],)
        if isinstance(obj, types.CodeType):
            self.filenames.add(obj.co_filename)
            return marshal.loads, (marshal.dumps(obj),)
        if name := naming.name_of(obj):
            return naming.find, name
        if isinstance(obj, types.FunctionType | type) and str(obj.__module__).startswith(_OWN):
            self.modules.add(obj.__module__)
        return super().reducer_override(obj)


class _ValuePickler(_Pickler):
    """Pickles what a rank returns: tensors leave their graph, their device and the storage they are a view of."""

    def reducer_override(self, obj):
        if isinstance(obj, _FILES):  # cloudpickle would make a text of some
            raise TypeError("an open file belongs to its process")
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


def _dumps(obj, pickler_class, limit: int, **options) -> tuple[bytes, _Pickler]:
    file = io.BytesIO()
    pickler = pickler_class(file, **options)
    pickler.limit = limit
    try:
        pickler.dump(obj)
    except (TooLarge, KeyboardInterrupt):
        raise
    except BaseException as error:  # what is copied may have a __reduce__ of its own, and that may raise anything
        raise _NoCopy(reason_of(error)) from None
    if file.tell() > limit:
        raise _too_large(file.tell(), limit)
    return file.getvalue(), pickler


def _too_large(size: int, limit: int) -> TooLarge:
    return TooLarge(f"{size / 1e6:,.0f} MB, and at most {limit / 1e6:,.0f} MB can be copied")


def pack(fn, args: tuple, instead: Mapping[int, object] | None = None) -> Payload:
    """Pickles a function and its arguments by value, with all that they use from the notebook.

    ``instead`` maps the ``id`` of an object to the one that takes its place on the ranks.
    Raises TypeError or TooLarge naming the function, argument or global that can't be copied.
    """
    try:
        data, pickler = _dumps((fn, args), _Pickler, PAYLOAD_LIMIT, instead=instead)
    except TooLarge as error:
        raise TooLarge(f"the ranks can't be given copies: {error}{_largest(_named(fn, args))}") from None
    except _NoCopy as error:
        broken = " and ".join(_broken(_named(fn, args), set())) or "something that the function uses"
        blame = f"It is {broken} that can't be copied; make it inside the function instead"
        raise TypeError(f"the ranks can't be given a copy: {error}. {blame}") from None
    return Payload(data, snapshot(pickler.filenames), tuple(sorted(pickler.modules)))


def _named(fn, args: tuple) -> dict[str, object]:
    return {f"argument {i + 1}": arg for i, arg in enumerate(args)} | captured(fn)


def _largest(named: dict[str, object]) -> str:
    sizes = {name: _size(value) or 0 for name, value in named.items()}
    large = max(sizes, key=sizes.__getitem__, default=None)
    return f". The largest part is {large}, {sizes[large] / 1e6:,.0f} MB; make it inside the function" if large else ""


def _broken(named: dict[str, object], seen: set[int]) -> list[str]:
    """Names what does not pickle; where that is a function, what of the things that it uses."""
    found = []
    for name, value in named.items():
        if id(value) not in seen and _size(value) is None:
            seen.add(id(value))
            within = _broken(captured(value), seen) if isinstance(value, types.FunctionType) else []
            found += [f"{part}, which {name} uses," for part in within] or [name]
    return found


def _size(value) -> int | None:
    try:
        return len(_dumps(value, _Pickler, 10**12)[0])
    except _NoCopy:
        return None


def unpack(data: bytes):
    """Restores what :func:`pack` made: ``(fn, args)``."""
    return pickle.loads(data)


def pack_value(value) -> bytes:
    """Pickles what a rank returns; raises TypeError or TooLarge saying what to return instead."""
    try:
        return pickle.dumps(type(value).__name__) + _dumps(value, _ValuePickler, VALUE_LIMIT)[0]
    except TooLarge as error:
        raise TooLarge(f"it returned {error}; return a part, or a number made from it") from None
    except _NoCopy as error:
        part = _uncopyable_part(value)
        raise TypeError(
            f"it returned {with_article(type(value).__name__)} that can't leave its process ({part}{error}); {_ADVICE}"
        ) from None


def _uncopyable_part(value, path: str = "") -> str:
    """Where in lists and dicts the thing stands that does not pickle: "["loss"] is a generator: ", or nothing."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, item in items if path.count("[") < _DEPTH else ():
        try:
            _dumps(item, _ValuePickler, VALUE_LIMIT)
        except _NoCopy:
            return _uncopyable_part(item, f"{path}[{key!r}]")
    return f"{path} is {with_article(type(value).__name__)}: " if path else ""


def unpack_value(data: bytes):
    """Restores what :func:`pack_value` made; raises TypeError saying what to return instead if it can't be rebuilt."""
    file = io.BytesIO(data)
    kind = pickle.load(file)
    try:
        return pickle.load(file)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # it is rebuilt by code of its class, which may raise anything
        raise TypeError(
            f"it returned {with_article(kind)} that can't be rebuilt in the notebook ({reason_of(error)}); {_ADVICE}"
        ) from None
