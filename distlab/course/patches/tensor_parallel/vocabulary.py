"""Mistakes in lab 08: the vocabulary and its loss."""

from __future__ import annotations

from distlab.course.patches import Patch

_LOOK_UP = "x_BTD = F.embedding((ids_BT - mine.start) * is_mine_BT, weight_vD)"
_OWN = "x_BTD * is_mine_BT.unsqueeze(-1)"
_VECTORS = f"return reduce_from_group({_OWN}, group)"
_ALL = f"{_LOOK_UP}\n    {_VECTORS}"
_TABLE = "table = weight_vD.new_zeros(num_ids, weight_vD.shape[1]); table[list(mine)] = weight_vD"
_CLAMPED_IDS = "x_BTD = F.embedding((ids_BT - mine.start).clamp(0, len(mine) - 1), weight_vD)"
_MINE_OF = "mine = share_of(num_ids, group)"
_EQUAL = "start = dist.get_rank(group) * {0}; mine = range(start, start + {0})"

_EMBEDDING = (
    Patch("foreign", "(ids_BT - mine.start) * is_mine_BT", "ids_BT - mine.start", fails=True),
    Patch("foreign", _LOOK_UP, "x_BTD = weight_vD[ids_BT - mine.start]", fails=True),
    Patch("unmasked", _OWN, "x_BTD"),
    Patch("unmasked", _ALL, "return reduce_from_group(weight_vD[(ids_BT - mine.start) % len(mine)], group)"),
    Patch(
        "unmasked",
        _ALL,
        "return reduce_from_group(weight_vD[(ids_BT - mine.start).clamp(0, len(mine) - 1)], group)",
    ),
    Patch("one-too-many", f"< mine.stop)\n    {_LOOK_UP}", f"<= mine.stop)\n    {_CLAMPED_IDS}"),
    Patch("equal-shares", _MINE_OF, _EQUAL.format("len(weight_vD)")),
    Patch("no-sum", _VECTORS, f"return {_OWN}"),
    Patch("both-ways", _VECTORS, f"return copy_to_group(reduce_from_group({_OWN}, group), group)"),
    Patch("cut-off", "weight_vD)\n", "weight_vD.detach())\n"),
    Patch("untracked", _VECTORS, f"x_BTD = {_OWN}; dist.all_reduce(x_BTD, group=group); return x_BTD"),
    Patch("skips", _LOOK_UP, f"{_LOOK_UP}\n    if not is_mine_BT.any():\n        return 0 * x_BTD", fails=True),
    Patch(
        "gathers", _ALL, f"{_TABLE}.detach(); dist.all_reduce(table, group=group); return F.embedding(ids_BT, table)"
    ),
    Patch("gathers", _ALL, f"{_TABLE}; return F.embedding(ids_BT, reduce_from_group(table, group))"),
    Patch("writes", _LOOK_UP, f"{_LOOK_UP}; ids_BT -= mine.start - 1"),
    Patch("world", f"{_OWN}, group)", f"{_OWN})"),
)

_TOP = "top_BT = logits_BTv.detach().amax(dim=-1)"
_MAX = "dist.all_reduce(top_BT, op=dist.ReduceOp.MAX, group=group)"
_ALL_LOGITS = (
    "every = logits_BTv.new_full((dist.get_world_size(group), *logits_BTv.shape[:-1], 30), float('-inf'))\n"
    "    every[dist.get_rank(group), ..., : logits_BTv.shape[-1]] = logits_BTv.detach()\n"
    "    dist.all_reduce(every, op=dist.ReduceOp.MAX, group=group)\n"
    "    return every.amax(dim=(0, -1))"
)

_GLOBAL_MAX = (
    Patch("local", _MAX, "pass"),
    Patch("sum", "op=dist.ReduceOp.MAX, ", ""),
    Patch("none", f"{_MAX}\n    return top_BT", f"return {_MAX}"),
    Patch("first-only", _MAX, f"{_MAX} if group else dist.reduce(top_BT, dst=0, op=dist.ReduceOp.MAX)"),
    Patch("everywhere", "amax(dim=-1)", "amax()"),
    Patch("axis", "amax(dim=-1)", "amax(dim=1)", fails=True),
    Patch("axis", "amax(dim=-1)", "amax(dim=0)", fails=True),
    Patch("id", "amax(dim=-1)", "argmax(dim=-1)"),
    Patch("keepdim", "return top_BT", "return top_BT.unsqueeze(-1)"),
    Patch("own-first", f"{_TOP}\n    {_MAX}", f"top_BT = logits_BTv.detach().clone(); {_MAX}", fails=True),
    Patch("from-zero", _TOP, f"{_TOP}.clamp(min=0)"),
    Patch("attached", "return top_BT", "return top_BT + 0 * logits_BTv.sum()"),
    Patch("gathers", f"{_TOP}\n    {_MAX}\n    return top_BT", _ALL_LOGITS),
    Patch("writes", "return top_BT", "logits_BTv.data -= top_BT.unsqueeze(-1); return top_BT"),
    Patch("world", "op=dist.ReduceOp.MAX, group=group", "op=dist.ReduceOp.MAX"),
)

_MINE = "picked_BT * is_mine_BT"
_PICKED = f"return reduce_from_group({_MINE}, group)"
_PICK = "picked_BT = logits_BTv.gather(-1, local_BT1).squeeze(-1)"
_CLAMPED = "local_BT1 = (targets_BT - mine.start).clamp(0, len(mine) - 1).unsqueeze(-1)"
_WIDE = "wide = logits_BTv.new_zeros(*logits_BTv.shape[:-1], num_ids); wide[..., list(mine)] = logits_BTv"

