"""Mistakes in lab 08: f and g, and their likes for sequences."""

from __future__ import annotations

from distlab.course.patches import Patch

_RANKS = "dist.get_world_size(group)"
_BACK = "dist.all_reduce(grad_x, group=group)"
_F = "return ThereAndBack.apply(x, lambda x: x, sum_up)"
_THERE = "dist.all_reduce(y, group=group)"
_G = "return ThereAndBack.apply(x, sum_up, lambda grad_y: grad_y)"
_ROOM = f"parts = [torch.empty_like(x) for _ in range({_RANKS})]; dist.all_gather(parts, x.detach(), group=group)"
_BY_TORCH = "import torch.distributed.nn.functional as nnf; return nnf.all_reduce(x, group=group or dist.group.WORLD)"

_COPY_TO_GROUP = (
    Patch("sums-forward", _F, "return ThereAndBack.apply(x, sum_up, sum_up)"),
    Patch("one-way", _F, "return x"),
    Patch("one-way", _F, "return ThereAndBack.apply(x, lambda x: x, lambda grad_y: grad_y)"),
    Patch("one-way", _BACK, "dist.all_reduce(grad_x.clone(), group=group)"),
    Patch("mean", "return grad_x", f"return grad_x / {_RANKS}"),
    Patch("in-place", "grad_y.clone()", "grad_y"),
    Patch("cut-off", _F, "return x.detach()"),
    Patch("cut-off", "return grad_x", "return torch.zeros_like(grad_x)"),
    Patch("none-back", f"{_BACK}\n        return grad_x", f"return {_BACK}"),
    Patch("hook", _F, "y = x.view_as(x); y.register_hook(sum_up); return y", fails=True),
    Patch("rank-0", _BACK, "dist.broadcast(grad_x, dist.get_global_rank(group, 0) if group else 0, group=group)"),
    Patch("first-only", _BACK, f"dist.reduce(grad_x, dst=0) if group is None else {_BACK}"),
    Patch("gathers", _BACK, f"x = grad_y; {_ROOM}; grad_x = sum(parts)"),
    Patch("world", _BACK, "dist.all_reduce(grad_x)"),
)

_REDUCE_FROM_GROUP = (
    Patch("no-sum", _G, "return x"),
    Patch("no-sum", _G, "return copy_to_group(x, group)"),
    Patch("no-sum", _THERE, "dist.all_reduce(y.clone(), group=group)"),
    Patch("mean", "return y\n", f"return y / {_RANKS}\n"),
    Patch("none", f"{_THERE}\n        return y\n", f"return {_THERE}\n"),
    Patch("in-place", "x.clone()", "x"),
    Patch("both-ways", _G, "return ThereAndBack.apply(x, sum_up, sum_up)"),
    Patch("both-ways", _G, _BY_TORCH),
    Patch("cut-off", _G, "return sum_up(x.detach())"),
    Patch("none-back", "lambda grad_y: grad_y)", "lambda grad_y: None)"),
    Patch("untracked", _G, f"y = x.clone(); {_THERE}; return y"),
    Patch("divided", "lambda grad_y: grad_y)", f"lambda grad_y: grad_y / {_RANKS})"),
    Patch("first-only", _THERE, f"dist.reduce(y, dst=0) if group is None else {_THERE}"),
    Patch("gathers", _THERE, f"{_ROOM}; y = sum(parts)"),
    Patch("world", _THERE, "dist.all_reduce(y)"),
)

_JOIN = "torch.cat(parts, dim=1)"
_GATHER_PAIR = "return ThereAndBack.apply(x_BpD, gather, sum_and_scatter)"
_SCATTERED = "dist.reduce_scatter(mine, parts, group=group)"
_SUMMED = (
    f"total = {_JOIN}; dist.all_reduce(total, group=group)\n"
    f"        mine = total.chunk({_RANKS}, dim=1)[dist.get_rank(group)].contiguous()"
)
_HERE = f"for _ in range({_RANKS})]\n        dist.all_gather(parts, x_BpD, group=group)"
_EVERYWHERE = "for _ in range(dist.get_world_size())]; dist.all_gather(parts, x_BpD)"

_GATHER_SEQUENCE = (
    Patch("no-gather", _GATHER_PAIR, "return x_BpD"),
    Patch("other-axis", _JOIN, "torch.cat(parts, dim=0)"),
    Patch("last-axis", _JOIN, "torch.cat(parts, dim=-1)"),
    Patch("own-part", _SCATTERED, "mine = parts[dist.get_rank(group)]"),
    Patch("mean", "return mine", f"return mine / {_RANKS}"),
    Patch("cut-off", _GATHER_PAIR, "return gather(x_BpD.detach())"),
    Patch("all-reduce", _SCATTERED, _SUMMED),
    Patch("writes", _GATHER_PAIR, _GATHER_PAIR.replace("return", "y =") + "; x_BpD.data += 1; return y"),
    Patch("world", _HERE, _EVERYWHERE),
)

_SCATTER_PAIR = "return ThereAndBack.apply(x_BTD, sum_and_scatter, gather)"
_REFUSAL = "{x_BTD.shape[1]} places can't be shared out evenly among {ranks} ranks"
_GRADIENTS = "dist.all_gather(parts, grad_BpD, group=group)"
_OWN = "parts = [grad_BpD if rank == dist.get_rank(group) else 0 * grad_BpD for rank in range(ranks)]"
_OTHERS = (
    "parts = [torch.empty_like(grad_BpD) for _ in range(dist.get_world_size())]\n"
    "        dist.all_gather(parts, grad_BpD); parts = parts[:ranks]"
)

_REDUCE_SCATTER_SEQUENCE = (
    Patch("no-sum", _SCATTERED, "mine = parts[dist.get_rank(group)]"),
    Patch("other-axis", "x_BTD.chunk(ranks, dim=1)", "x_BTD.chunk(ranks, dim=0)"),
    Patch("no-scatter", _SCATTER_PAIR, "return reduce_from_group(x_BTD, group)"),
    Patch("mean", "return mine", "return mine / ranks"),
    Patch("own-part", _GRADIENTS, _OWN),
    Patch("both-ways", f"return {_JOIN}", f"return ranks * {_JOIN}"),
    Patch("cut-off", _SCATTER_PAIR, "return sum_and_scatter(x_BTD.detach())"),
    Patch("all-reduce", _SCATTERED, _SUMMED),
    Patch("writes", _SCATTER_PAIR, _SCATTER_PAIR.replace("return", "y =") + "; x_BTD.data += 1; return y"),
    Patch("not-refused", "if x_BTD.shape[1] % ranks:", "if False:", fails=True),
    Patch("not-refused", "raise ValueError(", "raise AssertionError(", fails=True),
    Patch("not-refused", _REFUSAL, "that does not work"),
    Patch("not-refused", _REFUSAL, "not evenly among {ranks} ranks"),
    Patch("not-refused", _REFUSAL, "{x_BTD.shape[1]} places are not even"),
    Patch("world", _GRADIENTS, _OTHERS),
)

PATCHES = {
    "copy_to_group": _COPY_TO_GROUP,
    "reduce_from_group": _REDUCE_FROM_GROUP,
    "gather_sequence": _GATHER_SEQUENCE,
    "reduce_scatter_sequence": _REDUCE_SCATTER_SEQUENCE,
}
