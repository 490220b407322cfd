"""Mistakes in lab 08: the linear layers and the MLP."""

from __future__ import annotations

from distlab.course.patches import Patch

_WEIGHT = "nn.Parameter(whole.weight.detach()[self.rows])"
_SET = f"self.weight = {_WEIGHT}"
_BIAS = "None if whole.bias is None else nn.Parameter(whole.bias.detach()[self.rows])"
_BOTH = f"{_SET}\n        self.bias = {_BIAS}"
_COPIED = "copy_to_group(x_BTD, self.group)"
_FIRST_ROWS = "whole.weight.detach()[: -(-whole.out_features // dist.get_world_size(group))].clone()"
_FRESH_ROWS = "nn.Linear(whole.in_features, len(self.rows), dtype=whole.weight.dtype).weight"
_GATHERED = (
    "y = F.linear(copy_to_group(x_BTD, self.group), self.weight, self.bias)\n"
    "        ranks = dist.get_world_size(self.group)\n"
    "        parts = [y.new_empty(*y.shape[:-1], 9) for _ in range(ranks)]\n"
    "        dist.all_gather(parts, F.pad(y.detach(), (0, 9 - y.shape[-1])), group=self.group)\n"
    "        return torch.cat([part[..., : len(my_rows(7, r, ranks))] for r, part in enumerate(parts)], dim=-1)"
)

_COLUMN_PARALLEL = (
    Patch("whole", _WEIGHT, "nn.Parameter(whole.weight.detach().clone())"),
    Patch("columns", _WEIGHT, "nn.Parameter(whole.weight.detach()[:, list(share_of(whole.in_features))])"),
    Patch("columns", _WEIGHT, "nn.Parameter(whole.weight.detach()[:, self.rows])", fails=True),
    Patch("bias-whole", "whole.bias.detach()[self.rows]", "whole.bias.detach().clone()"),
    Patch("same", _WEIGHT, f"nn.Parameter({_FIRST_ROWS})"),
    Patch("ignores-rows", _SET, f"self.rows = list(share_of(whole.out_features, group)); {_SET}"),
    Patch("no-bias", _BIAS, "nn.Parameter(whole.bias.detach()[self.rows])", fails=True),
    Patch("no-bias", _BIAS, "nn.Parameter(whole.bias[self.rows].detach())", fails=True),
    Patch("no-bias-added", "self.weight, self.bias)", "self.weight)"),
    Patch("fresh", _WEIGHT, _FRESH_ROWS),
    Patch("no-parameter", _WEIGHT, "whole.weight.detach()[self.rows]"),
    Patch("no-parameter", _BOTH, _BOTH.replace("nn.Parameter", "")),
    Patch("keeps-whole", _WEIGHT, "nn.Parameter(whole.weight.detach()[self.rows[0] : self.rows[-1] + 1])"),
    Patch("keeps-whole", _SET, f"self.all = whole.weight.detach(); {_SET}"),
    Patch("keeps-whole", _SET, f"self.whole = whole; {_SET}"),
    Patch("keeps-whole", _SET, f"self.whole = [whole]; {_SET}"),
    Patch("gathers", f"return F.linear({_COPIED}, self.weight, self.bias)", _GATHERED),
    Patch("no-f", _COPIED, "x_BTD"),
    Patch("world", _COPIED, "copy_to_group(x_BTD)"),
)

_COLUMNS = "nn.Parameter(whole.weight.detach()[:, self.columns])"
_ROW_SET = f"self.weight = {_COLUMNS}"
_ROW_BIAS = "nn.Parameter(whole.bias.detach().clone())"
_IF_ANY = f"None if whole.bias is None else {_ROW_BIAS}"
_ROW_BOTH = f"{_ROW_SET}\n        self.bias = {_IF_ANY}"
_SHARE = "list(my_rows(whole.in_features, 0, dist.get_world_size(group)))"
_FRESH_COLUMNS = "nn.Linear(len(self.columns), whole.out_features, dtype=whole.weight.dtype).weight"
_PART = "F.linear(x_BTc, self.weight)"
_REDUCED = f"y_BTD = reduce_from_group({_PART}, self.group)"
_ADDED = "return y_BTD if self.bias is None else y_BTD + self.bias"
_ALL = f"{_REDUCED}\n        {_ADDED}"
_BY_TORCH = (
    "import torch.distributed.nn.functional as nnf\n"
    f"        y_BTD = nnf.all_reduce({_PART}, group=self.group or dist.group.WORLD)"
)
_SPLIT = "None if self.bias is None else self.bias / dist.get_world_size(self.group)"
_ON_FIRST = "(self.bias.detach() if dist.get_rank(self.group) else self.bias)"

