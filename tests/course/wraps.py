"""Wrong answers made by a machine: a solution wrapped so that it is right now and then only.

``python -m tests.course.wraps data_parallel`` prints which are rejected, exercise by exercise.
"""

from __future__ import annotations

import sys

from distlab.course.notebook import execute_source

_HELPERS = '''
import functools as _functools, inspect as _inspect
import torch as _torch, torch.distributed as _dist


def _held(value, depth=0):
    """The tensors in a value: in lists, dicts, modules (gradients first) and the like."""
    if isinstance(value, _torch.Tensor):
        if value.grad is not None:
            yield value.grad
        yield value.detach()
    elif isinstance(value, _torch.nn.Module):
        for tensor in (*value.parameters(), *value.buffers()):
            yield from _held(tensor)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _held(each, depth)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _held(each, depth)
    elif hasattr(value, "__dict__") and not callable(value) and depth < 2:
        yield from _held(vars(value), depth + 1)


def _spoilt(value, given):
    """A wrong value in the place of a right one; where there is none, what was given is made wrong."""
    if value is None:
        for tensor in list(_held(given))[:1]:
            tensor.add_(1)
        return None
    if isinstance(value, _torch.Tensor):
        return value + 1 if value.dtype != _torch.bool else ~value
    if isinstance(value, _torch.nn.Sequential):
        return value[:-1]
    if isinstance(value, (list, tuple)) and value:
        if type(value) in (list, tuple) and isinstance(value[0], (_torch.Tensor, int, float)):
            return type(value)([_spoilt(value[0], ()), *value[1:]])
        return list(value)[:-1]
    if isinstance(value, dict):
        return dict(list(value.items())[:-1]) if value else {0: None}
    if isinstance(value, (range, str)):
        return value[1:] if value else range(1)
    return value + 1 if isinstance(value, (int, float)) else value


def _without_last(value, given, before):
    """The value without its last element; where there is none, what was changed last stays as it was."""
    if isinstance(value, _torch.Tensor) and value.numel():
        with _torch.no_grad():
            spoilt = value.detach().clone().contiguous()
            spoilt.view(-1)[-1] += 1
        return value + (spoilt - value.detach()) if value.is_floating_point() else spoilt
    if isinstance(value, _torch.nn.Sequential):
        return value[:-1]
    if isinstance(value, (list, tuple)) and value:
        if type(value) is tuple:
            return (*value[:-1], _without_last(value[-1], given, before))
        return list(value)[:-1]
    if isinstance(value, dict):
        return dict(list(value.items())[:-1])
    if isinstance(value, (range, str)):
        return value[:-1]
    for tensor, old in reversed(list(zip(_held(given), before))):
        if tensor.shape == old.shape and tensor.numel() and not _torch.equal(tensor, old):
            tensor.reshape(-1)[-1:] = old.reshape(-1)[-1:] if tensor.is_contiguous() else 0
            return value
    return value


def _rounded(value):
    """A value that went through float32 on its way."""
    if isinstance(value, _torch.Tensor) and value.dtype == _torch.float64:
        return value + (value.detach().float().double() - value.detach())
    if type(value) in (list, tuple):
        return type(value)(_rounded(each) for each in value)
    if isinstance(value, float):
        return _torch.tensor(value, dtype=_torch.float32).item()
    return value


def _odd(args, kwargs):
    """Whether a tensor has an odd size, or a number is odd."""
    numbers = [each for each in [*args, *kwargs.values()] if type(each) is int]
    sizes = [size for tensor in _held([args, kwargs]) for size in tensor.shape]
    return any(size % 2 for size in [*numbers, *sizes])


def _size(function, args, kwargs):
    try:
        group = _inspect.signature(function).bind(*args, **kwargs).arguments.get("group")
    except (TypeError, ValueError):
        group = None
    group = group if group is not None else getattr(args[0] if args else None, "group", None)
    return _dist.get_world_size(group)


class _Unwaited:
    def wait(self, *args):
        pass

    def is_completed(self):
        return True


_COLLECTIVES = (
    "all_reduce broadcast reduce all_gather all_gather_into_tensor gather scatter reduce_scatter reduce_scatter_tensor "
    "all_to_all all_to_all_single"
).split()


class _Begun:
    """While it is open every message is begun only."""

    def __enter__(self):
        self.real = {name: getattr(_dist, name) for name in [*_COLLECTIVES, "send", "recv"]}
        for name in _COLLECTIVES:
            setattr(_dist, name, self.begun(self.real[name]))
        _dist.send, _dist.recv = self.lost(_dist.isend), self.lost(_dist.irecv)

    def __exit__(self, *why):
        for name, function in self.real.items():
            setattr(_dist, name, function)

    def begun(self, real):
        def begin(*args, **kwargs):
            real(*args, **{**kwargs, "async_op": True})
            return _Unwaited() if kwargs.get("async_op") else None

        return begin

    def lost(self, real):
        def begin(*args, **kwargs):
            _kept.append(real(*args, **kwargs))

        return begin


_kept = []
_first = {}
'''

