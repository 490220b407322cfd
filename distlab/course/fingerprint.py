"""A short name for what a function or class does, so that a passed check holds until the code changes."""

from __future__ import annotations

import dis
import hashlib
import types


def fingerprint(obj) -> str:
    """Hashes the code of a function or class of the notebook and of what it uses from there.

    Comments and places do not count; the Python version does.
    """
    digest = hashlib.sha256()
    for part in _parts(obj, set()):
        digest.update(repr(part).encode())
    return digest.hexdigest()[:16]


def own_fingerprint(obj) -> str:
    """Hashes its own code alone."""
    parts = _parts(obj, set(), deep=False)
    return hashlib.sha256(repr(list(parts)).encode()).hexdigest()[:16]


def fingerprints_used(obj) -> dict[str, str]:
    """The names from the notebook that its own code reads, each with the fingerprint of what it stands for."""
    codes = [member.__code__ for member in _functions(obj)]
    scope = next((member.__globals__ for member in _functions(obj)), {})
    used: dict[str, str] = {}
    for name in sorted(set().union(*map(read_globals, codes))):
        parts = list(_used_parts(name, scope[name], {id(obj)})) if name in scope else []
        if parts:
            used[name] = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    return used


def _functions(obj) -> list[types.FunctionType]:
    members = map(plain, vars(obj).values()) if isinstance(obj, type) else [obj]
    return [member for member in members if isinstance(member, types.FunctionType)]


def _parts(obj, seen: set[int], deep: bool = True):
    if id(obj) in seen:
        return
    seen.add(id(obj))
    if isinstance(obj, type):
        yield obj.__name__, [base.__qualname__ for base in obj.__bases__]
        for name, member in sorted(vars(obj).items()):
            if name == "__slotnames__":  # left by whoever pickled one of its objects
                continue
            yield name
            yield from _parts(plain(member), seen, deep)
    elif isinstance(obj, types.FunctionType):
        yield from _code_parts(obj.__code__)
        yield obj.__defaults__, obj.__kwdefaults__
        for name in sorted(read_globals(obj.__code__)):
            if deep and name in obj.__globals__:
                yield from _used_parts(name, obj.__globals__[name], seen)


def plain(member):
    """The function of a property, class method or static method."""
    if isinstance(member, property):
        return member.fget
    return getattr(member, "__func__", member)


def _used_parts(name: str, value, seen: set[int]):
    if isinstance(value, bool | int | float | str):
        yield name, value
    elif getattr(value, "__module__", None) == "__main__":
        yield name
        yield from _parts(value, seen)


def _code_parts(code: types.CodeType):
    yield code.co_code, code.co_names, code.co_varnames, code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_parts(constant)
        else:
            yield constant


def read_globals(code: types.CodeType) -> set[str]:
    """The globals that a function reads; the attributes that it names are nobody's globals."""
    inner = (read_globals(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    read = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return read.union(*inner)