_ROW_PARALLEL = (
    Patch("whole", _COLUMNS, "nn.Parameter(whole.weight.detach().clone())"),
    Patch("rows", _COLUMNS, "nn.Parameter(whole.weight.detach()[list(share_of(whole.out_features, group))])"),
    Patch("rows", _COLUMNS, "nn.Parameter(whole.weight.detach()[self.columns])", fails=True),
    Patch("first", _COLUMNS, f"nn.Parameter(whole.weight.detach()[:, {_SHARE}])"),
    Patch("bias-divided", _ROW_BIAS, "nn.Parameter(whole.bias.detach() / dist.get_world_size(group))"),
    Patch("bias-split", _ALL, f"return reduce_from_group(F.linear(x_BTc, self.weight, {_SPLIT}), self.group)"),
    Patch("bias-cut", _ROW_BIAS, "nn.Parameter(whole.bias.detach()[list(share_of(whole.out_features, group))])"),
    Patch("bias-on-first", "None if whole.bias is None", "None if whole.bias is None or dist.get_rank(group)"),
    Patch("bias-on-first", _ADDED, f"return y_BTD if self.bias is None else y_BTD + {_ON_FIRST}"),
    Patch("no-bias", _IF_ANY, _ROW_BIAS, fails=True),
    Patch("no-bias", _IF_ANY, "nn.Parameter(whole.bias.clone().detach())", fails=True),
    Patch("no-bias-added", _ADDED, "return y_BTD"),
    Patch("bias-detached", _ADDED, f"{_ADDED}.detach()"),
    Patch("fresh", _COLUMNS, _FRESH_COLUMNS),
    Patch("no-parameter", _COLUMNS, "whole.weight.detach()[:, self.columns]"),
    Patch("no-parameter", _ROW_BOTH, _ROW_BOTH.replace("nn.Parameter", "")),
    Patch("none", _REDUCED, f"y_BTD = {_PART}; y_BTD = dist.all_reduce(y_BTD, group=self.group)", fails=True),
    Patch("keeps-whole", _COLUMNS, "nn.Parameter(whole.weight.detach()[:, self.columns[0] : self.columns[-1] + 1])"),
    Patch("keeps-whole", _ROW_SET, f"self.whole = whole; {_ROW_SET}"),
    Patch("keeps-whole", _ROW_SET, f"self.whole = [whole]; {_ROW_SET}"),
    Patch("shares", _ROW_BIAS, "whole.bias"),
    Patch("shares", _ROW_BIAS, "nn.Parameter(whole.bias.detach())"),
    Patch("no-sum", _REDUCED, f"y_BTD = {_PART}"),
    Patch("bias-each", _ALL, "return reduce_from_group(F.linear(x_BTc, self.weight, self.bias), self.group)"),
    Patch("both-ways", _REDUCED, _BY_TORCH),
    Patch("cut-off", _PART, "F.linear(x_BTc.detach(), self.weight)"),
    Patch("untracked", _REDUCED, f"y_BTD = {_PART}; dist.all_reduce(y_BTD, group=self.group)"),
    Patch("world", "self.weight), self.group)", "self.weight))"),
)

_UP = "self.up = ColumnParallelLinear(whole.up, group=group)"
_DOWN = "self.down = RowParallelLinear(whole.down, group)"
_UP_AND_DOWN = f"{_UP}\n        {_DOWN}"
_HIDDEN = "F.gelu(self.up(x_BTD))"
_ROWS_UP, _COLUMNS_DOWN = "self.up = RowParallelLinear(whole.up, group)", "self.down = ColumnParallelLinear(whole.down)"

_PARALLEL_MLP = (
    Patch("no-gelu", _HIDDEN, "self.up(x_BTD)"),
    Patch("gelu-late", f"self.down({_HIDDEN})", "F.gelu(self.down(self.up(x_BTD)))"),
    Patch("other-curve", "F.gelu", "F.relu"),
    Patch("approximate", "self.up(x_BTD))", "self.up(x_BTD), approximate='tanh')"),
    Patch("sums-twice", f"self.down({_HIDDEN})", f"reduce_from_group(self.down({_HIDDEN}), self.down.group)"),
    Patch("back-twice", "self.up(x_BTD)", "self.up(copy_to_group(x_BTD, self.up.group))"),
    Patch("gathers", _DOWN, _COLUMNS_DOWN),
    Patch("whole", _UP_AND_DOWN, "self.up, self.down = whole.up, whole.down"),
    Patch("keeps-whole", _UP, f"self.whole = [whole]; {_UP}"),
    Patch("keeps-whole", _UP, f"self.whole = whole; {_UP}"),
    Patch("swapped", _UP, _ROWS_UP),
    Patch("swapped", _UP_AND_DOWN, f"{_ROWS_UP}; {_COLUMNS_DOWN}"),
    Patch("group-as-rows", "whole.up, group=group", "whole.up, group", fails=True),
    Patch("world", "whole.up, group=group", "whole.up"),
    Patch("world", "whole.down, group", "whole.down"),
    Patch("world", _UP_AND_DOWN, "self.up, self.down = ColumnParallelLinear(whole.up), RowParallelLinear(whole.down)"),
)

PATCHES = {"ColumnParallelLinear": _COLUMN_PARALLEL, "RowParallelLinear": _ROW_PARALLEL, "ParallelMLP": _PARALLEL_MLP}
