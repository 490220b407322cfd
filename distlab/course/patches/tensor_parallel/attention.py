"""Mistakes in lab 08: attention."""

from __future__ import annotations

from distlab.course.patches import Patch

_ROWS = "return [part * width + row for part in range(3) for row in share_of(width, group)]"
_NEVER = "if num_heads % ranks:"
_REFUSED = "{num_heads} heads can't be shared out evenly among {ranks} ranks"
_K = "heads, K = share_of(num_heads, group), width // num_heads"
_STRIDED = "K, heads = width // num_heads, range(dist.get_rank(group), num_heads, ranks)"
_PER_HEAD = "return [part * width + head * K + i"
_NO_STOP = "return [p * width + row for p in range(3) for row in range(heads[0] * K, heads[-1] * K)]"

_SHARD_QKV = (
    Patch("contiguous", _ROWS, "return list(share_of(3 * width, group))"),
    Patch("q-only", "range(3)", "range(1)"),
    Patch("all-first", "share_of(width, group)", "range(width // ranks)"),
    Patch("contiguous", _ROWS, f"{_K}; return [head * 3 * K + i for head in heads for i in range(3 * K)]"),
    Patch("heads-as-rows", "in share_of(width, group)", "in share_of(num_heads, group)"),
    Patch("last-head-lost", _ROWS, f"{_K}; {_NO_STOP}"),
    Patch("strided", _ROWS, f"{_STRIDED}; {_PER_HEAD} for part in range(3) for head in heads for i in range(K)]"),
    Patch("head-after-head", _ROWS, f"{_K}; {_PER_HEAD} for head in heads for part in range(3) for i in range(K)]"),
    Patch("interleaved", _ROWS, "return [part * width + row for row in share_of(width, group) for part in range(3)]"),
    Patch("world", "share_of(width, group)", "share_of(width)"),
    Patch("refuses-all", _NEVER, "if True:"),
    Patch("not-refused", _NEVER, "if False:"),
    Patch("refused-by-some", _NEVER, "if num_heads % ranks and dist.get_rank(group) == 0:"),
    Patch("other-error", "raise ValueError(", "raise AssertionError("),
    Patch("not-by-name", _REFUSED, "that does not work"),
    Patch("not-by-name", _REFUSED, "not evenly among {ranks} ranks"),
    Patch("not-by-name", _REFUSED, "{num_heads} heads are not even"),
)

_QKV = "self.qkv = ColumnParallelLinear(whole.qkv, rows, group)"
_OUT = "self.out = RowParallelLinear(whole.out, group)"
_DRAWN = "mask_BHTT = F.dropout(weights_BhTT.new_ones(B, self.num_heads, T, T), self.dropout, self.training)"
_OWN = "mask_BHTT[:, self.heads.start : self.heads.stop]"
_MASKED = f"weights_BhTT = weights_BhTT * {_OWN}"
_DROPPED = "weights_BhTT = F.dropout(weights_BhTT, self.dropout, self.training)"
_UNMASKED = "(q_BhTK @ k_BhTK.transpose(-2, -1) / q_BhTK.shape[-1] ** 0.5).softmax(-1)"
_WHOLE = "self.qkv, self.out, self.heads = whole.qkv, whole.out, range(whole.num_heads)"

_PARALLEL_ATTENTION = (
    Patch("contiguous", "whole.qkv, rows, group", "whole.qkv, None, group"),
    Patch("all-heads", "len(self.heads)", "self.num_heads"),
    Patch("scale", "attention_weights(q_BhTK, k", "attention_weights(q_BhTK / len(self.heads) ** 0.5, k"),
    Patch("no-causal", "attention_weights(q_BhTK, k_BhTK)", _UNMASKED),
    Patch("same-mask", f"{_DRAWN}\n        {_MASKED}", _DROPPED),
    Patch("first-mask", _OWN, "mask_BHTT[:, : len(self.heads)]"),
    Patch("one-mask", "new_ones(B, self", "new_ones(1, self"),
    Patch("heads-cut", _OWN, "mask_BHTT[:, self.heads[0] : self.heads[-1]]", fails=True),
    Patch("mask-dtype", "weights_BhTT.new_ones(", "torch.ones("),
    Patch("not-scaled", _OWN, f"({_OWN} > 0)"),
    Patch("no-dropout", _MASKED, "pass"),
    Patch("always", "self.dropout, self.training)", "self.dropout)"),
    Patch("apart", _DRAWN, f"torch.manual_seed(dist.get_rank()); {_DRAWN}"),
    Patch("whole", f"{_QKV}\n        {_OUT}", _WHOLE),
    Patch("keeps-whole", _OUT, f"self.whole = [whole]; {_OUT}"),
    Patch("keeps-whole", _OUT, f"self.whole = whole; {_OUT}"),
    Patch("swapped", _OUT, "self.out = ColumnParallelLinear(whole.out, group=group)"),
    Patch("swapped", _QKV, "self.qkv = RowParallelLinear(whole.qkv, group)"),
    Patch("world", _OUT, "self.out = RowParallelLinear(whole.out)"),
    Patch("world", _OUT, f"{_OUT}; self.qkv.group = self.out.group = None"),
    Patch("world", "whole.num_heads, group)\n        self.qkv", "whole.num_heads)\n        self.qkv"),
    Patch("world", "whole.qkv, rows, group", "whole.qkv, rows"),
)

PATCHES = {"shard_qkv": _SHARD_QKV, "ParallelAttention": _PARALLEL_ATTENTION}
