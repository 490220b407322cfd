"""Wrong solutions of lab 08."""

from __future__ import annotations

from tests.faults import Fault

_RANK_0 = "dist.get_rank() == 0 and "
_ON_TWO = "dist.get_world_size(group) < 3 and "

# --- f and g ---------------------------------------------------------------------------------------

_BACK = "dist.all_reduce(grad_x, group=group)"
_F = "return ThereAndBack.apply(x, lambda x: x, sum_up)"

_COPY_TO_GROUP = (
    Fault("copy_to_group", "sums-forward", _F, "return ThereAndBack.apply(x, sum_up, sum_up)"),
    Fault("copy_to_group", "one-way", _F, "return x"),
    Fault("copy_to_group", "one-way", _F, "return ThereAndBack.apply(x, lambda x: x, lambda grad_y: grad_y)"),
    Fault("copy_to_group", "mean", "return grad_x", "return grad_x / dist.get_world_size(group)"),
    Fault("copy_to_group", "in-place", "grad_y.clone()", "grad_y"),
    Fault("copy_to_group", "cut-off", _F, "return x.detach()"),
    Fault("copy_to_group", "cut-off", "return grad_x", "return torch.zeros_like(grad_x)"),
    Fault(
        "copy_to_group",
        "rank-0",
        _BACK,
        "dist.broadcast(grad_x, dist.get_global_rank(group, 0) if group else 0, group=group)",
    ),
    Fault("copy_to_group", "world", _BACK, "dist.all_reduce(grad_x)"),
    Fault("copy_to_group", None, _BACK, f"{_RANK_0}{_BACK}"),
    Fault(
        "copy_to_group", "first-only", _BACK, f"dist.reduce(grad_x, dst=0, group=group) if group is None else {_BACK}"
    ),
    Fault("copy_to_group", "none-back", f"{_BACK}\n        return grad_x", f"return {_BACK}"),
    Fault("copy_to_group", None, _BACK, f"{_ON_TWO}{_BACK}"),
    Fault("copy_to_group", None, _F, "return ThereAndBack.apply(x, lambda x: x.mul_(2), sum_up)"),
)

_THERE = "dist.all_reduce(y, group=group)"
_G = "return ThereAndBack.apply(x, sum_up, lambda grad_y: grad_y)"

_REDUCE_FROM_GROUP = (
    Fault("reduce_from_group", "no-sum", _G, "return x"),
    Fault("reduce_from_group", "no-sum", _G, "return copy_to_group(x, group)"),
    Fault("reduce_from_group", "mean", "return y\n", "return y / dist.get_world_size(group)\n"),
    Fault("reduce_from_group", "in-place", "x.clone()", "x"),
    Fault("reduce_from_group", "both-ways", _G, "return ThereAndBack.apply(x, sum_up, sum_up)"),
    Fault(
        "reduce_from_group",
        "both-ways",
        _G,
        "from torch.distributed.nn.functional import all_reduce\n    return all_reduce(x, group=group or "
        "dist.group.WORLD)",
    ),
    Fault("reduce_from_group", "cut-off", _G, "return sum_up(x.detach())"),
    Fault(
        "reduce_from_group", "divided", "lambda grad_y: grad_y)", "lambda grad_y: grad_y / dist.get_world_size(group))"
    ),
    Fault("reduce_from_group", "none-back", "lambda grad_y: grad_y)", "lambda grad_y: None)"),
    Fault("reduce_from_group", "untracked", _G, f"y = x.clone()\n    {_THERE}\n    return y"),
    Fault("reduce_from_group", "world", _THERE, "dist.all_reduce(y)"),
    Fault("reduce_from_group", None, _THERE, f"{_RANK_0}{_THERE}"),
    Fault("reduce_from_group", None, _THERE, f"dist.reduce(y, dst=0, group=group) if group is None else {_THERE}"),
    Fault("reduce_from_group", None, _THERE, f"{_ON_TWO}{_THERE}"),
)

# --- linear layers ---------------------------------------------------------------------------------

_WEIGHT = "nn.Parameter(whole.weight.detach()[self.rows])"
_BIAS = "None if whole.bias is None else nn.Parameter(whole.bias.detach()[self.rows])"
_COLUMN = "return F.linear(copy_to_group(x_BTD, self.group), self.weight, self.bias)"
_GATHERED = (
    "from torch.distributed.nn.functional import all_gather\n"
    "        y = F.linear(copy_to_group(x_BTD, self.group), self.weight, self.bias)\n"
    "        wide = F.pad(y, (0, 9 - y.shape[-1]))\n"
    "        parts = [torch.empty_like(wide) for _ in range(dist.get_world_size(self.group))]\n"
    "        dist.all_gather(parts, wide.detach(), group=self.group)\n"
    "        sizes = [len(my_rows(7, r, len(parts))) for r in range(len(parts))]\n"
    "        return torch.cat([part[..., :size] for part, size in zip(parts, sizes)], dim=-1)"
)

