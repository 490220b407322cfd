"""The tiny models that the labs share.

Letters at the end of a name say what its axes are: B rows of a batch, T places in the text, S places that are looked
at, D the model's width, H heads, K a head's width, V the vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
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


def split_heads(x_BTD: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Cuts the last axis into heads, one after the other: (B, T, H × K) becomes (B, H, T, K)."""
    return x_BTD.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def join_heads(x_BHTK: torch.Tensor) -> torch.Tensor:
    """Undoes :func:`split_heads`: (B, H, T, K) becomes (B, T, H × K)."""
    return x_BHTK.transpose(1, 2).flatten(-2)


def attention_weights(q_BHTK: torch.Tensor, k_BHSK: torch.Tensor) -> torch.Tensor:
    """How much each place looks at itself and at each place before it: shape (B, H, T, S), each row sums to 1."""
    scores_BHTS = q_BHTK @ k_BHSK.transpose(-2, -1) / q_BHTK.shape[-1] ** 0.5
    is_later_TS = torch.ones(scores_BHTS.shape[-2:], dtype=torch.bool, device=scores_BHTS.device).triu(1)
    return scores_BHTS.masked_fill(is_later_TS, float("-inf")).softmax(dim=-1)


class Attention(nn.Module):
    """Causal self-attention with ``num_heads`` heads.

    ``qkv`` makes queries, keys and values in one product: the rows of its weight are all of Q, then all of K, then all
    of V, and in each of them head after head. ``out`` mixes the heads' results. ``dropout`` is the probability that a
    weight of the attention is dropped in training.
    """

    def __init__(self, width: int, num_heads: int, dropout: float = 0.0):
        super().__init__()
        if width % num_heads:
            raise ValueError(f"width must be a multiple of num_heads, got {width} and {num_heads}")
        self.num_heads = num_heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D)."""
        q_BHTK, k_BHTK, v_BHTK = (split_heads(part_BTD, self.num_heads) for part_BTD in self.qkv(x_BTD).chunk(3, -1))
        weights_BHTT = F.dropout(attention_weights(q_BHTK, k_BHTK), self.dropout, self.training)
        return self.out(join_heads(weights_BHTT @ v_BHTK))


class MLP(nn.Module):
    """Two layers with GELU between them: ``up`` to 4 times the width, ``down`` again."""

    def __init__(self, width: int):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D)."""
        return self.down(F.gelu(self.up(x_BTD)))


class Block(nn.Module):
    """A layer of the GPT: attention, then the MLP, each behind a normalisation and added to what came in."""

    def __init__(self, width: int, num_heads: int, dropout: float = 0.0):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, num_heads, dropout)
        self.mlp = MLP(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Maps (B, T, D) to (B, T, D)."""
        x_BTD = x_BTD + self.dropout(self.attention(self.norm_1(x_BTD)))
        return x_BTD + self.dropout(self.mlp(self.norm_2(x_BTD)))


class GPT(nn.Module):
    """Predicts the next token at every place; each part is a module that a lab may put another in place of."""

    def __init__(
        self, vocabulary: int, width: int, num_layers: int, num_heads: int, context: int, dropout: float, tied: bool
    ):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, num_heads, dropout) for _ in range(num_layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids_BT: torch.Tensor) -> torch.Tensor:
        """Maps token ids (B, T) to logits (B, T, V)."""
        x_BTD = self.dropout(self.tokens(ids_BT) + self.positions.weight[: ids_BT.shape[1]])
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return self.head(self.norm(x_BTD))


def gpt(
    vocabulary: int = 96,
    width: int = 64,
    num_layers: int = 2,
    num_heads: int = 4,
    context: int = 64,
    dropout: float = 0.0,
    tied: bool = False,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> GPT:
    """Builds a small GPT whose normalisations come first; the same weights for the same ``seed``.

    ``context`` is the most places it can read, ``dropout`` a probability, ``tied`` makes the head's weight that of the
    token embedding. In every ``dtype`` the weights are those of float32. The global random state is left as it was.
    Raises ValueError if the heads do not divide the width. Source: Radford et al. 2019, "Language Models are
    Unsupervised Multitask Learners" (GPT-2), with a linear layer's usual initial weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT(vocabulary, width, num_layers, num_heads, context, dropout, tied).to(dtype)
