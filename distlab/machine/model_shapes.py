"""The shapes of models that people train, and what follows from them: parameters, and the bytes of a KV cache.

GPT-2, Llama, Mistral, Mixtral, Qwen 3 and Gemma as their published configurations say; the counts follow from these to
the last parameter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Shape:
    """A transformer: D ``width``, F ``hidden`` (of the MLP, or of one expert), H ``heads`` of K ``head_width`` each.

    ``key_heads`` are the heads of keys, and of values; ``head_width`` is D/H and ``key_heads`` H unless given. A
    gated MLP has three matrices, one without a gate two. ``is_tied``: the head is the embedding. ``places`` are
    positions with an embedding of their own, 0 where positions are rotations. ``like_gpt``: layers with biases and
    LayerNorm, for which formulas of activations were made; else without biases, with RMSNorm. ``norms_heads``: queries
    and keys are normed too. ``experts`` above 1: a router a layer sends each token to ``active_experts`` of them.
    ``stated`` are the parameters, where a source says how many but not the shape that gives them.
    """

    name: str
    layers: int
    width: int
    heads: int
    hidden: int
    vocabulary: int
    key_heads: int = 0
    head_width: int = 0
    places: int = 0
    is_gated: bool = True
    is_tied: bool = False
    like_gpt: bool = False
    norms_heads: bool = False
    experts: int = 1
    active_experts: int = 1
    stated: int = 0

    def __post_init__(self):
        if not self.head_width and self.width % self.heads:
            raise ValueError(f"{self.heads} heads do not divide a width of {self.width}: give head_width")
        object.__setattr__(self, "head_width", self.head_width or self.width // self.heads)
        object.__setattr__(self, "key_heads", self.key_heads or self.heads)

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.stated or self._count(self.experts)

    @property
    def active_parameters(self) -> int:
        """The parameters that one token meets: those of its own experts, and the whole router."""
        return self.parameters - self._count(self.experts) + self._count(self.active_experts)

    def kv_cache_bytes(self, places: int, rows: int = 1, number: float = 2) -> float:
        """Bytes of the keys and values of ``places`` places in each of ``rows`` rows, ``number`` bytes each of them."""
        return 2 * self.layers * self.key_heads * self.head_width * places * rows * number

    def _count(self, experts: int) -> int:
        ends = self.vocabulary * self.width * (1 if self.is_tied else 2) + self.places * self.width
        return ends + self.layers * (self._attention() + self._mlp(experts)) + (2 * self.layers + 1) * self._norm()

    def _attention(self) -> int:
        queries, keys = self.heads * self.head_width, self.key_heads * self.head_width
        biases = queries + 2 * keys + self.width if self.like_gpt else 0
        norms = 2 * self.head_width if self.norms_heads else 0
        return 2 * self.width * (queries + keys) + biases + norms

    def _mlp(self, experts: int) -> int:
        biases = self.hidden + self.width if self.like_gpt else 0
        router = self.experts * self.width if self.experts > 1 else 0
        return experts * ((3 if self.is_gated else 2) * self.width * self.hidden + biases) + router

    def _norm(self) -> int:
        return 2 * self.width if self.like_gpt else self.width


def shape_of(config: Mapping | str | Path, name: str = "") -> Shape:
    """The Shape that a published configuration describes: the path of a config.json, or what stands in one.

    Reads Hugging Face's names for the kinds of ``KNOWN``. Raises ValueError for another kind, and KeyError with the
    name of an entry that is missing.
    """
    entries = config if isinstance(config, Mapping) else json.loads(Path(config).read_text())
    kind = entries.get("model_type")
    if kind not in KNOWN:
        raise ValueError(f"the shape of a {kind!r} is not known here; known are {', '.join(KNOWN)}")
    return KNOWN[kind](entries, name or entries.get("_name_or_path") or kind)


def _gpt_2(config: Mapping, name: str) -> Shape:
    width = config["n_embd"]
    return _gpt(
        name, config["n_layer"], width, config["n_head"], config["vocab_size"], config["n_positions"],
        hidden=config.get("n_inner") or 4 * width,
    )  # fmt: skip


def _gpt(
    name: str, layers: int, width: int, heads: int, vocabulary: int, places: int, hidden: int = 0, **more
) -> Shape:
    return Shape(
        name, layers, width, heads, hidden or 4 * width, vocabulary, places=places,
        is_gated=False, is_tied=True, like_gpt=True, **more,
    )  # fmt: skip


def _llama(config: Mapping, name: str) -> Shape:
    experts = config.get("num_local_experts") or config.get("num_experts") or 1
    return Shape(
        name,
        layers=config["num_hidden_layers"],
        width=config["hidden_size"],
        heads=config["num_attention_heads"],
        hidden=config["moe_intermediate_size" if "moe_intermediate_size" in config else "intermediate_size"],
        vocabulary=config["vocab_size"],
        key_heads=config.get("num_key_value_heads") or 0,
        head_width=config.get("head_dim") or 0,
        is_tied=config.get("tie_word_embeddings", config["model_type"] == "gemma"),
        norms_heads=config["model_type"].startswith("qwen3"),
        experts=experts,
        active_experts=config["num_experts_per_tok"] if experts > 1 else 1,
    )


KNOWN = {"gpt2": _gpt_2} | dict.fromkeys(("llama", "mistral", "mixtral", "qwen3", "qwen3_moe", "gemma"), _llama)

# The ZeRO paper's example says 7.5 billion and no more: layers as in Narayanan et al., arXiv 2104.04473, Table 1.
ZERO_7B = _gpt("7.5B (ZeRO paper)", 36, 4096, 32, 51200, 2048, stated=7_500_000_000)
GPT_2 = _gpt("GPT-2 (1.5B)", 48, 1600, 25, 50257, 1024)
LLAMA_8B = Shape("Llama 3 8B", 32, 4096, 32, 14336, 128256, key_heads=8)
LLAMA_70B = Shape("Llama 3 70B", 80, 8192, 64, 28672, 128256, key_heads=8)
LLAMA_405B = Shape("Llama 3 405B", 126, 16384, 128, 53248, 128256, key_heads=8)
MIXTRAL = Shape("Mixtral 8x7B", 32, 4096, 32, 14336, 32000, key_heads=8, experts=8, active_experts=2)
SHAPES = (GPT_2, ZERO_7B, LLAMA_8B, MIXTRAL, LLAMA_70B, LLAMA_405B)