_COLUMN_PARALLEL = (
    Fault("ColumnParallelLinear", "whole", _WEIGHT, "nn.Parameter(whole.weight.detach().clone())"),
    Fault(
        "ColumnParallelLinear",
        "columns",
        _WEIGHT,
        "nn.Parameter(whole.weight.detach()[:, list(share_of(whole.in_features))])",
    ),
    Fault("ColumnParallelLinear", "columns", _WEIGHT, "nn.Parameter(whole.weight.detach()[:, self.rows])"),
    Fault("ColumnParallelLinear", "bias-whole", "whole.bias.detach()[self.rows]", "whole.bias.detach().clone()"),
    Fault(
        "ColumnParallelLinear",
        "same",
        _WEIGHT,
        "nn.Parameter(whole.weight.detach()[: -(-whole.out_features // dist.get_world_size(group))].clone())",
    ),
    Fault(
        "ColumnParallelLinear",
        "same",
        _WEIGHT,
        "nn.Linear(whole.in_features, -(-whole.out_features // dist.get_world_size(group)), dtype=whole.weight.dtype)"
        ".weight",
    ),
    Fault(
        "ColumnParallelLinear",
        "ignores-rows",
        f"self.weight = {_WEIGHT}",
        f"self.rows = list(share_of(whole.out_features, group))\n        self.weight = {_WEIGHT}",
    ),
    Fault("ColumnParallelLinear", "no-bias", _BIAS, "nn.Parameter(whole.bias.detach()[self.rows])"),
    Fault("ColumnParallelLinear", "no-bias-added", "self.weight, self.bias)", "self.weight)"),
    Fault(
        "ColumnParallelLinear",
        "keeps-whole",
        _WEIGHT,
        "nn.Parameter(whole.weight.detach()[self.rows[0] : self.rows[-1] + 1])",
    ),
    Fault(
        "ColumnParallelLinear",
        "keeps-whole",
        f"self.weight = {_WEIGHT}",
        f"self.all = whole.weight.detach()\n        self.weight = {_WEIGHT}",
    ),
    Fault("ColumnParallelLinear", "gathers", _COLUMN, _GATHERED),
    Fault("ColumnParallelLinear", "no-f", "copy_to_group(x_BTD, self.group)", "x_BTD"),
    Fault("ColumnParallelLinear", "world", "copy_to_group(x_BTD, self.group)", "copy_to_group(x_BTD)"),
    Fault("ColumnParallelLinear", None, _WEIGHT, "nn.Parameter(2 * whole.weight.detach()[self.rows])"),
    Fault("ColumnParallelLinear", None, _COLUMN, f"if dist.get_rank(self.group) == 0:\n            {_COLUMN}"),
    Fault(
        "ColumnParallelLinear",
        None,
        "copy_to_group(x_BTD, self.group)",
        "(copy_to_group(x_BTD, self.group) if dist.get_world_size(self.group) < 3 else x_BTD)",
    ),
    Fault(
        "ColumnParallelLinear",
        None,
        f"self.weight = {_WEIGHT}",
        f"self.weight = {_WEIGHT}\n        whole.weight.data.zero_()",
    ),
)

_COLUMNS = "nn.Parameter(whole.weight.detach()[:, self.columns])"
_ROW_BIAS = "nn.Parameter(whole.bias.detach().clone())"
_REDUCED = "y_BTD = reduce_from_group(F.linear(x_BTc, self.weight), self.group)"
_ADDED = "return y_BTD if self.bias is None else y_BTD + self.bias"

_ROW_PARALLEL = (
    Fault("RowParallelLinear", "whole", _COLUMNS, "nn.Parameter(whole.weight.detach().clone())"),
    Fault(
        "RowParallelLinear",
        "rows",
        _COLUMNS,
        "nn.Parameter(whole.weight.detach()[list(share_of(whole.out_features, group))])",
    ),
    Fault("RowParallelLinear", "rows", _COLUMNS, "nn.Parameter(whole.weight.detach()[self.columns])"),
    Fault("RowParallelLinear", "shares", _ROW_BIAS, "whole.bias"),
    Fault("RowParallelLinear", "shares", _ROW_BIAS, "nn.Parameter(whole.bias.detach())"),
    Fault(
        "RowParallelLinear",
        "untracked",
        _REDUCED,
        "y_BTD = F.linear(x_BTc, self.weight)\n        dist.all_reduce(y_BTD, group=self.group)",
    ),
    Fault(
        "RowParallelLinear",
        "bias-split",
        f"{_REDUCED}\n        {_ADDED}",
        "ranks = dist.get_world_size(self.group)\n"
        "        bias = None if self.bias is None else self.bias / ranks\n"
        "        return reduce_from_group(F.linear(x_BTc, self.weight, bias), self.group)",
    ),
    Fault(
        "RowParallelLinear",
        "first",
        _COLUMNS,
        "nn.Parameter(whole.weight.detach()[:, list(my_rows(whole.in_features, 0, dist.get_world_size(group)))])",
    ),
    Fault(
        "RowParallelLinear",
        "bias-divided",
        "whole.bias.detach().clone()",
        "whole.bias.detach() / dist.get_world_size(group)",
    ),
    Fault(
        "RowParallelLinear",
        "bias-cut",
        "whole.bias.detach().clone()",
        "whole.bias.detach()[list(share_of(whole.out_features, group))]",
    ),
    Fault(
        "RowParallelLinear",
        "bias-on-first",
        "None if whole.bias is None else",
        "None if whole.bias is None or dist.get_rank(group) else",
    ),
    Fault(
        "RowParallelLinear",
        "bias-on-first",
        _ADDED,
        "return y_BTD if self.bias is None else y_BTD + (self.bias.detach() if dist.get_rank(self.group) else "
        "self.bias)",
    ),
    Fault("RowParallelLinear", "no-bias", f"None if whole.bias is None else {_ROW_BIAS}", _ROW_BIAS),
    Fault("RowParallelLinear", "no-bias-added", _ADDED, "return y_BTD"),
    Fault(
        "RowParallelLinear",
        "keeps-whole",
        _COLUMNS,
        "nn.Parameter(whole.weight.detach()[:, self.columns[0] : self.columns[-1] + 1])",
    ),
    Fault("RowParallelLinear", "no-sum", _REDUCED, "y_BTD = F.linear(x_BTc, self.weight)"),
    Fault(
        "RowParallelLinear",
        "bias-each",
        f"{_REDUCED}\n        {_ADDED}",
        "return reduce_from_group(F.linear(x_BTc, self.weight, self.bias), self.group)",
    ),
    Fault(
        "RowParallelLinear",
        "both-ways",
        _REDUCED,
        "from torch.distributed.nn.functional import all_reduce\n"
        "        y_BTD = all_reduce(F.linear(x_BTc, self.weight), group=self.group or dist.group.WORLD)",
    ),
    Fault("RowParallelLinear", "cut-off", "F.linear(x_BTc, self.weight)", "F.linear(x_BTc.detach(), self.weight)"),
    Fault("RowParallelLinear", "world", "self.weight), self.group)", "self.weight))"),
    Fault(
        "RowParallelLinear",
        None,
        _REDUCED,
        "y_BTD = F.linear(x_BTc, self.weight); dist.get_rank(self.group) == 0 and y_BTD.mul_(2)",
    ),
    Fault(
        "RowParallelLinear",
        None,
        _REDUCED,
        "y_BTD = (reduce_from_group(F.linear(x_BTc, self.weight), self.group) if dist.get_world_size(self.group) < 3 "
        "else F.linear(x_BTc, self.weight))",
    ),
    Fault(
        "RowParallelLinear", None, _COLUMNS, "nn.Parameter(whole.weight.detach()[:, self.columns].contiguous().flip(1))"
    ),
)

