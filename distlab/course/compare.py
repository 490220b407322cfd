"""Compares what came with what was expected, and with what each known misconception would have given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from distlab.course.exercise import Wrong

ROUNDED = ", the same rounded to float32"  # how the description of a difference ends that is no more than that


def compare(case: str, got: Sequence, want: Sequence, beliefs: Mapping[str, Sequence] | None = None,
            *, tolerance: float = 1e-10, **fields) -> None:  # fmt: skip
    """Raises Wrong unless every rank's value is the expected one.

    ``got`` and ``want`` are lists by rank of numbers, text, tensors, or lists, tuples and dicts of them. ``beliefs``
    maps the id of a misconception to the list by rank that it would give; those that would give exactly what came are
    named. ``tolerance`` is absolute for numbers below 1 and relative above. ``fields`` fill the misconceptions'
    sentences.
    """
    detail = difference_by_rank(got, want, tolerance)
    if detail is None:
        return
    believed = tuple(
        id
        for id, predicted in (beliefs or {}).items()
        if difference_by_rank(predicted, want, tolerance) and not difference_by_rank(got, predicted, tolerance)
    )
    raise Wrong(case, detail, believed, **fields)


def difference_by_rank(got: Sequence, want: Sequence, tolerance: float = 1e-10) -> str | None:
    """Describes the first difference: "rank 1: expected 3, got 4"; None if there is none."""
    if len(got) != len(want):
        return f"expected {len(want)} values, one a rank, got {len(got)}"
    for rank, (value, expected) in enumerate(zip(got, want, strict=True)):
        if found := difference(value, expected, tolerance):
            return f"rank {rank}: {found}" if len(want) > 1 else found
    return None


def difference(got, want, tolerance: float = 1e-10, path: str = "") -> str | None:
    """Describes the first place where two nested values differ, or returns None."""
    if isinstance(want, torch.Tensor):
        return _tensor_difference(got, want, tolerance, path)
    if isinstance(want, dict):
        if not isinstance(got, dict) or set(got) != set(want):
            return _expected(
                path, f"the entries {_short(list(want))}", _short(list(got) if isinstance(got, dict) else got)
            )
        return _first(difference(got[key], want[key], tolerance, _join(path, key)) for key in want)
    if isinstance(want, list | tuple):
        if not isinstance(got, list | tuple) or len(got) != len(want):
            return _expected(path, _short(want), _short(got))
        return _first(
            difference(g, w, tolerance, f"{path}[{i}]") for i, (g, w) in enumerate(zip(got, want, strict=True))
        )
    if isinstance(want, float) and isinstance(got, int | float) and not isinstance(got, bool):
        return None if _close(got, want, tolerance) else _expected(path, *_digits(want, got))
    same = type(got) is type(want) and got == want
    return None if same else _expected(path, _short(want), _short(got))


def _tensor_difference(got, want: torch.Tensor, tolerance: float, path: str) -> str | None:
    if not isinstance(got, torch.Tensor):
        return _expected(path, f"a tensor of shape {tuple(want.shape)}", _short(got))
    if got.shape != want.shape:
        return _expected(path, f"shape {tuple(want.shape)}", f"{tuple(got.shape)}")
    if got.dtype != want.dtype:
        return _expected(path, f"{want.dtype}", f"{got.dtype}")
    wrong = ~close(got, want, tolerance)
    if not wrong.any():
        return None
    at = tuple(int(i) for i in wrong.nonzero()[0])
    place = path + (f"[{', '.join(map(str, at))}]" if at else "")
    pair = want[at].item(), got[at].item()
    return _expected(place, *(_digits(*pair) if want.is_floating_point() else map(str, pair)))


def close(one: torch.Tensor, other: torch.Tensor, tolerance: float) -> torch.Tensor:
    """Where two tensors of one dtype and shape are the same: whole numbers exactly; nan is like nan."""
    if not one.is_floating_point():
        return one == other
    return torch.isclose(one.double(), other.double(), rtol=tolerance, atol=tolerance, equal_nan=True)


def _digits(want: float, got: float) -> tuple[str, str]:
    """Both numbers with as many digits as it takes to see that they differ, and at least six."""
    for digits in range(6, 18):
        texts = f"{want:.{digits}g}", f"{got:.{digits}g}"
        if texts[0] != texts[1]:
            break
    is_rounded = want != got and torch.tensor(want, dtype=torch.float32).item() == got
    return texts[0], texts[1] + (ROUNDED if is_rounded else "")


def _close(got: float, want: float, tolerance: float) -> bool:
    return got == want or abs(got - want) <= tolerance * max(1.0, abs(want)) or (got != got and want != want)


def _first(differences) -> str | None:
    return next((found for found in differences if found), None)


def _join(path: str, key) -> str:
    return f"{path}.{key}" if path else str(key)


def _expected(path: str, want: str, got: str) -> str:
    return f"{path + ': ' if path else ''}expected {want}, got {got}"


def _short(value) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:78]} …"
