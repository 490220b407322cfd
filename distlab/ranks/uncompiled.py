"""Functions of ours into which torch.compile shall not look, nor into what they call.

A rank runs them in the middle of what a learner has compiled: when DDP sends gradients, or when operators are counted.
torch.compiler.disable would wrap each of them, at 1 µs a call; marks on a function and its code cost nothing.
"""

from __future__ import annotations

import types

try:
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
except ImportError:  # another release's names: torch.compile looks into our functions, nothing else fails

    def _skip(code: types.CodeType) -> None:
        pass
else:
    _STRATEGY = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)

    def _skip(code: types.CodeType) -> None:
        set_code_exec_strategy(code, _STRATEGY)


def uncompiled(function: types.FunctionType) -> types.FunctionType:
    """Marks a function as one to run as it is; returns it."""
    _skip(function.__code__)  # where it is called from C++, or from what is not compiled
    function._torchdynamo_disable = True  # where what is compiled calls it: the graph breaks there
    function._torchdynamo_disable_msg = "distlab notes what happens here: use record=False or fullgraph=False"
    return function


def with_uncompiled_methods(kind: type) -> type:
    """Marks all methods that stand in a class; returns it."""
    for method in vars(kind).values():
        if isinstance(method, types.FunctionType):
            uncompiled(method)
    return kind