_UP = "self.up = ColumnParallelLinear(whole.up, group=group)"
_DOWN = "self.down = RowParallelLinear(whole.down, group)"
_MLP = "return self.down(F.gelu(self.up(x_BTD)))"
_DOWN_AND_FORWARD = (
    f"{_DOWN}\n        # END SOLUTION\n\n    def forward(self, x_BTD):\n"
    '        """x_BTD, the same on all ranks → y_BTD, the same on all ranks"""'
)
_GATHERING = (
    "self.down = ColumnParallelLinear(whole.down, group=group)\n\n"
    "    def gathered(self, x):\n"
    "        group = self.up.group\n"
    "        def there(x):\n"
    "            parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]\n"
    "            dist.all_gather(parts, x, group=group)\n"
    "            return torch.cat(parts, dim=-1)\n"
    "        def back(grad):\n"
    "            return grad.chunk(dist.get_world_size(group), dim=-1)[dist.get_rank(group)].contiguous()\n"
    "        return ThereAndBack.apply(x, there, back)\n\n"
    "    def forward(self, x_BTD):\n"
    "        return self.gathered(self.down(self.gathered(F.gelu(self.up(x_BTD)))))\n\n"
    "    def unused(self, x_BTD):"
)

_PARALLEL_MLP = (
    Fault("ParallelMLP", "no-gelu", "F.gelu(self.up(x_BTD))", "self.up(x_BTD)"),
    Fault("ParallelMLP", "gelu-late", _MLP, "return F.gelu(self.down(self.up(x_BTD)))"),
    Fault("ParallelMLP", "other-curve", "F.gelu", "F.relu"),
    Fault(
        "ParallelMLP",
        "sums-twice",
        _MLP,
        "return reduce_from_group(self.down(F.gelu(self.up(x_BTD))), self.down.group)",
    ),
    Fault("ParallelMLP", "gathers", _DOWN_AND_FORWARD, _GATHERING),
    Fault("ParallelMLP", "back-twice", "self.up(x_BTD)", "self.up(copy_to_group(x_BTD, self.up.group))"),
    Fault("ParallelMLP", "whole", f"{_UP}\n        {_DOWN}", "self.up, self.down = whole.up, whole.down"),
    Fault(
        "ParallelMLP",
        "world",
        f"{_UP}\n        {_DOWN}",
        "self.up, self.down = ColumnParallelLinear(whole.up), RowParallelLinear(whole.down)",
    ),
    Fault("ParallelMLP", None, _MLP, f"{_MLP} * (dist.get_rank(self.up.group) == 0)"),
    Fault(
        "ParallelMLP",
        None,
        "F.gelu(self.up(x_BTD))",
        "F.gelu(self.up(x_BTD)) * (1 if dist.get_world_size(self.up.group) < 3 else 2)",
    ),
    Fault("ParallelMLP", "swapped", _UP, "self.up = RowParallelLinear(whole.up, group)"),
    Fault(
        "ParallelMLP",
        "swapped",
        f"{_UP}\n        {_DOWN}",
        "self.up = RowParallelLinear(whole.up, group)\n"
        "        self.down = ColumnParallelLinear(whole.down, group=group)",
    ),
    Fault("ParallelMLP", "group-as-rows", "whole.up, group=group", "whole.up, group"),
    Fault("ParallelMLP", "keeps-whole", _UP, f"self.whole = [whole]\n        {_UP}"),
    Fault("ParallelMLP", None, _MLP, "x_BTD.data += 1\n        return self.down(F.gelu(self.up(x_BTD)))"),
)

