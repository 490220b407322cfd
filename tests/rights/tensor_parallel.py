"""Right answers in other styles for lab 08."""

from __future__ import annotations

from tests.rights import Right


def _in_halves(total: str) -> str:
    """A sum in place by a reduce-scatter and an all-gather, padded to what the ranks divide."""
    return (
        "ranks = dist.get_world_size(group)\n"
        f"        flat = F.pad({total}.flatten(), (0, -{total}.numel() % ranks))\n"
        "        mine = torch.empty(len(flat) // ranks, dtype=flat.dtype)\n"
        "        dist.reduce_scatter(mine, list(flat.chunk(ranks)), group=group)\n"
        "        parts = [torch.empty_like(mine) for _ in range(ranks)]\n"
        "        dist.all_gather(parts, mine, group=group)\n"
        f"        {total} = torch.cat(parts)[: {total}.numel()].view_as({total})"
    )


def _as_function(forward: str, backward: str) -> str:
    """An autograd.Function of one's own."""
    return (
        "class Pair(torch.autograd.Function):\n"
        f"        @staticmethod\n        def forward(ctx, x):\n            return {forward}\n\n"
        f"        @staticmethod\n        def backward(ctx, grad_y):\n            return {backward}\n\n"
        "    return Pair.apply(x)"
    )


_BACK = "dist.all_reduce(grad_x, group=group)"
_F = "return ThereAndBack.apply(x, lambda x: x, sum_up)"
_THERE = "dist.all_reduce(y, group=group)"
_G = "return ThereAndBack.apply(x, sum_up, lambda grad_y: grad_y)"

_PAIRS = (
    Right(
        "copy_to_group", _F, "y = x.view_as(x)\n    if y.requires_grad:\n        y.register_hook(sum_up)\n    return y"
    ),
    Right("copy_to_group", _F, _as_function("x.view_as(x)", "sum_up(grad_y.contiguous())")),
    Right("copy_to_group", _BACK, _in_halves("grad_x")),
    Right("copy_to_group", _BACK, "dist.all_reduce(grad_x, group=group, async_op=True).wait()"),
    Right("reduce_from_group", _G, "return x + (sum_up(x.detach()) - x).detach()"),
    Right("reduce_from_group", _G, _as_function("sum_up(x)", "grad_y.clone()")),
    Right("reduce_from_group", _THERE, _in_halves("y")),
)

_WEIGHT = "nn.Parameter(whole.weight.detach()[self.rows])"
_COLUMN = "return F.linear(copy_to_group(x_BTD, self.group), self.weight, self.bias)"
_COLUMNS = "nn.Parameter(whole.weight.detach()[:, self.columns])"
_SLICE = "nn.Parameter(whole.weight.data[:, self.columns[0] : self.columns[-1] + 1].clone())"
_ROW_BIAS = "self.bias = None if whole.bias is None else nn.Parameter(whole.bias.detach().clone())"
_REDUCED = "y_BTD = reduce_from_group(F.linear(x_BTc, self.weight), self.group)"
_GELU = "F.gelu(self.up(x_BTD))"

_LAYERS = (
    Right("ColumnParallelLinear", _WEIGHT, "nn.Parameter(torch.stack([whole.weight.data[row] for row in self.rows]))"),
    Right(
        "ColumnParallelLinear",
        f"self.weight = {_WEIGHT}",
        'self.register_buffer("index", torch.tensor(self.rows), persistent=False)\n'
        "        self.weight = nn.Parameter(whole.weight.detach().index_select(0, self.index))",
    ),
    Right(
        "ColumnParallelLinear",
        _COLUMN,
        "y_BTc = copy_to_group(x_BTD, self.group) @ self.weight.T\n"
        "        return y_BTc if self.bias is None else y_BTc + self.bias",
    ),
    Right("RowParallelLinear", _COLUMNS, _SLICE),
    Right(
        "RowParallelLinear",
        _ROW_BIAS,
        'self.register_parameter("bias", None)\n'
        "        if whole.bias is not None:\n            self.bias = nn.Parameter(whole.bias.data.clone())",
    ),
    Right(
        "RowParallelLinear",
        _REDUCED,
        'y_BTD = reduce_from_group(torch.einsum("btc,dc->btd", x_BTc, self.weight), self.group)',
    ),
    Right("ParallelMLP", _GELU, "nn.GELU()(self.up(x_BTD))"),
    Right(
        "ParallelMLP",
        f"return self.down({_GELU})",
        "h = self.up(x_BTD)\n        return self.down(h * (1 + torch.erf(h / 2**0.5)) / 2)",
    ),
)

_ROWS = "return [part * width + row for part in range(3) for row in share_of(width, group)]"
_CHUNKS = "parts = self.qkv(x_BTD).chunk(3, dim=-1)\n"
_SPLIT = "q_BhTK, k_BhTK, v_BhTK = (split_heads(part_BTc, len(self.heads)) for part_BTc in parts)"
_DRAWN = "mask_BHTT = F.dropout(weights_BhTT.new_ones(B, self.num_heads, T, T), self.dropout, self.training)"
_MASKED = "weights_BhTT = weights_BhTT * mask_BHTT[:, self.heads.start : self.heads.stop]"

