"""Wrong solutions of lab 08."""

from __future__ import annotations

from tests.faults import Fault

_RANK_0 = "dist.get_rank() == 0 and "
_ON_TWO = "dist.get_world_size(group) < 3 and "
_BACK = "dist.all_reduce(grad_x, group=group)"
_F = "return ThereAndBack.apply(x, lambda x: x, sum_up)"
_THERE = "dist.all_reduce(y, group=group)"
_WEIGHT = "nn.Parameter(whole.weight.detach()[self.rows])"
_COLUMN = "return F.linear(copy_to_group(x_BTD, self.group), self.weight, self.bias)"
_COLUMNS = "nn.Parameter(whole.weight.detach()[:, self.columns])"
_REDUCED = "y_BTD = reduce_from_group(F.linear(x_BTc, self.weight), self.group)"
_MLP = "return self.down(F.gelu(self.up(x_BTD)))"
_ROWS = "return [part * width + row for part in range(3) for row in share_of(width, group)]"
_SPLIT = "(split_heads(part_BTc, len(self.heads)) for part_BTc"
_VECTORS = "return reduce_from_group(x_BTD * is_mine_BT.unsqueeze(-1), group)"
_MAX = "dist.all_reduce(top_BT, op=dist.ReduceOp.MAX, group=group)"
_PICKED = "return reduce_from_group(picked_BT * is_mine_BT, group)"
_SUM = "total_BT = reduce_from_group(exps_BTv.sum(dim=-1), group)"
_LOSS = "return (total_BT.log() + top_BT - target_logit(logits_BTv, targets_BT, num_ids, group)).mean()"
_SCATTERED = "dist.reduce_scatter(mine, parts, group=group)"
_GATHERED_PARTS = "dist.all_gather(parts, x_BpD, group=group)"

_COPY_TO_GROUP = (
    Fault("copy_to_group", None, _BACK, f"{_RANK_0}{_BACK}"),
    Fault("copy_to_group", None, _BACK, f"{_ON_TWO}{_BACK}"),
    Fault("copy_to_group", None, _BACK, "dist.all_reduce(grad_x, group=group, async_op=True)"),
    Fault("copy_to_group", None, _F, "return ThereAndBack.apply(x, lambda x: x.mul_(2), sum_up)"),
)

_REDUCE_FROM_GROUP = (
    Fault("reduce_from_group", None, _THERE, f"{_RANK_0}{_THERE}"),
    Fault("reduce_from_group", None, _THERE, f"dist.reduce(y, dst=0, group=group) if group is None else {_THERE}"),
    Fault("reduce_from_group", None, _THERE, f"{_ON_TWO}{_THERE}"),
)

_GATHER_SEQUENCE = (
    Fault(
        "gather_sequence",
        None,
        "[torch.empty_like(x_BpD) for _ in range(dist.get_world_size(group))]",
        "[torch.empty_like(x_BpD)] * dist.get_world_size(group)",
    ),
    Fault("gather_sequence", None, _GATHERED_PARTS, f"dist.get_rank(group) == 0 and {_GATHERED_PARTS}"),
    Fault(
        "gather_sequence", None, _SCATTERED, f"{_SCATTERED} if dist.get_world_size(group) < 3 else mine.copy_(parts[0])"
    ),
    Fault("gather_sequence", None, "torch.cat(parts, dim=1)", "torch.cat(parts[::-1], dim=1)"),
)

_REDUCE_SCATTER_SEQUENCE = (
    Fault("reduce_scatter_sequence", None, _SCATTERED, f"dist.get_rank(group) == 0 and {_SCATTERED}"),
    Fault("reduce_scatter_sequence", None, _SCATTERED, f"{_SCATTERED} if ranks < 3 else mine.copy_(parts[0])"),
    Fault("reduce_scatter_sequence", None, "torch.cat(parts, dim=1)", "torch.cat(parts[::-1], dim=1)"),
)