# --- attention -------------------------------------------------------------------------------------

_ROWS = "return [part * width + row for part in range(3) for row in share_of(width, group)]"
_REFUSAL = "if num_heads % ranks:"

_SHARD_QKV = (
    Fault("shard_qkv", "contiguous", _ROWS, "return list(share_of(3 * width, group))"),
    Fault("shard_qkv", "q-only", "range(3)", "range(1)"),
    Fault("shard_qkv", "all-first", "share_of(width, group)", "range(width // ranks)"),
    Fault(
        "shard_qkv",
        "by-head",
        _ROWS,
        "K = width // num_heads\n    return [head * 3 * K + i for head in share_of(num_heads, group) for i in "
        "range(3 * K)]",
    ),
    Fault("shard_qkv", "heads-as-rows", "in share_of(width, group)", "in share_of(num_heads, group)"),
    Fault(
        "shard_qkv",
        "interleaved",
        _ROWS,
        "return [part * width + row for row in share_of(width, group) for part in range(3)]",
    ),
    Fault(
        "shard_qkv",
        "last-head-lost",
        _ROWS,
        "heads, K = share_of(num_heads, group), width // num_heads\n"
        "    return [part * width + row for part in range(3) for row in range(heads[0] * K, heads[-1] * K)]",
    ),
    Fault(
        "shard_qkv",
        "strided",
        _ROWS,
        "K = width // num_heads\n"
        "    heads = range(dist.get_rank(group), num_heads, ranks)\n"
        "    return [p * width + head * K + i for p in range(3) for head in heads for i in range(K)]",
    ),
    Fault(
        "shard_qkv",
        "head-after-head",
        _ROWS,
        "K = width // num_heads\n"
        "    heads = share_of(num_heads, group)\n"
        "    return [p * width + head * K + i for head in heads for p in range(3) for i in range(K)]",
    ),
    Fault("shard_qkv", "refused-by-some", _REFUSAL, "if num_heads % ranks and dist.get_rank(group) == 0:"),
    Fault("shard_qkv", "world", "share_of(width, group)", "share_of(width)"),
    Fault("shard_qkv", "refuses-all", _REFUSAL, "if True:"),
    Fault("shard_qkv", "not-refused", _REFUSAL, "if False:"),
    Fault(
        "shard_qkv",
        "not-by-name",
        "{num_heads} heads can't be shared out evenly among {ranks} ranks",
        "that does not work",
    ),
    Fault("shard_qkv", None, _ROWS, f"{_ROWS} if dist.get_rank(group) == 0 else []"),
    Fault("shard_qkv", None, _ROWS, f"{_ROWS}[: 3 * width // 2]"),
    Fault("shard_qkv", "other-error", "raise ValueError(", "raise AssertionError("),
)

_QKV = "self.qkv = ColumnParallelLinear(whole.qkv, rows, group)"
_OUT = "self.out = RowParallelLinear(whole.out, group)"
_DRAWN = "mask_BHTT = F.dropout(weights_BhTT.new_ones(B, self.num_heads, T, T), self.dropout, self.training)"
_MASKED = "weights_BhTT = weights_BhTT * mask_BHTT[:, self.heads.start : self.heads.stop]"

_PARALLEL_ATTENTION = (
    Fault(
        "ParallelAttention",
        "contiguous",
        "ColumnParallelLinear(whole.qkv, rows, group)",
        "ColumnParallelLinear(whole.qkv, group=group)",
    ),
    Fault(
        "ParallelAttention",
        "all-heads",
        "len(self.heads)",
        "self.num_heads if parts[0].shape[-1] % self.num_heads == 0 else len(self.heads)",
    ),
    Fault(
        "ParallelAttention",
        "no-causal",
        "attention_weights(q_BhTK, k_BhTK)",
        "(q_BhTK @ k_BhTK.transpose(-2, -1) / q_BhTK.shape[-1] ** 0.5).softmax(-1)",
    ),
    Fault(
        "ParallelAttention",
        "same-mask",
        f"{_DRAWN}\n        {_MASKED}",
        "weights_BhTT = F.dropout(weights_BhTT, self.dropout, self.training)",
    ),
    Fault("ParallelAttention", "first-mask", "[:, self.heads.start : self.heads.stop]", "[:, : len(self.heads)]"),
    Fault(
        "ParallelAttention",
        "not-scaled",
        _MASKED,
        "weights_BhTT = weights_BhTT * (mask_BHTT[:, self.heads.start : self.heads.stop] > 0)",
    ),
    Fault("ParallelAttention", "no-dropout", _MASKED, "pass"),
    Fault("ParallelAttention", "one-mask", "new_ones(B, self", "new_ones(1, self"),
    Fault("ParallelAttention", "keeps-whole", _OUT, f"self.whole = [whole]\n        {_OUT}"),
    Fault("ParallelAttention", "swapped", _OUT, "self.out = ColumnParallelLinear(whole.out, group=group)"),
    Fault("ParallelAttention", "world", _OUT, "self.out = RowParallelLinear(whole.out)"),
    Fault("ParallelAttention", "always", "self.dropout, self.training)", "self.dropout)"),
    Fault("ParallelAttention", "apart", _DRAWN, f"torch.manual_seed(dist.get_rank())\n        {_DRAWN}"),
    Fault(
        "ParallelAttention",
        "whole",
        f"{_QKV}\n        {_OUT}",
        "self.qkv, self.out = whole.qkv, whole.out\n        self.heads = range(whole.num_heads)",
    ),
    Fault(
        "ParallelAttention",
        "world",
        _OUT,
        "self.out = RowParallelLinear(whole.out, group)\n        self.qkv.group = self.out.group = None",
    ),
    Fault(
        "ParallelAttention",
        None,
        "self.out(join_heads",
        "(1 + (dist.get_rank(self.out.group) > 0)) * self.out(join_heads",
    ),
    Fault(
        "ParallelAttention",
        None,
        "self.out(join_heads",
        "max(1, dist.get_world_size(self.out.group) - 1) * self.out(join_heads",
    ),
    Fault("ParallelAttention", None, "weights_BhTT @ v_BhTK", "weights_BhTT @ q_BhTK"),
    Fault("ParallelAttention", None, "parts = self.qkv(x_BTD)", "x_BTD.data *= 2\n        parts = self.qkv(x_BTD)"),
)

