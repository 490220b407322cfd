"""Why something could not be copied, in words: by which method of the thing's own, and what that said."""

from __future__ import annotations

import copyreg
import pickle
import traceback

import cloudpickle.cloudpickle

_MACHINERY = {pickle.__file__, copyreg.__file__, cloudpickle.cloudpickle.__file__, "<frozen copyreg>"}
TEXT_LIMIT = 20_000


def text_of(error: BaseException) -> str:
    """The message of an exception, whose own __str__ may raise."""
    try:
        return str(error)[:TEXT_LIMIT]
    except Exception as broken:  # a learner's __str__ may raise anything
        return f"(its text can't be read: __str__ raised {type(broken).__name__})"


def with_article(noun: str) -> str:
    """ "a generator", "an Optimizer"."""
    return f"{'an' if noun[:1] in 'AEIOUaeiou' else 'a'} {noun}"


def reason_of(error: BaseException) -> str:
    """Says what a copy failed at: "Stubborn.__reduce__ raised RuntimeError: no", or just the message of pickle."""
    method, kind, text = _method(error), type(error).__name__, text_of(error)
    if method:
        return f"{method} raised {kind}: {text}".rstrip(": ")
    return text if text and isinstance(error, TypeError | pickle.PickleError) else f"{kind}: {text}".rstrip(": ")


def _method(error: BaseException) -> str:
    """The method of the thing's own in which it was raised, as pickle called it; "" if there is none."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    outside = [f.f_code for f in frames if f.f_code.co_filename not in _MACHINERY and not _is_ours(f)]
    name = outside[0].co_qualname.rpartition("<locals>.")[2] if outside else ""
    return name if "." in name else ""


def _is_ours(frame) -> bool:
    return frame.f_globals.get("__name__", "").startswith("distlab.ranks.")
