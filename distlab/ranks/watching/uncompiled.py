"""Functions of ours into which torch.compile shall not look, nor into what they call.

A rank runs them in the middle of what a learner has compiled: when DDP sends gradients, or when operators are counted.
torch.compiler.disable would wrap each of them, at 1 µs a call; marks on a function and its code cost nothing.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TypeVar

from distlab.ranks.torch_inside import leave_uncompiled

_Function = TypeVar("_Function", bound=Callable)


def uncompiled(function: _Function) -> _Function:
    """Marks a function as one to run as it is; returns it."""
    leave_uncompiled(function)
    return function


def with_uncompiled_methods(kind: type) -> type:
    """Marks all methods that stand in a class; returns it."""
    for method in vars(kind).values():
        if isinstance(method, types.FunctionType):
            uncompiled(method)
    return kind
