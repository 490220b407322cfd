"""Model states: the bytes that a rank holds for training with Adam, by ZeRO stage, and the largest model that fits.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", arXiv 1910.02054: section V,
Figure 1, Tables I and II. Activations, buffers and what an allocator wastes are not in it.
"""

from __future__ import annotations

from typing import NamedTuple

STAGES = (0, 1, 2, 3)


class Recipe(NamedTuple):
    """Bytes a parameter: of the weights that are computed with, of gradients, of the optimizer's states."""

    parameters: float
    gradients: float
    optimizer: float


# 16-bit weights and gradients; in 32 bits a copy of the weights and Adam's two averages: the paper's K = 12.
MIXED = Recipe(2, 2, 12)
# All in 32 bits; the weights need no copy.
FP32 = Recipe(4, 4, 8)


def bytes_by_kind(stage: int, ranks: int, recipe: Recipe = MIXED) -> Recipe:
    """Returns the bytes a parameter that one of ``ranks`` ranks holds in a ZeRO stage; stage 0 is data parallelism.

    Stage 1 cuts the optimizer's states, stage 2 the gradients too, stage 3 the weights too. Raises ValueError for an
    unknown stage or fewer ranks than one.
    """
    if stage not in STAGES:
        raise ValueError(f"stage must be one of {', '.join(map(str, STAGES))}, not {stage!r}")
    if ranks < 1:
        raise ValueError(f"ranks must be at least 1, got {ranks!r}")
    cut = (stage >= 3, stage >= 2, stage >= 1)
    return Recipe(*(size / ranks if is_cut else size for size, is_cut in zip(recipe, cut)))


def model_state_bytes(parameters: float, stage: int, ranks: int, recipe: Recipe = MIXED) -> float:
    """Returns the bytes of model states on one rank for a model of ``parameters`` parameters."""
    return parameters * sum(bytes_by_kind(stage, ranks, recipe))


def largest_model(memory_bytes: float, stage: int, ranks: int, recipe: Recipe = MIXED) -> float:
    """Returns the most parameters whose model states alone fit into ``memory_bytes`` on each rank."""
    return memory_bytes / sum(bytes_by_kind(stage, ranks, recipe))


def elements_sent(parameters: float, stage: int, ranks: int) -> float:
    """Returns the elements that each rank sends in a step, on rings: 2Ψ (N − 1)/N, in stage 3 3Ψ (N − 1)/N."""
    bytes_by_kind(stage, ranks)
    return (3 if stage == 3 else 2) * parameters * (ranks - 1) / ranks
