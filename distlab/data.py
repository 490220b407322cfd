"""The small real data that the labs share; it comes with installed packages, never from a download."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

HELD_OUT = 357
VOCABULARY = "\n" + "".join(map(chr, range(32, 127)))  # 96 characters, whatever the text holds
_UNKNOWN = "?"
_TEST_SHARE = 10  # one character in ten is kept for testing


@cache
def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    sklearn = find_spec("sklearn")  # its file is read as it is: to import scikit-learn takes as long as to import torch
    table = np.loadtxt(Path(sklearn.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(0))
    rows = torch.tensor(table)[order]
    return rows[:, :-1] / 16, rows[:, -1].long()


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


@cache
def _text() -> torch.Tensor:
    from pydoc_data.topics import topics

    folded = "\n".join(topics[name] for name in sorted(topics)).replace("\t", " ")
    codes_N = torch.frombuffer(bytearray(folded.encode("ascii", errors="replace")), dtype=torch.uint8)
    id_of_code = torch.full((128,), VOCABULARY.index(_UNKNOWN), device="cpu")
    id_of_code[list(VOCABULARY.encode())] = torch.arange(len(VOCABULARY), device="cpu")
    return id_of_code[codes_N.long()]


def text(part: str = "train") -> tuple[torch.Tensor, str]:
    """Returns real English text as characters: ``ids_N``, a LongTensor on the CPU, and the vocabulary, a str of 96.

    ``vocabulary[id]`` is the character: newline, then the 95 printable ones of ASCII; a tab counts as a space, any
    other character as "?". ``part`` is "train", "test" (the last tenth) or "all", in a fixed order. The text changes
    with Python's release, so rely on the vocabulary and not on what the text says or on its length. Raises ValueError
    for another part. Source: the reference topics that Python's own help() shows (``pydoc_data.topics``).
    """
    ids_N = _text()
    first = len(ids_N) - len(ids_N) // _TEST_SHARE
    rows = {"train": slice(None, first), "test": slice(first, None), "all": slice(None)}
    if part not in rows:
        raise ValueError(f'part must be "train", "test" or "all", not {part!r}')
    return ids_N[rows[part]].clone(), VOCABULARY


def text_batch(num_rows: int, length: int, seed: int = 0, part: str = "train") -> tuple[torch.Tensor, torch.Tensor]:
    """Returns pieces of the text and, for each character, the one that follows: ``x_BT`` and ``y_BT``.

    Both are LongTensors of shape (num_rows, length) on torch's default device. Where the pieces begin follows from
    ``seed`` alone; the global random state is left as it was.
    """
    ids_N, _ = text(part)
    generator = torch.Generator().manual_seed(seed)
    starts_B1 = torch.randint(len(ids_N) - length, (num_rows, 1), generator=generator, device="cpu")
    pieces_BT = ids_N[starts_B1 + torch.arange(length + 1, device="cpu")].to(torch.get_default_device())
    return pieces_BT[:, :-1], pieces_BT[:, 1:]
