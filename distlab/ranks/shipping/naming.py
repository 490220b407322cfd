"""What is given to the ranks by its name instead of as a copy: modules of unusual classes and operators of torch's."""

from __future__ import annotations

import importlib
import operator
import sys
import types

from distlab.ranks.torch_inside import ClassNamespace, HigherOrderOperator, Operator, OperatorPacket


def name_of(obj) -> tuple[str, str] | None:
    """A module and the path in it under which :func:`find` gets this very object: ("torch.ops", "aten.add").

    For modules whose class is a subclass of ModuleType (an ordinary one pickles by itself), and for what stands in
    ``torch.ops``; None for everything else.
    """
    return next((found for found in map(_split, _candidates(obj)) if _holds(*found, obj)), None)


def find(module: str, path: str):
    """Imports ``module`` and returns what stands under ``path`` in it, the module itself if that is empty."""
    found = importlib.import_module(module)
    return operator.attrgetter(path)(found) if path else found


def _candidates(obj) -> list[str]:
    if ClassNamespace is not None and isinstance(obj, ClassNamespace):
        return [f"torch.classes.{obj.name}"]  # its __name__ lacks the last dot
    if isinstance(obj, types.ModuleType) and type(obj) is not types.ModuleType:
        own = vars(obj).get("__name__")  # not obj.__name__: a lazy module may make up what it lacks
        names = [name for name, module in list(sys.modules.items()) if module is obj]
        return [own, *names] if isinstance(own, str) else names
    if isinstance(obj, Operator | OperatorPacket):
        return [f"torch.ops.{obj}"]
    if isinstance(obj, HigherOrderOperator):
        return [f"torch.ops.higher_order.{obj.name()}"]
    return []


def _split(name: str) -> tuple[str, str]:
    """The longest beginning of a dotted name that is an imported module ("" if there is none), and the rest."""
    parts = name.split(".")
    ends = [end for end in range(len(parts), 0, -1) if ".".join(parts[:end]) in sys.modules]
    end = ends[0] if ends else 0
    return ".".join(parts[:end]), ".".join(parts[end:])


def _holds(module: str, path: str, obj) -> bool:
    try:
        return bool(module) and find(module, path) is obj
    except AttributeError:
        return False