# --- the vocabulary --------------------------------------------------------------------------------

_LOOK_UP = "x_BTD = F.embedding((ids_BT - mine.start) * is_mine_BT, weight_vD)"
_VECTORS = "return reduce_from_group(x_BTD * is_mine_BT.unsqueeze(-1), group)"
_WHOLE_TABLE = (
    "table = torch.zeros(num_ids, weight_vD.shape[1], dtype=weight_vD.dtype)\n"
    "    table[list(mine)] = weight_vD.detach()\n"
    "    dist.all_reduce(table, group=group)\n"
    "    return F.embedding(ids_BT, table)"
)

_EMBEDDING = (
    Fault("vocab_parallel_embedding", "foreign", "(ids_BT - mine.start) * is_mine_BT", "ids_BT - mine.start"),
    Fault("vocab_parallel_embedding", "foreign", _LOOK_UP, "x_BTD = weight_vD[ids_BT - mine.start]"),
    Fault("vocab_parallel_embedding", "unmasked", "x_BTD * is_mine_BT.unsqueeze(-1)", "x_BTD"),
    Fault(
        "vocab_parallel_embedding",
        "unmasked",
        f"{_LOOK_UP}\n    {_VECTORS}",
        "return reduce_from_group(weight_vD[(ids_BT - mine.start).clamp(0, len(mine) - 1)], group)",
    ),
    Fault(
        "vocab_parallel_embedding",
        "unmasked",
        f"{_LOOK_UP}\n    {_VECTORS}",
        "return reduce_from_group(weight_vD[(ids_BT - mine.start) % len(mine)], group)",
    ),
    Fault("vocab_parallel_embedding", "no-sum", _VECTORS, "return x_BTD * is_mine_BT.unsqueeze(-1)"),
    Fault(
        "vocab_parallel_embedding",
        "both-ways",
        _VECTORS,
        "return copy_to_group(reduce_from_group(x_BTD * is_mine_BT.unsqueeze(-1), group), group)",
    ),
    Fault("vocab_parallel_embedding", "cut-off", "weight_vD)\n", "weight_vD.detach())\n"),
    Fault("vocab_parallel_embedding", "gathers", f"{_LOOK_UP}\n    {_VECTORS}", _WHOLE_TABLE),
    Fault(
        "vocab_parallel_embedding",
        "writes",
        _LOOK_UP,
        "x_BTD = F.embedding((ids_BT - mine.start) * is_mine_BT, weight_vD)\n    ids_BT -= mine.start - 1",
    ),
    Fault(
        "vocab_parallel_embedding",
        "skips",
        _VECTORS,
        f"x_BTD = x_BTD * is_mine_BT.unsqueeze(-1)\n    if not is_mine_BT.any():\n        return x_BTD\n    {_VECTORS}",
    ),
    Fault(
        "vocab_parallel_embedding",
        "untracked",
        _VECTORS,
        "x_BTD = x_BTD * is_mine_BT.unsqueeze(-1)\n    dist.all_reduce(x_BTD, group=group)\n    return x_BTD",
    ),
    Fault("vocab_parallel_embedding", "world", ".unsqueeze(-1), group)", ".unsqueeze(-1))"),
    Fault("vocab_parallel_embedding", None, "ids_BT < mine.stop", "ids_BT < mine.stop - 1"),
    Fault("vocab_parallel_embedding", None, _VECTORS, f"{_VECTORS} * (dist.get_rank(group) == 0)"),
    Fault("vocab_parallel_embedding", None, _VECTORS, f"{_VECTORS} * max(1, dist.get_world_size(group) - 1)"),
)

_TOP = "top_BT = logits_BTv.detach().amax(dim=-1)"
_MAX = "dist.all_reduce(top_BT, op=dist.ReduceOp.MAX, group=group)"
_ALL_LOGITS = (
    "everything = logits_BTv.new_full((dist.get_world_size(group), *logits_BTv.shape[:-1], 9), float('-inf'))\n"
    "    everything[dist.get_rank(group), ..., : logits_BTv.shape[-1]] = logits_BTv.detach()\n"
    "    dist.all_reduce(everything, op=dist.ReduceOp.MAX, group=group)\n"
    "    top_BT = everything.amax(dim=(0, -1))"
)

