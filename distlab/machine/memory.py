"""What a rank holds to train a model: model states by ZeRO stage, the largest model that fits, and activations.

Model states: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", arXiv
1910.02054: section V, Figure 1, Tables I and II. Activations: Korthikanti et al., "Reducing Activation Recomputation in
Large Transformer Models", arXiv 2205.05198: section 4, Table 2. Buffers and what an allocator wastes are in neither.
"""

from __future__ import annotations

from typing import NamedTuple

from distlab.machine.model_shapes import Shape

STAGES = (0, 1, 2, 3)
PRECISIONS = ("mixed 16-bit", "fp32")
# Bytes a parameter of an optimizer's own states, which are in 32 bits: Adam has two averages, momentum is one.
OPTIMIZERS = {"Adam": 8, "SGD with momentum": 4, "SGD": 0}
RECOMPUTATION = ("none", "selective", "full")


class Card(NamedTuple):
    """A GPU as it is sold: its memory in GB, and who has that much."""

    gigabytes: int
    names: str

    @property
    def bytes(self) -> float:
        """GB as 1e9 bytes. The chips' own are 2^30, 7% more, of which the driver and the allocator take a part."""
        return self.gigabytes * 1e9


# As in the tables of those who rent them out; quoted.
CARDS = (Card(24, "L4, A10G"), Card(40, "A100"), Card(80, "A100, H100"), Card(141, "H200"))


class Recipe(NamedTuple):
    """Bytes a parameter: of the weights that are computed with, of gradients, of the optimizer's states."""

    parameters: float
    gradients: float
    optimizer: float


# 16-bit weights and gradients; in 32 bits a copy of the weights and Adam's two averages: the paper's K = 12.
MIXED = Recipe(2, 2, 12)
# The same with gradients in 32 bits besides: Megatron's and nanotron's way to add up micro-batches.
MIXED_FP32_GRADIENTS = Recipe(2, 6, 12)
# All in 32 bits; the weights need no copy.
FP32 = Recipe(4, 4, 8)


def recipe(precision: str = "mixed 16-bit", optimizer: str = "Adam", fp32_gradients: bool = False) -> Recipe:
    """Returns the bytes a parameter of each kind; with Adam they are ``MIXED`` and ``FP32``.

    Mixed precision keeps a copy of the weights in 32 bits, which counts among the optimizer's states. With
    ``fp32_gradients`` it keeps one of the gradients too, in which micro-batches are added up: ``MIXED_FP32_GRADIENTS``.
    Raises ValueError for a precision or an optimizer that is not in ``PRECISIONS`` or ``OPTIMIZERS``.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}")
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, not {optimizer!r}")
    own = OPTIMIZERS[optimizer]
    return Recipe(4, 4, own) if precision == "fp32" else Recipe(2, 6 if fp32_gradients else 2, 4 + own)


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


def activation_bytes(
    sequence: int,
    micro_batch: int,
    width: int,
    heads: int,
    recompute: str = "none",
    precision: str = "mixed 16-bit",
    tensor_parallel: int = 1,
    sequence_parallel: bool = False,
) -> float:
    """Returns the bytes that one layer of a GPT keeps for its backward pass, on one of t ``tensor_parallel`` ranks.

    In 16 bits sbh(10 + 24/t + 5as/(ht)), with s places, b rows, width h and a heads; sequence parallelism divides the
    10 by t too. "selective" computes the a × s × s weights of the attention anew and leaves the last term out; "full"
    keeps the layer's input alone, 2sbh, 2sbh/t where sequences are cut. The formula (Table 2) is for GPT's layers: an
    MLP of width 4h with GELU, dropout, keys for each head, no fused attention. In it 2 of the 10 and 1 of the 5 are
    dropout's masks, of a byte each; all else doubles in 32 bits: whole, sbh(66 + 9as/h), 66sbh, 4sbh. Embeddings and
    logits, and the one layer that is being computed anew, come on top. Raises ValueError for an unknown ``recompute``
    or ``precision``, and for sizes below 1.
    """
    _check(recompute, precision, sequence, micro_batch, width, heads, tensor_parallel)
    number = 4 if precision == "fp32" else 2
    places = sequence * micro_batch
    whole = tensor_parallel if sequence_parallel else 1  # among how many ranks is shared what tensor parallelism is not
    if recompute == "full":
        return number * places * width / whole
    linear = places * width * ((4 * number + 2) / whole + 12 * number / tensor_parallel)
    weights = (2 * number + 1) * heads * sequence**2 * micro_batch / tensor_parallel
    return linear + weights * (recompute == "none")


def gated_activation_bytes(
    shape: Shape, sequence: int, micro_batch: int, recompute: str = "none", precision: str = "mixed 16-bit"
) -> float:
    """Returns the bytes that one layer with a gated MLP (a Llama's, say) keeps for its backward pass.

    A place has of each kind, in numbers: 4D around the two norms, HK of queries and of what attention gives, JK of keys
    and of values, 4F in the MLP (gate, up, the gate's SiLU, the product): 4D + 2HK + 2JK + 4F. Attention and norms are
    fused, so neither the T × T weights nor what a norm computes on its way are kept; there is no dropout. "selective"
    keeps what the MLP's three matrices give and computes the rest anew: D + 2F (Austin et al., "How to Scale Your
    Model", chapter "Training", question 2). "full" keeps the layer's input alone: D. Source of the first: computed, and
    counted in a test. Experts are not in it.
    Raises ValueError as :func:`activation_bytes`.
    """
    _check(recompute, precision, sequence, micro_batch)
    heads, keys = shape.heads * shape.head_width, shape.key_heads * shape.head_width
    numbers = {
        "none": 4 * shape.width + 2 * heads + 2 * keys + 4 * shape.hidden,
        "selective": shape.width + 2 * shape.hidden,
        "full": shape.width,
    }
    return (4 if precision == "fp32" else 2) * numbers[recompute] * sequence * micro_batch


def _check(recompute: str, precision: str, *sizes: int) -> None:
    if recompute not in RECOMPUTATION:
        raise ValueError(f"recompute must be one of {', '.join(RECOMPUTATION)}, not {recompute!r}")
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}")
    if min(sizes) < 1:
        raise ValueError(f"sizes must be at least 1, got {', '.join(map(str, sizes))}")
