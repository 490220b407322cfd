"""The shapes of models that people train, and how many parameters follow from them.

GPT-2, Llama 3 and Mixtral: their published configurations; the counts follow from these to the last parameter.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A transformer's layers: how many, how wide, with how many heads; and its parameters in all.

    ``like_gpt`` says whether its layers are GPT's, for which formulas of activations were made.
    """

    name: str
    parameters: int
    layers: int
    width: int
    heads: int
    like_gpt: bool = True


def gpt_parameters(layers: int, width: int, vocabulary: int, places: int) -> int:
    """Returns the parameters of a GPT-2 whose head is its embedding: Vh + sh + L(12h² + 13h) + 2h."""
    return (vocabulary + places) * width + layers * (12 * width**2 + 13 * width) + 2 * width


def llama_parameters(layers: int, width: int, key_width: int, hidden: int, vocabulary: int, experts: int = 1) -> int:
    """Returns the parameters of a Llama, or, with ``experts`` above 1, of a Mixtral, which adds a router a layer.

    ``key_width`` is that of all keys together, ``hidden`` the MLP's. A layer has 2h² + 2h·keys of attention, three h ×
    hidden matrices an expert, and two norms. Embedding and head are two matrices.
    """
    attention = 2 * width**2 + 2 * width * key_width
    mlp = experts * 3 * width * hidden + (experts * width if experts > 1 else 0)
    return layers * (attention + mlp + 2 * width) + width + 2 * vocabulary * width


# The ZeRO paper's example says 7.5 billion and no more: layers as in Narayanan et al., arXiv 2104.04473, Table 1.
ZERO_7B = Shape("7.5B (ZeRO paper)", 7_500_000_000, 36, 4096, 32)
GPT_2 = Shape("GPT-2 (1.5B)", gpt_parameters(48, 1600, 50257, 1024), 48, 1600, 25)
LLAMA_8B = Shape("Llama 3 8B", llama_parameters(32, 4096, 1024, 14336, 128256), 32, 4096, 32, like_gpt=False)
LLAMA_70B = Shape("Llama 3 70B", llama_parameters(80, 8192, 1024, 28672, 128256), 80, 8192, 64, like_gpt=False)
LLAMA_405B = Shape("Llama 3 405B", llama_parameters(126, 16384, 1024, 53248, 128256), 126, 16384, 128, like_gpt=False)
MIXTRAL = Shape("Mixtral 8x7B", llama_parameters(32, 4096, 1024, 14336, 32000, experts=8), 32, 4096, 32, like_gpt=False)
SHAPES = (GPT_2, ZERO_7B, LLAMA_8B, MIXTRAL, LLAMA_70B, LLAMA_405B)