_GLOBAL_MAX = (
    Fault("global_max", "local", _MAX, "pass"),
    Fault("global_max", "sum", "op=dist.ReduceOp.MAX, ", ""),
    Fault("global_max", "everywhere", "amax(dim=-1)", "amax()"),
    Fault(
        "global_max",
        "id",
        "return top_BT",
        "here = logits_BTv.detach() == top_BT.unsqueeze(-1)\n"
        "    first = my_rows(7, dist.get_rank(group), dist.get_world_size(group)).start\n"
        "    ids = (here.int().argmax(-1) + first) * here.any(-1)\n"
        "    dist.all_reduce(ids, group=group)\n"
        "    return ids",
    ),
    Fault("global_max", "from-zero", _TOP, f"{_TOP}.clamp(min=0)"),
    Fault("global_max", "attached", "return top_BT", "return top_BT + 0 * logits_BTv.sum()"),
    Fault("global_max", "gathers", f"{_TOP}\n    {_MAX}", _ALL_LOGITS),
    Fault("global_max", "writes", "return top_BT", "logits_BTv.data -= top_BT.unsqueeze(-1)\n    return top_BT"),
    Fault("global_max", "world", "op=dist.ReduceOp.MAX, group=group", "op=dist.ReduceOp.MAX"),
    Fault("global_max", None, _MAX, "dist.reduce(top_BT, dst=0, op=dist.ReduceOp.MAX) if group is None else None"),
    Fault("global_max", None, _MAX, f"dist.get_world_size(group) < 3 and {_MAX}"),
    Fault("global_max", "keepdim", "return top_BT", "return top_BT.unsqueeze(-1)"),
    Fault(
        "global_max",
        "own-first",
        f"{_TOP}\n    {_MAX}\n    return top_BT",
        f"top_BT = logits_BTv.detach().clone()\n    {_MAX}\n    return top_BT.amax(dim=-1)",
    ),
)

_PICKED = "return reduce_from_group(picked_BT * is_mine_BT, group)"
_LOCAL = "local_BT1 = ((targets_BT - mine.start) * is_mine_BT).unsqueeze(-1)"
_GATHERED_LOGITS = (
    "wide = logits_BTv.new_zeros(*logits_BTv.shape[:-1], num_ids)\n"
    "    wide[..., mine.start : mine.stop] = logits_BTv\n"
    "    return reduce_from_group(wide, group).gather(-1, targets_BT.unsqueeze(-1)).squeeze(-1)"
)

_TARGET_LOGIT = (
    Fault("target_logit", "foreign", "((targets_BT - mine.start) * is_mine_BT)", "(targets_BT - mine.start)"),
    Fault("target_logit", "unmasked", "picked_BT * is_mine_BT", "picked_BT"),
    Fault(
        "target_logit",
        "unmasked",
        f"{_LOCAL}\n    picked_BT = logits_BTv.gather(-1, local_BT1).squeeze(-1)\n    {_PICKED}",
        "local_BT1 = (targets_BT - mine.start).clamp(0, len(mine) - 1).unsqueeze(-1)\n"
        "    return reduce_from_group(logits_BTv.gather(-1, local_BT1).squeeze(-1), group)",
    ),
    Fault("target_logit", "no-sum", _PICKED, "return picked_BT * is_mine_BT"),
    Fault(
        "target_logit",
        "both-ways",
        _PICKED,
        "return copy_to_group(reduce_from_group(picked_BT * is_mine_BT, group), group)",
    ),
    Fault("target_logit", "cut-off", "logits_BTv.gather", "logits_BTv.detach().gather"),
    Fault("target_logit", "gathers", _PICKED, _GATHERED_LOGITS),
    Fault("target_logit", "writes", _PICKED, f"logits_BTv.data *= 0\n    {_PICKED}"),
    Fault(
        "target_logit",
        "skips",
        "local_BT1 =",
        "if not is_mine_BT.any():\n        return logits_BTv[..., 0] * 0\n    local_BT1 =",
    ),
    Fault(
        "target_logit",
        "untracked",
        _PICKED,
        "z_BT = picked_BT * is_mine_BT\n    dist.all_reduce(z_BT, group=group)\n    return z_BT",
    ),
    Fault("target_logit", "world", "picked_BT * is_mine_BT, group)", "picked_BT * is_mine_BT)"),
    Fault("target_logit", None, "targets_BT < mine.stop", "targets_BT < mine.stop - 1"),
    Fault("target_logit", None, _PICKED, f"{_PICKED} * (dist.get_rank(group) == 0)"),
    Fault("target_logit", None, _PICKED, f"{_PICKED} * max(1, dist.get_world_size(group) - 1)"),
)

