"""What is set in the notebook's process and holds on the ranks too: one table of how it is read and how it is set."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from distlab.ranks.torch_inside import PRINT_OPTIONS


class _Setting(NamedTuple):
    """Something that is set for a whole process; ``read`` gives what ``apply`` takes."""

    read: Callable[[], Any]
    apply: Callable[[Any], Any]


_PRINTING = ("precision", "threshold", "edgeitems", "linewidth", "suppress", "floatmode", "nanstr", "infstr", "sign")


def _printing() -> dict:
    return dict(vars(PRINT_OPTIONS))


def _set_printing(options: dict) -> None:
    torch.set_printoptions(**{name: value for name, value in options.items() if name != "sci_mode"})
    PRINT_OPTIONS.sci_mode = options["sci_mode"]  # set_printoptions can't make it None again


def _numpy_printing() -> dict:
    options = np.get_printoptions()
    return {name: value for name, value in options.items() if name in _PRINTING}  # its other options may hold functions


def _anomalies() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _matmul_precision() -> str | None:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set by the newer names, which are read below
        return None


def _set_matmul_precision(precision: str | None) -> None:
    if precision:
        torch.set_float32_matmul_precision(precision)


def _precisions() -> tuple[str, ...]:
    return tuple(owner.fp32_precision for owner in _owners())


def _set_precisions(found: tuple[str, ...]) -> None:
    for owner, precision in zip(_owners(), found):
        owner.fp32_precision = precision


def _owners():
    # torch puts an object in the place of the module mkldnn, which a type checker can't see.
    return torch.backends, torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


def _cudnn() -> tuple[bool, bool]:
    return torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark


def _set_cudnn(found: tuple[bool, bool]) -> None:
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = found


def _log_format() -> tuple[str, str | None] | None:
    """The format of what the root logger writes to a stream; None if it writes to none, or as no format can say."""
    streams = [handler for handler in logging.root.handlers if type(handler) is logging.StreamHandler]
    formatter = streams[0].formatter if streams else None
    if type(formatter) is not logging.Formatter or type(formatter._style) is not logging.PercentStyle:
        return None
    return formatter._style._fmt, formatter.datefmt


def _set_log_format(found: tuple[str, str | None] | None) -> None:
    if found:
        logging.basicConfig(format=found[0], datefmt=found[1])


def _ignored_warnings() -> list[tuple]:
    """The filters that keep warnings of Python's own classes from being shown, first the one that counts first."""
    return [f for f in warnings.filters if f[0] == "ignore" and f[2].__module__ == "builtins"]


def _ignore_warnings(filters: list[tuple]) -> None:
    known = _ignored_warnings()
    for action, message, category, module, line in (f for f in filters[::-1] if f not in known):
        texts = {"message": message, "module": module}
        warnings.filterwarnings(action, category=category, lineno=line, **{k: v.pattern for k, v in texts.items() if v})


_SETTINGS = {
    "default dtype": _Setting(torch.get_default_dtype, torch.set_default_dtype),
    "grad mode": _Setting(torch.is_grad_enabled, torch.set_grad_enabled),
    "float32 matmul precision": _Setting(_matmul_precision, _set_matmul_precision),
    "float32 precision by backend": _Setting(_precisions, _set_precisions),
    "deterministic algorithms": _Setting(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "cuDNN": _Setting(_cudnn, _set_cudnn),
    "anomaly detection": _Setting(_anomalies, lambda found: torch.autograd.set_detect_anomaly(*found)),
    "printing of torch": _Setting(_printing, _set_printing),
    "printing of numpy": _Setting(_numpy_printing, lambda found: np.set_printoptions(**found)),
    "floating-point errors of numpy": _Setting(np.geterr, lambda found: np.seterr(**found)),
    "root log level": _Setting(lambda: logging.root.level, logging.root.setLevel),
    "root log format": _Setting(_log_format, _set_log_format),
    "ignored warnings": _Setting(_ignored_warnings, _ignore_warnings),
    "recursion limit": _Setting(sys.getrecursionlimit, sys.setrecursionlimit),
}


def read() -> dict[str, Any]:
    """What is set in this process, by name."""
    return {name: setting.read() for name, setting in _SETTINGS.items()}


def apply(found: dict[str, Any]) -> None:
    """Sets in this process what :func:`read` found in another, touching only what differs."""
    for name, value in found.items():
        if _SETTINGS[name].read() != value:
            _SETTINGS[name].apply(value)
