"""What a function uses from the notebook, by the names under which the learner knows it."""

from __future__ import annotations

import contextlib
import functools
import types


def captured(fn) -> dict[str, object]:
    """What a callable takes along: globals, variables around it, defaults, and for other callables what they hold."""
    if isinstance(fn, types.FunctionType):
        return _globals(fn) | _closure(fn) | _defaults(fn)
    if isinstance(fn, functools.partial):
        given = enumerate(fn.args, 1)
        fixed = {f"argument {n} of the partial": value for n, value in given} | _quoted(fn.keywords)
        return captured(fn.func) | fixed
    if isinstance(fn, types.MethodType):
        return _attributes(fn.__self__) | captured(fn.__func__)
    return _attributes(fn)


def _quoted(values: dict) -> dict[str, object]:
    return {f"`{name}`": value for name, value in values.items()}


def _globals(fn: types.FunctionType) -> dict[str, object]:
    return _quoted({name: fn.__globals__[name] for name in _names(fn.__code__) if name in fn.__globals__})


def _names(code: types.CodeType) -> list[str]:
    """The names that code may look up as globals, in the functions inside it too."""
    inside = [name for const in code.co_consts if isinstance(const, types.CodeType) for name in _names(const)]
    return [*code.co_names, *inside]


def _closure(fn: types.FunctionType) -> dict[str, object]:
    found = {}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()):
        with contextlib.suppress(ValueError):  # a variable that has no value yet
            found[name] = cell.cell_contents
    found.pop("__class__", None)  # Python's own, for super()
    return _quoted(found)


def _defaults(fn: types.FunctionType) -> dict[str, object]:
    count = fn.__code__.co_argcount
    names = fn.__code__.co_varnames[count - len(fn.__defaults__ or ()) : count]
    return _quoted({**dict(zip(names, fn.__defaults__ or ())), **(fn.__kwdefaults__ or {})})


def _attributes(obj) -> dict[str, object]:
    owner = obj if isinstance(obj, type) else type(obj)
    members = {name: value for name, value in vars(owner).items() if isinstance(value, types.FunctionType)}
    used = {name: value for method in members.values() for name, value in captured(method).items()}
    held = getattr(obj, "__dict__", {}) if owner is not obj else {}
    return {f"`{owner.__name__}.{name}`": value for name, value in held.items()} | used