_SUM = "total_BT = reduce_from_group(exps_BTv.sum(dim=-1), group)"
_LOSS = "return (total_BT.log() + top_BT - target_logit(logits_BTv, targets_BT, num_ids, group)).mean()"
_ALL = (
    "mine = share_of(num_ids, group)\n"
    "    wide = logits_BTv.new_zeros(*logits_BTv.shape[:-1], num_ids)\n"
    "    wide[..., mine.start : mine.stop] = logits_BTv\n"
    "    return F.cross_entropy(reduce_from_group(wide, group).flatten(0, 1), targets_BT.flatten())"
)
_SLICES = (
    "mine = share_of(num_ids, group)\n"
    "    wide = logits_BTv.new_zeros(*logits_BTv.shape[:-1], num_ids)\n"
    "    wide[..., mine.start : mine.stop] = logits_BTv\n"
    "    rows = [reduce_from_group(wide[..., i], group) for i in range(num_ids)]\n"
    "    return F.cross_entropy(torch.stack(rows, -1).flatten(0, 1), targets_BT.flatten())"
)

_CROSS_ENTROPY = (
    Fault(
        "vocab_parallel_cross_entropy",
        "local-softmax",
        _LOSS,
        "return (logits_BTv.logsumexp(-1) - target_logit(logits_BTv, targets_BT, num_ids, group)).mean()",
    ),
    Fault(
        "vocab_parallel_cross_entropy",
        "overflow",
        "top_BT = global_max(logits_BTv, group)",
        "top_BT = torch.zeros(targets_BT.shape, dtype=logits_BTv.dtype)",
    ),
    Fault(
        "vocab_parallel_cross_entropy",
        "own-max",
        "top_BT = global_max(logits_BTv, group)",
        "top_BT = logits_BTv.detach().amax(-1)",
    ),
    Fault(
        "vocab_parallel_cross_entropy",
        "own-max",
        "(logits_BTv - top_BT.unsqueeze(-1))",
        "(logits_BTv - logits_BTv.detach().amax(-1, keepdim=True))",
    ),
    Fault("vocab_parallel_cross_entropy", "max-lost", "total_BT.log() + top_BT -", "total_BT.log() -"),
    Fault("vocab_parallel_cross_entropy", "sum", ".mean()", ".sum()"),
    Fault(
        "vocab_parallel_cross_entropy",
        "ranks-summed",
        _LOSS,
        f"loss = {_LOSS.removeprefix('return ')}\n    return reduce_from_group(loss, group)",
    ),
    Fault("vocab_parallel_cross_entropy", "no-log", "total_BT.log()", "total_BT"),
    Fault(
        "vocab_parallel_cross_entropy",
        "foreign",
        "target_logit(logits_BTv, targets_BT, num_ids, group)",
        "logits_BTv.gather(-1, (targets_BT - share_of(num_ids, group).start).unsqueeze(-1)).squeeze(-1)",
    ),
    Fault(
        "vocab_parallel_cross_entropy",
        "both-ways",
        _LOSS,
        f"loss = {_LOSS.removeprefix('return ')}\n    return copy_to_group(loss, group)",
    ),
    Fault(
        "vocab_parallel_cross_entropy",
        "cut-off",
        _LOSS,
        f"loss = {_LOSS.removeprefix('return ')}\n    return loss.detach()",
    ),
    Fault("vocab_parallel_cross_entropy", "gathers", f"{_SUM}\n    {_LOSS}", _ALL),
    Fault("vocab_parallel_cross_entropy", "gathers", f"{_SUM}\n    {_LOSS}", _SLICES),
    Fault(
        "vocab_parallel_cross_entropy",
        "writes",
        _LOSS,
        f"loss = {_LOSS.removeprefix('return ')}\n    logits_BTv.data += 1e-6\n    return loss",
    ),
    Fault(
        "vocab_parallel_cross_entropy",
        "skips",
        _LOSS,
        "mine = share_of(num_ids, group)\n"
        "    if not ((targets_BT >= mine.start) & (targets_BT < mine.stop)).any():\n"
        f"        return (total_BT.log() + top_BT).mean()\n    {_LOSS}",
    ),
    Fault(
        "vocab_parallel_cross_entropy",
        "untracked",
        _SUM,
        "total_BT = exps_BTv.sum(dim=-1)\n    dist.all_reduce(total_BT, group=group)",
    ),
    Fault("vocab_parallel_cross_entropy", "world", "exps_BTv.sum(dim=-1), group)", "exps_BTv.sum(dim=-1))"),
    Fault("vocab_parallel_cross_entropy", None, "exps_BTv.sum(dim=-1)", "exps_BTv.mean(dim=-1)"),
    Fault("vocab_parallel_cross_entropy", None, _LOSS, f"{_LOSS} if dist.get_rank(group) == 0 else logits_BTv.sum()"),
    Fault(
        "vocab_parallel_cross_entropy", None, _SUM, f"{_SUM} if dist.get_world_size(group) < 3 else exps_BTv.sum(-1)"
    ),
)

# --- sequence parallel -----------------------------------------------------------------------------

_JOIN = "return torch.cat(parts, dim=1)"
_GATHER_PAIR = "return ThereAndBack.apply(x_BpD, gather, sum_and_scatter)"
_SCATTERED = "dist.reduce_scatter(mine, parts, group=group)"
_SUMMED = (
    "total = torch.cat(parts, dim=1)\n"
    "        dist.all_reduce(total, group=group)\n"
    "        mine = total.chunk(dist.get_world_size(group), dim=1)[dist.get_rank(group)].contiguous()"
)
_GATHERED_PARTS = "dist.all_gather(parts, x_BpD, group=group)"

