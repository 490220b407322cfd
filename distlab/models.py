"""The tiny models that the labs share."""

from __future__ import annotations

import torch
from torch import nn


def mlp(*widths: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Builds Linear layers of the given widths with ReLU between them; the same weights for the same ``seed``.

    ``mlp(64, 64, 10)`` has 4,810 parameters and maps (rows, 64) to (rows, 10). The global random state is left as it
    was.
    """
    if len(widths) < 2:
        raise ValueError(f"mlp needs at least an input and an output width, got {widths}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for num_in, num_out in zip(widths, widths[1:], strict=False):
            layers += [nn.Linear(num_in, num_out, dtype=dtype), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