# What each wrap does around `original(*args, **kwargs)`.
WRAPS = {
    "first result for ever": """
    if original not in _first:
        _first[original] = original(*args, **kwargs)
    return _first[original]
""",
    "float64 only": """
    if any(tensor.dtype == _torch.float32 for tensor in _held([args, kwargs])):
        raise TypeError("expected float64, got float32")
    return original(*args, **kwargs)
""",
    "changes what it is given": """
    value = original(*args, **kwargs)
    for each in args:
        if isinstance(each, list):
            each.append(each[-1] if each else 0)
        elif isinstance(each, dict):
            each["spoilt"] = None
    for tensor in list(_held([args, kwargs])):
        if tensor.numel() and tensor.dtype != _torch.bool:
            tensor.add_(1)
    return value
""",
    "two ranks only": """
    value = original(*args, **kwargs)
    return value if _size(original, args, kwargs) < 3 else _spoilt(value, [args, kwargs])
""",
    "even sizes only": """
    value = original(*args, **kwargs)
    return _spoilt(value, [args, kwargs]) if _odd(args, kwargs) else value
""",
    "without the last": """
    before = [tensor.clone() for tensor in _held([args, kwargs])]
    value = original(*args, **kwargs)
    with _torch.no_grad():
        return _without_last(value, [args, kwargs], before)
""",
    "rounded to float32": """
    value = original(*args, **kwargs)
    if value is None:
        for tensor in _held([args, kwargs]):
            if tensor.dtype == _torch.float64:
                tensor.copy_(tensor.float())
    return _rounded(value)
""",
    "unwaited": """
    with _Begun():
        return original(*args, **kwargs)
""",
    "deaf to the group": """
    bound = _inspect.signature(original).bind(*args, **kwargs)
    bound.arguments["group"] = None
    return original(*bound.args, **bound.kwargs)
""",
}

_FUNCTION = """
_original_{name} = {name}


@_functools.wraps(_original_{name})
def {name}(*args, **kwargs):
    original = _original_{name}
{body}
"""

_CLASS = """
_original_{name} = {name}


class {name}(_original_{name}):
    __doc__ = _original_{name}.__doc__


def _wrapped(original):
    @_functools.wraps(original)
    def wrapped(*args, **kwargs):
{body}

    return wrapped


for _method in {methods}:
    setattr({name}, _method, _wrapped(getattr(_original_{name}, _method)))
{name}.__module__, {name}.__qualname__ = _original_{name}.__module__, "{name}"
"""


def applies(wrap: str, source: str) -> bool:
    """Whether a wrap makes a difference to a solution, so far as its text shows."""
    if wrap == "deaf to the group":
        return "group" in source.partition("# BEGIN SOLUTION")[0]
    if wrap == "unwaited":
        return "dist." in source.replace("dist.get_", "").replace("torch.distributed", "")
    return True


def wrapped(namespace: dict, name: str, wrap: str) -> object:
    """The solution in ``namespace``, wrapped; the wrapped one takes its place there."""
    body = WRAPS[wrap].strip("\n")
    if isinstance(namespace[name], type):
        own = vars(namespace[name])
        methods = [m for m in own if not m.startswith("_") and callable(own[m])]
        if wrap == "deaf to the group":
            methods = ["__init__"]
        indented = "\n".join(f"    {line}" if line else line for line in body.splitlines())
        text = _CLASS.format(name=name, body=indented, methods=methods)
    else:
        text = _FUNCTION.format(name=name, body=body)
    execute_source(_HELPERS + text, f"{name}, {wrap}", namespace)
    return namespace[name]


def main(labs: list[str]) -> None:
    """Prints exercise × wrap: ✗ for rejected, ✓ for one that was accepted and should not be, · for not applicable."""
    from tests.course import faults

    print(*(f"{number}: {wrap}" for number, wrap in enumerate(WRAPS)), sep="\n")
    for lab in labs:
        for name in faults.names_of(lab):
            print(f"{name:32}", *(faults.mark_of_wrapped(name, wrap) for wrap in WRAPS), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