_ATTENTION = (
    Right(
        "shard_qkv",
        _ROWS,
        "rows = torch.arange(3 * width).view(3, num_heads, -1)\n"
        "    return rows[:, list(share_of(num_heads, group))].flatten().tolist()",
    ),
    Right(
        "shard_qkv",
        _ROWS,
        "heads, K = share_of(num_heads, group), width // num_heads\n"
        "    return [row for row in range(3 * width) if row % width // K in heads]",
    ),
    Right(
        "ParallelAttention",
        f"{_DRAWN}\n        {_MASKED}",
        "wide = weights_BhTT.new_zeros(B, self.num_heads, T, T)\n"
        "        wide[:, list(self.heads)] = weights_BhTT\n"
        "        weights_BhTT = F.dropout(wide, self.dropout, self.training)[:, list(self.heads)]",
    ),
    Right(
        "ParallelAttention",
        f"{_DRAWN}\n        {_MASKED}",
        "if self.training and self.dropout:\n"
        f"            {_DRAWN}\n"
        "            weights_BhTT = weights_BhTT * mask_BHTT.narrow(1, self.heads.start, len(self.heads))",
    ),
    Right(
        "ParallelAttention",
        f"{_CHUNKS}        {_SPLIT}",
        "qkv_BT3hK = self.qkv(x_BTD).unflatten(-1, (3, len(self.heads), -1))\n"
        "        q_BhTK, k_BhTK, v_BhTK = qkv_BT3hK.permute(2, 0, 3, 1, 4)",
    ),
)

_LOOK_UP = (
    "x_BTD = F.embedding((ids_BT - mine.start) * is_mine_BT, weight_vD)\n"
    "    return reduce_from_group(x_BTD * is_mine_BT.unsqueeze(-1), group)"
)
_PICK = (
    "local_BT1 = ((targets_BT - mine.start) * is_mine_BT).unsqueeze(-1)\n"
    "    picked_BT = logits_BTv.gather(-1, local_BT1).squeeze(-1)\n"
    "    return reduce_from_group(picked_BT * is_mine_BT, group)"
)
_MAX = "dist.all_reduce(top_BT, op=dist.ReduceOp.MAX, group=group)\n    return top_BT"
_SUM = (
    "exps_BTv = (logits_BTv - top_BT.unsqueeze(-1)).exp()\n"
    "    total_BT = reduce_from_group(exps_BTv.sum(dim=-1), group)"
)

_VOCABULARY = (
    Right(
        "vocab_parallel_embedding",
        _LOOK_UP,
        "x_BTD = weight_vD[(ids_BT - mine.start).clamp(0, len(mine) - 1)]\n"
        "    return reduce_from_group(torch.where(is_mine_BT.unsqueeze(-1), x_BTD, x_BTD.new_zeros(())), group)",
    ),
    Right(
        "vocab_parallel_embedding",
        _LOOK_UP,
        "table = torch.cat([weight_vD, weight_vD.new_zeros(1, weight_vD.shape[1])])\n"
        "    local_BT = torch.where(is_mine_BT, ids_BT - mine.start, len(mine))\n"
        "    return reduce_from_group(F.embedding(local_BT, table), group)",
    ),
    Right(
        "vocab_parallel_embedding",
        _LOOK_UP,
        "is_here_BTv = ids_BT.unsqueeze(-1) == torch.tensor(list(mine))\n"
        "    return reduce_from_group(is_here_BTv.to(weight_vD.dtype) @ weight_vD, group)",
    ),
    Right(
        "global_max",
        _MAX,
        "tops = [torch.empty_like(top_BT) for _ in range(dist.get_world_size(group))]\n"
        "    dist.all_gather(tops, top_BT, group=group)\n    return torch.stack(tops).amax(dim=0)",
    ),
    Right(
        "global_max",
        f"top_BT = logits_BTv.detach().amax(dim=-1)\n    {_MAX}",
        "with torch.no_grad():\n        top_BT = logits_BTv.max(dim=-1).values\n"
        "        dist.all_reduce(top_BT, dist.ReduceOp.MAX, group)\n    return top_BT",
    ),
    Right(
        "target_logit",
        _PICK,
        "is_here_BTv = targets_BT.unsqueeze(-1) == torch.tensor(list(mine))\n"
        "    return reduce_from_group((logits_BTv * is_here_BTv).sum(dim=-1), group)",
    ),
    Right(
        "target_logit",
        _PICK,
        "local_BT = (targets_BT - mine.start).clamp(0, len(mine) - 1)\n"
        "    picked_BT = torch.take_along_dim(logits_BTv, local_BT.unsqueeze(-1), dim=-1)[..., 0]\n"
        "    return reduce_from_group(picked_BT.masked_fill(~is_mine_BT, 0), group)",
    ),
    Right(
        "vocab_parallel_cross_entropy",
        _SUM,
        "total_BT = reduce_from_group((logits_BTv.logsumexp(dim=-1) - top_BT).exp(), group)",
    ),
    Right(
        "vocab_parallel_cross_entropy",
        "return (total_BT.log() + top_BT - target_logit(logits_BTv, targets_BT, num_ids, group)).mean()",
        "shifted_BTv = logits_BTv - top_BT.unsqueeze(-1)\n"
        "    z_BT = target_logit(shifted_BTv, targets_BT, num_ids, group)\n"
        "    return (total_BT.log() - z_BT).sum() / targets_BT.numel()",
    ),
)

_FURTHER = (
    Right(
        "gather_sequence",
        "parts = [torch.empty_like(x_BpD) for _ in range(dist.get_world_size(group))]\n"
        "        dist.all_gather(parts, x_BpD, group=group)\n        return torch.cat(parts, dim=1)",
        "parts = x_BpD.new_empty(dist.get_world_size(group), *x_BpD.shape)\n"
        "        dist.all_gather_into_tensor(parts.flatten(0, 1), x_BpD, group=group)\n"
        "        return parts.transpose(0, 1).flatten(1, 2)",
    ),
    Right(
        "reduce_scatter_sequence",
        "dist.reduce_scatter(mine, parts, group=group)",
        "dist.reduce_scatter_tensor(mine, torch.cat(parts), group=group)",
    ),
)

RIGHTS = (*_PAIRS, *_LAYERS, *_ATTENTION, *_VOCABULARY, *_FURTHER)
