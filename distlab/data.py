"""The small real data that the labs share; it comes with installed packages, never from a download."""

from __future__ import annotations

from functools import cache

import torch
from sklearn.datasets import load_digits

HELD_OUT = 357


@cache
def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    x_BD = torch.tensor(digits.data)[order] / 16
    return x_BD, torch.tensor(digits.target)[order]


def digits(part: str = "train", dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns 8×8 handwritten digits: ``x_BD`` of shape (rows, 64) from 0 to 1, and labels ``y_B`` from 0 to 9.

    ``part`` is "train" (1,440 rows), "test" (357 rows) or "all" (1,797 rows), in a fixed shuffled order.
    Source: the test set of the UCI "Optical Recognition of Handwritten Digits" data, as scikit-learn ships it.
    """
    rows = {"train": slice(None, -HELD_OUT), "test": slice(-HELD_OUT, None), "all": slice(None)}
    if part not in rows:
        raise ValueError(f'part must be "train", "test" or "all", not {part!r}')
    x_BD, y_B = _digits()
    return x_BD[rows[part]].to(dtype), y_B[rows[part]].clone()