_COLUMN_PARALLEL = (
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

_ROW_PARALLEL = (
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

_PARALLEL_MLP = (
    Fault("ParallelMLP", None, _MLP, f"{_MLP} * (dist.get_rank(self.up.group) == 0)"),
    Fault(
        "ParallelMLP",
        None,
        "F.gelu(self.up(x_BTD))",
        "F.gelu(self.up(x_BTD)) * (1 if dist.get_world_size(self.up.group) < 3 else 2)",
    ),
    Fault("ParallelMLP", None, _MLP, "x_BTD.data += 1\n        return self.down(F.gelu(self.up(x_BTD)))"),
)

_SHARD_QKV = (
    Fault("shard_qkv", None, _ROWS, f"{_ROWS} if dist.get_rank(group) == 0 else []"),
    Fault("shard_qkv", None, _ROWS, f"{_ROWS}[: 3 * width // 2]"),
)

_PARALLEL_ATTENTION = (
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
    Fault("ParallelAttention", None, f"{_SPLIT} in parts)", f"{_SPLIT} in self.__dict__.setdefault('parts', parts))"),
    Fault("ParallelAttention", None, "parts = self.qkv(x_BTD)", "x_BTD.data *= 2\n        parts = self.qkv(x_BTD)"),
)

_EMBEDDING = (
    Fault("vocab_parallel_embedding", None, "ids_BT < mine.stop", "ids_BT < mine.stop - 1"),
    Fault("vocab_parallel_embedding", None, _VECTORS, f"{_VECTORS} * (dist.get_rank(group) == 0)"),
    Fault("vocab_parallel_embedding", None, _VECTORS, f"{_VECTORS} * max(1, dist.get_world_size(group) - 1)"),
)

_GLOBAL_MAX = (
    Fault("global_max", None, _MAX, "dist.reduce(top_BT, dst=0, op=dist.ReduceOp.MAX) if group is None else None"),
    Fault("global_max", None, _MAX, f"dist.get_world_size(group) < 3 and {_MAX}"),
)

_TARGET_LOGIT = (
    Fault("target_logit", None, "targets_BT < mine.stop", "targets_BT < mine.stop - 1"),
    Fault("target_logit", None, _PICKED, f"{_PICKED} * (dist.get_rank(group) == 0)"),
    Fault("target_logit", None, _PICKED, f"{_PICKED} * max(1, dist.get_world_size(group) - 1)"),
)

_CROSS_ENTROPY = (
    Fault("vocab_parallel_cross_entropy", None, "exps_BTv.sum(dim=-1)", "exps_BTv.mean(dim=-1)"),
    Fault("vocab_parallel_cross_entropy", None, _LOSS, f"{_LOSS} if dist.get_rank(group) == 0 else logits_BTv.sum()"),
    Fault(
        "vocab_parallel_cross_entropy", None, _SUM, f"{_SUM} if dist.get_world_size(group) < 3 else exps_BTv.sum(-1)"
    ),
)

UNWRAPPED = {
    ("shard_qkv", "rounded to float32"): "what it gives are no floats",
    ("copy_to_group", "unwaited"): "it sends on the way back only, when the call that the wrap surrounds is over",
    ("shard_qkv", "float64 only"): "it is given whole numbers, no tensors",
    ("shard_qkv", "changes what it is given"): "it is given whole numbers, which nobody can change",
}

FAULTS = (
    *_COPY_TO_GROUP,
    *_REDUCE_FROM_GROUP,
    *_GATHER_SEQUENCE,
    *_REDUCE_SCATTER_SEQUENCE,
    *_COLUMN_PARALLEL,
    *_ROW_PARALLEL,
    *_PARALLEL_MLP,
    *_SHARD_QKV,
    *_PARALLEL_ATTENTION,
    *_EMBEDDING,
    *_GLOBAL_MAX,
    *_TARGET_LOGIT,
    *_CROSS_ENTROPY,
)