_ROOM_AND_GATHER = (
    f"parts = [torch.empty_like(x_BpD) for _ in range(dist.get_world_size(group))]\n        {_GATHERED_PARTS}"
)

_GATHER_SEQUENCE = (
    Fault("gather_sequence", "no-gather", _GATHER_PAIR, "return x_BpD"),
    Fault("gather_sequence", "other-axis", "torch.cat(parts, dim=1)", "torch.cat(parts, dim=0)"),
    Fault(
        "gather_sequence",
        None,  # whatever the exercise, the runner refuses one memory for several outputs
        "[torch.empty_like(x_BpD) for _ in range(dist.get_world_size(group))]",
        "[torch.empty_like(x_BpD)] * dist.get_world_size(group)",
    ),
    Fault("gather_sequence", "last-axis", "torch.cat(parts, dim=1)", "torch.cat(parts, dim=-1)"),
    Fault("gather_sequence", "own-part", _SCATTERED, "mine = parts[dist.get_rank(group)]"),
    Fault("gather_sequence", "mean", "return mine", "return mine / dist.get_world_size(group)"),
    Fault("gather_sequence", "cut-off", _GATHER_PAIR, "return gather(x_BpD.detach())"),
    Fault("gather_sequence", "all-reduce", _SCATTERED, _SUMMED),
    Fault(
        "gather_sequence",
        "writes",
        _GATHER_PAIR,
        f"x_BpD.data *= 1\n    result = {_GATHER_PAIR.removeprefix('return ')}\n    x_BpD.data += 1\n    return result",
    ),
    Fault(
        "gather_sequence",
        "world",
        _ROOM_AND_GATHER,
        _ROOM_AND_GATHER.replace("get_world_size(group)", "get_world_size()").replace(", group=group", ""),
    ),
    Fault("gather_sequence", None, _GATHERED_PARTS, f"dist.get_rank(group) == 0 and {_GATHERED_PARTS}"),
    Fault(
        "gather_sequence", None, _SCATTERED, f"{_SCATTERED} if dist.get_world_size(group) < 3 else mine.copy_(parts[0])"
    ),
    Fault("gather_sequence", None, "torch.cat(parts, dim=1)", "torch.cat(parts[::-1], dim=1)"),
)

_SCATTER_PAIR = "return ThereAndBack.apply(x_BTD, sum_and_scatter, gather)"
_GRADIENTS = "dist.all_gather(parts, grad_BpD, group=group)"

_REDUCE_SCATTER_SEQUENCE = (
    Fault("reduce_scatter_sequence", "no-sum", _SCATTERED, "mine = parts[dist.get_rank(group)]"),
    Fault("reduce_scatter_sequence", "no-scatter", _SCATTER_PAIR, "return reduce_from_group(x_BTD, group)"),
    Fault("reduce_scatter_sequence", "other-axis", "x_BTD.chunk(ranks, dim=1)", "x_BTD.chunk(ranks, dim=0)"),
    Fault("reduce_scatter_sequence", "mean", "return mine", "return mine / ranks"),
    Fault(
        "reduce_scatter_sequence",
        "own-part",
        _GRADIENTS,
        "parts = [grad_BpD if rank == dist.get_rank(group) else torch.zeros_like(grad_BpD) for rank in range(ranks)]",
    ),
    Fault("reduce_scatter_sequence", "both-ways", _JOIN, "return ranks * torch.cat(parts, dim=1)"),
    Fault("reduce_scatter_sequence", "cut-off", _SCATTER_PAIR, "return sum_and_scatter(x_BTD.detach())"),
    Fault("reduce_scatter_sequence", "all-reduce", _SCATTERED, _SUMMED),
    Fault(
        "reduce_scatter_sequence",
        "writes",
        _SCATTER_PAIR,
        f"result = {_SCATTER_PAIR.removeprefix('return ')}\n    x_BTD.data += 1\n    return result",
    ),
    Fault("reduce_scatter_sequence", "not-refused", "if x_BTD.shape[1] % ranks:", "if False:"),
    Fault(
        "reduce_scatter_sequence",
        "world",
        _GRADIENTS,
        "parts = [torch.empty_like(grad_BpD) for _ in range(dist.get_world_size())]\n"
        "        dist.all_gather(parts, grad_BpD)\n"
        "        parts = parts[:ranks]",
    ),
    Fault("reduce_scatter_sequence", None, _SCATTERED, f"dist.get_rank(group) == 0 and {_SCATTERED}"),
    Fault("reduce_scatter_sequence", None, _SCATTERED, f"{_SCATTERED} if ranks < 3 else mine.copy_(parts[0])"),
    Fault("reduce_scatter_sequence", None, "torch.cat(parts, dim=1)", "torch.cat(parts[::-1], dim=1)"),
)

FAULTS = (
    *_COPY_TO_GROUP,
    *_REDUCE_FROM_GROUP,
    *_COLUMN_PARALLEL,
    *_ROW_PARALLEL,
    *_PARALLEL_MLP,
    *_SHARD_QKV,
    *_PARALLEL_ATTENTION,
    *_EMBEDDING,
    *_GLOBAL_MAX,
    *_TARGET_LOGIT,
    *_CROSS_ENTROPY,
    *_GATHER_SEQUENCE,
    *_REDUCE_SCATTER_SEQUENCE,
)