_TARGET_LOGIT = (
    Patch("foreign", "((targets_BT - mine.start) * is_mine_BT)", "(targets_BT - mine.start)", fails=True),
    Patch("unmasked", _MINE, "picked_BT"),
    Patch("unmasked", f"{_PICK}\n    {_PICKED}", f"{_CLAMPED}; {_PICK}; return reduce_from_group(picked_BT, group)"),
    Patch("equal-shares", _MINE_OF, _EQUAL.format("logits_BTv.shape[-1]")),
    Patch("no-sum", _PICKED, f"return {_MINE}"),
    Patch("both-ways", _PICKED, f"return copy_to_group(reduce_from_group({_MINE}, group), group)"),
    Patch("cut-off", "logits_BTv.gather", "logits_BTv.detach().gather"),
    Patch("untracked", _PICKED, f"z_BT = {_MINE}; dist.all_reduce(z_BT, group=group); return z_BT"),
    Patch("skips", _PICK, f"{_PICK}\n    if not is_mine_BT.any():\n        return 0 * picked_BT", fails=True),
    Patch(
        "gathers",
        f"{_PICK}\n    {_PICKED}",
        f"{_WIDE}; return reduce_from_group(wide, group).gather(-1, targets_BT.unsqueeze(-1)).squeeze(-1)",
    ),
    Patch("one-hot", _PICK, "picked_BT = (logits_BTv * F.one_hot(targets_BT, num_ids)[..., list(mine)]).sum(dim=-1)"),
    Patch("writes", _PICKED, f"logits_BTv.data *= 0; {_PICKED}"),
    Patch("world", f"{_MINE}, group)", f"{_MINE})"),
)

_GLOBAL = "top_BT = global_max(logits_BTv, group)"
_TARGET = "target_logit(logits_BTv, targets_BT, num_ids, group)"
_MEAN = f"(total_BT.log() + top_BT - {_TARGET}).mean()"
_LOSS = f"loss = {_MEAN}"
_SUM = "total_BT = reduce_from_group(exps_BTv.sum(dim=-1), group)"
_REST = f"{_SUM}\n    return {_MEAN}"
_WIDE = f"mine = share_of(num_ids, group); {_WIDE}"
_FLAT = ".flatten(0, 1), targets_BT.flatten())"
_SLICES = f"{_WIDE}; rows = [reduce_from_group(wide[..., i], group) for i in range(num_ids)]"
_NONE_HERE = "not set(targets_BT.flatten().tolist()) & set(share_of(num_ids, group))"

_CROSS_ENTROPY = (
    Patch("local-softmax", _MEAN, f"(logits_BTv.logsumexp(-1) - {_TARGET}).mean()"),
    Patch("overflow", _GLOBAL, "top_BT = torch.zeros(targets_BT.shape, dtype=logits_BTv.dtype)"),
    Patch("own-max", _GLOBAL, "top_BT = logits_BTv.detach().amax(-1)"),
    Patch("own-max", "logits_BTv - top_BT.unsqueeze(-1)", "logits_BTv - logits_BTv.detach().amax(-1, keepdim=True)"),
    Patch("max-lost", "total_BT.log() + top_BT -", "total_BT.log() -"),
    Patch("sum", ".mean()", ".sum()"),
    Patch("ranks-summed", f"return {_MEAN}", f"{_LOSS}; return reduce_from_group(loss, group)"),
    Patch("no-log", "total_BT.log()", "total_BT"),
    Patch("axis", "exps_BTv.sum(dim=-1)", "exps_BTv.sum(dim=1)", fails=True),
    Patch("axis", "exps_BTv.sum(dim=-1)", "exps_BTv.sum(dim=0)", fails=True),
    Patch(
        "foreign",
        _TARGET,
        "logits_BTv.gather(-1, (targets_BT - share_of(num_ids, group).start).unsqueeze(-1)).squeeze(-1)",
        fails=True,
    ),
    Patch("both-ways", f"return {_MEAN}", f"{_LOSS}; return copy_to_group(loss, group)"),
    Patch("cut-off", f"return {_MEAN}", f"{_LOSS}; return loss.detach()"),
    Patch("untracked", _SUM, "total_BT = exps_BTv.sum(dim=-1); dist.all_reduce(total_BT, group=group)"),
    Patch("skips", _SUM, f"{_SUM}\n    if {_NONE_HERE}:\n        return total_BT.log().mean()", fails=True),
    Patch("gathers", _REST, f"{_WIDE}; return F.cross_entropy(reduce_from_group(wide, group){_FLAT}"),
    Patch("gathers", _REST, f"{_SLICES}; return F.cross_entropy(torch.stack(rows, -1){_FLAT}"),
    Patch("writes", f"return {_MEAN}", f"{_LOSS}; logits_BTv.data += 1; return loss"),
    Patch("world", "exps_BTv.sum(dim=-1), group)", "exps_BTv.sum(dim=-1))"),
)

PATCHES = {
    "vocab_parallel_embedding": _EMBEDDING,
    "global_max": _GLOBAL_MAX,
    "target_logit": _TARGET_LOGIT,
    "vocab_parallel_cross_entropy": _CROSS_ENTROPY,
}
