"""Wrong solutions of lab 05."""

from __future__ import annotations

from tests.faults import Fault

_SIZE = "size = -(-sum(p.numel() for p in parameters) // world)"
_ZEROS = "torch.zeros(world * size, dtype"
_SHARD = "weights_P[rank * size : (rank + 1) * size]"
_ONCE = "list(dict.fromkeys(p for p in parameters if p.requires_grad))"

_PARTITION = (
    Fault("partition", "floor", _SIZE, "size = sum(p.numel() for p in parameters) // world"),
    Fault(
        "partition",
        "floor",
        f"{_SIZE}\n",
        "size = sum(p.numel() for p in parameters) // world; parameters = parameters[: 1 if world > 2 else None]\n",
    ),
    Fault("partition", "unpadded", _ZEROS, "torch.zeros(sum(p.numel() for p in parameters), dtype"),
    Fault("partition", "tied-twice", _ONCE, "[p for p in parameters if p.requires_grad]"),
    Fault("partition", "frozen", _ONCE, "list(dict.fromkeys(parameters))"),
    Fault("partition", "rank-0", f"return weights_P, {_SHARD}", "return weights_P, weights_P[:size]"),
    Fault(
        "partition",
        "reversed",
        f"return weights_P, {_SHARD}",
        "return weights_P, weights_P.chunk(world)[world - 1 - rank]",
    ),
    Fault("partition", "strided", f"return weights_P, {_SHARD}", "return weights_P, weights_P[rank::world]"),
    Fault("partition", "parameters-copied", "p.data = part", "p.data = part.clone()"),
    Fault("partition", "shard-copied", f"return weights_P, {_SHARD}", f"return weights_P, {_SHARD}.clone()"),
    Fault("partition", "unfilled", "part.copy_(p.detach())", "pass"),
    Fault("partition", "no-start", "start += p.numel()", "pass"),
    Fault("partition", "one-too-many", _SIZE, "size = sum(p.numel() for p in parameters) // world + 1"),
    Fault(
        "partition",
        "looked-for",
        _ONCE,
        "[p for p in parameters if p.requires_grad][:0] or [\n"
        "        p for i, p in enumerate(parameters) if p.requires_grad and p not in parameters[:i]]",
    ),
    Fault("partition", "dtype", ", dtype=parameters[0].dtype, device=parameters[0].device", ""),
    Fault("partition", "in-graph", "part.copy_(p.detach())", "part.copy_(p)"),
    Fault(
        "partition",
        "in-graph",
        "p.data = part\n        start += p.numel()\n    return",
        "start += p.numel()\n    weights_P = torch.cat([*(p.flatten() for p in parameters), weights_P[start:]])\n"
        "    start = 0\n    for p in parameters:\n"
        "        p.data = weights_P[start : start + p.numel()].view_as(p)\n        start += p.numel()\n    return",
    ),
    Fault("partition", None, f"return weights_P, {_SHARD}", "return weights_P"),
    Fault("partition", None, "part.copy_(p.detach())", "rank == 0 and part.copy_(p.detach())"),
    Fault("partition", None, "weights_P[rank * size :", "weights_P[rank % 2 * size :"),
)

_MINE = "unit.gradient_P.chunk(world)[rank]"
_ALL_REDUCE = "dist.all_reduce(unit.gradient_P)"
_STEP = "unit.optimizer.step()"
_GATHER = "all_gather(unit.weights_P, unit.shard_S)"
_GRAD = f"unit.shard_S.grad = {_MINE}"
_DIVIDED = "unit.gradient_P = unit.gradient_P / world"
_STEP_LINE = f"{_STEP}\n"  # it stands in a docstring, too

_ZERO1_BY_ALL_REDUCE = (
    Fault("zero1_by_all_reduce", "no-step", _STEP_LINE, "pass\n"),
    Fault("zero1_by_all_reduce", "no-gradient", _GRAD, f"mine = {_MINE}"),
    Fault("zero1_by_all_reduce", "sum", "unit.gradient_P /= world", "pass"),
    Fault("zero1_by_all_reduce", "own", f"{_ALL_REDUCE}\n    unit.gradient_P /= world", "pass"),
    Fault("zero1_by_all_reduce", "own-divided", _ALL_REDUCE, "dist.all_reduce(unit.gradient_P.clone())"),
    Fault("zero1_by_all_reduce", "swapped", _GATHER, "all_gather(unit.shard_S, unit.weights_P)"),
    Fault("zero1_by_all_reduce", "twice", "/= world", "/= world**2"),
    Fault("zero1_by_all_reduce", "first-part", _MINE, "unit.gradient_P.chunk(world)[0]"),
    Fault("zero1_by_all_reduce", "whole", _MINE, "unit.gradient_P"),
    Fault("zero1_by_all_reduce", "not-gathered", _GATHER, "pass"),
    Fault("zero1_by_all_reduce", "gathered-first", f"{_STEP}\n    {_GATHER}", f"{_GATHER}\n    {_STEP}"),
    Fault("zero1_by_all_reduce", "only-rank-0", _STEP_LINE, f"rank == 0 and {_STEP_LINE}"),
    Fault("zero1_by_all_reduce", "neighbour", _MINE, "unit.gradient_P.chunk(world)[(rank + 1) % world]"),
    Fault("zero1_by_all_reduce", "constant", "/= world", "/= 2"),
    Fault("zero1_by_all_reduce", "constant", "/= world", "/= 4"),
    Fault("zero1_by_all_reduce", "summed-weights", _GATHER, "dist.all_reduce(unit.weights_P)"),
    Fault(
        "zero1_by_all_reduce", "new-weights", _GATHER, f"unit.weights_P = torch.empty_like(unit.weights_P); {_GATHER}"
    ),
    Fault("zero1_by_all_reduce", "new-gradient", "unit.gradient_P /= world", _DIVIDED),
    Fault("zero1_by_all_reduce", None, _GRAD, f"unit.shard_S.grad = -{_MINE}"),
)

_SCATTER = "reduce_scatter(part_S, unit.gradient_P)"
_DIVIDE = "part_S /= world"
_ZEROED = (
    "unit.weights_P[: rank * len(part_S)] = 0; unit.weights_P[(rank + 1) * len(part_S) :] = 0\n"
    "    dist.all_reduce(unit.weights_P)"
)

_ZERO1_STEP = (
    Fault("zero1_step", "no-step", _STEP, "pass"),
    Fault("zero1_step", "no-gradient", "unit.shard_S.grad = part_S", "pass"),
    Fault("zero1_step", "sum", _DIVIDE, "pass"),
    Fault("zero1_step", "own", f"{_SCATTER}\n    {_DIVIDE}", "pass"),
    Fault("zero1_step", "own-divided", _SCATTER, "reduce_scatter(part_S.clone(), unit.gradient_P)"),
    Fault("zero1_step", "swapped", _SCATTER, "reduce_scatter(unit.gradient_P, part_S)"),
    Fault("zero1_step", "twice", _DIVIDE, "part_S /= world**2"),
    Fault("zero1_step", "first-part", _SCATTER, f"{_ALL_REDUCE}; part_S = unit.gradient_P.chunk(world)[0]"),
    Fault("zero1_step", "whole", "unit.shard_S.grad = part_S", "unit.shard_S.grad = unit.gradient_P"),
    Fault("zero1_step", "not-gathered", _GATHER, "pass"),
    Fault("zero1_step", "gathered-first", f"{_STEP}\n    {_GATHER}", f"{_GATHER}\n    {_STEP}"),
    Fault("zero1_step", "all-reduce", _SCATTER, _ALL_REDUCE),
    Fault("zero1_step", "both", _SCATTER, f"reduce_scatter(part_S.clone(), unit.gradient_P); {_ALL_REDUCE}"),
    Fault("zero1_step", "reduce-scatter-and-all-reduce", _GATHER, _ZEROED),
    Fault(
        "zero1_step",
        "two-all-reduces",
        f"{_SCATTER}\n    {_DIVIDE}\n    unit.shard_S.grad = part_S\n    {_STEP}\n    {_GATHER}",
        f"{_ALL_REDUCE}\n    {_DIVIDE}\n    unit.shard_S.grad = part_S\n    {_STEP}\n    {_ZEROED}",
    ),
    Fault(
        "zero1_step", "neighbour", _SCATTER, f"{_ALL_REDUCE}; part_S = unit.gradient_P.chunk(world)[(rank + 1) % world]"
    ),
    Fault("zero1_step", "constant", _DIVIDE, "part_S /= 2"),
    Fault("zero1_step", "summed-weights", _GATHER, "dist.all_reduce(unit.weights_P)"),
    Fault("zero1_step", "new-weights", _GATHER, f"unit.weights_P = torch.empty_like(unit.weights_P); {_GATHER}"),
    Fault("zero1_step", "new-gradient", _DIVIDE, f"{_DIVIDED}; part_S = {_MINE}"),
    Fault(
        "zero1_step",
        "reduces",
        _SCATTER,
        "[dist.reduce(part, dst) for dst, part in enumerate(unit.gradient_P.chunk(world))]",
    ),
    Fault(
        "zero1_step",
        "elsewhere",
        f"part_S = {_MINE}\n    {_SCATTER}",
        f"part_S = unit.gradient_P.chunk(world)[0]\n    {_SCATTER}",
    ),
    Fault("zero1_step", None, _STEP, f"rank < 2 and {_STEP}"),
    Fault("zero1_step", "only-rank-0", _STEP, f"rank == 0 and {_STEP}"),
    Fault("zero1_step", None, _STEP, f"{_STEP}; {_STEP}"),
)

_CALL = "reduce_scatter(part_S, gradient_P)"
_PART = "unit.shard_S.grad = part_S / dist.get_world_size()"
_FREED = "for p in unit.parameters:\n            p.grad = None"
_UPDATE = "unit.optimizer.step()\n        all_gather(unit.weights_P, unit.shard_S)"
_CHUNK = "gradient_P.chunk(dist.get_world_size())[dist.get_rank()]"
_HOOKS = (
    "hooks = [hook for unit in units for hook in when_complete(unit, scatter)]\n    backward()\n"
    "    for hook in hooks:\n        hook.remove()"
)

_ZERO2_STEP = (
    Fault("zero2_step", "late", _HOOKS, "backward()\n    for unit in units:\n        scatter(unit)"),
    Fault(
        "zero2_step",
        "never",
        _HOOKS.partition("    for hook")[0],
        "backward()\n    hooks = [hook for unit in units for hook in when_complete(unit, scatter)]\n",
    ),
    Fault("zero2_step", "swapped", _CALL, "reduce_scatter(gradient_P, part_S)"),
    Fault(
        "zero2_step",
        "cleared-first",
        "part_S, gradient_P = torch.empty_like(unit.shard_S), flatten(unit)\n        "
        "for p in unit.parameters:\n            p.grad = None",
        "for p in unit.parameters:\n            p.grad = None\n        "
        "part_S, gradient_P = torch.empty_like(unit.shard_S), flatten(unit)",
    ),
    Fault("zero2_step", "kept", _FREED, "pass"),
    Fault("zero2_step", "hooks-stay", "hook.remove()", "pass"),
    Fault("zero2_step", "all-reduce", _CALL, f"dist.all_reduce(gradient_P); part_S = {_CHUNK}"),
    Fault("zero2_step", "no-step", "unit.optimizer.step()", "pass"),
    Fault("zero2_step", "sum", " / dist.get_world_size()", ""),
    Fault("zero2_step", "own", _PART, f"unit.shard_S.grad = {_CHUNK}"),
    Fault("zero2_step", "twice", " / dist.get_world_size()", " / dist.get_world_size() ** 2"),
    Fault("zero2_step", "whole", _PART, "unit.shard_S.grad = gradient_P"),
    Fault("zero2_step", "not-gathered", "all_gather(unit.weights_P, unit.shard_S)", "pass"),
    Fault(
        "zero2_step",
        "first-unit",
        "all_gather(unit.weights_P, unit.shard_S)",
        "unit is units[0] and all_gather(unit.weights_P, unit.shard_S)",
    ),
    Fault("zero2_step", "last-unit", "        all_gather(unit", "    all_gather(unit"),
    Fault(
        "zero2_step",
        "view",
        f"{_CALL}\n        {_PART}",
        f"part_S = {_CHUNK}\n        {_CALL}\n        part_S /= dist.get_world_size()\n"
        "        unit.shard_S.grad = part_S",
    ),
    Fault("zero2_step", "buckets", _CALL, f"unit.kept = gradient_P; {_CALL}"),
    Fault("zero2_step", "late-free", f"{_FREED}\n        {_CALL}", f"{_CALL}\n        {_FREED}"),
    Fault(
        "zero2_step",
        "new-weights",
        "all_gather(unit.weights_P, unit.shard_S)",
        "unit.weights_P = torch.empty_like(unit.weights_P); all_gather(unit.weights_P, unit.shard_S)",
    ),
    Fault(
        "zero2_step", "loop-variable", "when_complete(unit, scatter)]", "when_complete(unit, lambda _: scatter(unit))]"
    ),
    Fault(
        "zero2_step",
        "each-parameter",
        "for hook in when_complete(unit, scatter)]",
        "for hook in [p.register_post_accumulate_grad_hook(lambda p, unit=unit: scatter(unit)) "
        "for p in unit.parameters]]",
    ),
    Fault("zero2_step", "hooks-stay", "for hook in hooks:", "for hook in hooks[-2:]:"),
    Fault(
        "zero2_step",
        "in-hook",
        f"{_PART}\n",
        f"{_PART}; unit.optimizer.step(); all_gather(unit.weights_P, unit.shard_S)\n",
    ),
    Fault("zero2_step", "constant", " / dist.get_world_size()", " / 4"),
    Fault("zero2_step", None, _UPDATE, "all_gather(unit.weights_P, unit.shard_S)\n        unit.optimizer.step()"),
    Fault("zero2_step", "only-rank-0", "unit.optimizer.step()", "dist.get_rank() == 0 and unit.optimizer.step()"),
    Fault("zero2_step", None, "unit.optimizer.step()", "dist.get_rank() < 2 and unit.optimizer.step()"),
    Fault("zero2_step", None, "backward()\n", "backward(); backward()\n"),
)

_ALLOCATE = "allocate(unit.weights_P)"
_GATHERED = "all_gather(unit.weights_P, unit.shard_S.data)"
_NEW = (
    "new_P = torch.empty_like(unit.shard_S.data.repeat(dist.get_world_size()))\n"
    "        all_gather(new_P, unit.shard_S.data)\n        unit.weights_P = new_P"
)
_BROADCASTS = (
    "[dist.broadcast(part.copy_(unit.shard_S.data) if r == dist.get_rank() else part, r) "
    "for r, part in enumerate(unit.weights_P.chunk(dist.get_world_size()))]"
)
_COPIED = "unit.weights_P.chunk(dist.get_world_size())[dist.get_rank()].copy_(unit.shard_S.data)"

_GATHER_FAULTS = (
    Fault("gather", "no-room", _ALLOCATE, "pass"),
    Fault("gather", "new-tensor", _GATHERED, _NEW),
    Fault("gather", "released", _GATHERED, f"{_GATHERED}; free(unit.weights_P)"),
    Fault("gather", "not-sent", _GATHERED, _COPIED),
    Fault("gather", "other", _GATHERED, _BROADCASTS),
    Fault("gather", "again", "if not is_there(unit.weights_P):", "if True:"),
    Fault("gather", None, _GATHERED, f"{_GATHERED}; unit.weights_P += dist.get_rank() == 2"),
    Fault("gather", "not-all", _GATHERED, f"dist.get_rank() == 0 and {_GATHERED}"),
    Fault(
        "gather", "not-all", "if not is_there(unit.weights_P):", "if dist.get_rank() or not is_there(unit.weights_P):"
    ),
    Fault("gather", None, _GATHERED, "all_gather(unit.weights_P, torch.zeros_like(unit.shard_S.data))"),
)

_RELEASE = (
    Fault("release", "kept", "free(unit.weights_P)", "unit.weights_P.zero_()"),
    Fault("release", "dropped", "free(unit.weights_P)", "unit.weights_P = torch.empty(0)"),
    Fault(
        "release",
        "dropped",
        "free(unit.weights_P)",
        "for p in unit.parameters: p.data = torch.empty(0, dtype=p.dtype)",
    ),
    Fault("release", "shard", "free(unit.weights_P)", "free(unit.weights_P); free(unit.shard_S)"),
    Fault(
        "release",
        "shape",
        "free(unit.weights_P)",
        "free(unit.weights_P)\n    for p in unit.parameters: p.data = torch.empty(0, dtype=p.dtype)",
    ),
    Fault("release", None, "free(unit.weights_P)", "dist.get_rank() == 0 and free(unit.weights_P)"),
    Fault("release", None, "free(unit.weights_P)", "dist.get_rank() < 2 and free(unit.weights_P)"),
)

_SCATTERED = "reduce_scatter(part_S, gradient_P)"
_AVERAGED = "part_S /= dist.get_world_size()"
_ADDED = (
    "if unit.shard_S.grad is None:\n        unit.shard_S.grad = part_S\n    else:\n        unit.shard_S.grad += part_S"
)

_REDUCE_GRADIENT = (
    Fault("reduce_gradient", "nothing", _ADDED, "pass"),
    Fault("reduce_gradient", "swapped", _SCATTERED, "reduce_scatter(gradient_P, part_S)"),
    Fault(
        "reduce_gradient",
        "cleared-first",
        "gradient_P = flatten(unit)\n    for p in unit.parameters:\n        p.grad = None",
        "for p in unit.parameters:\n        p.grad = None\n    gradient_P = flatten(unit)",
    ),
    Fault("reduce_gradient", "sum", _AVERAGED, "pass"),
    Fault("reduce_gradient", "overwritten", _ADDED, "unit.shard_S.grad = part_S"),
    Fault(
        "reduce_gradient",
        "mixed",
        f"{_AVERAGED}\n    {_ADDED}",
        "unit.shard_S.grad = part_S if unit.shard_S.grad is None else unit.shard_S.grad + part_S\n"
        "    unit.shard_S.grad /= dist.get_world_size()",
    ),
    Fault("reduce_gradient", "own", f"{_SCATTERED}\n    {_AVERAGED}", f"part_S = {_CHUNK}"),
    Fault("reduce_gradient", "twice", _AVERAGED, "part_S /= dist.get_world_size() ** 2"),
    Fault(
        "reduce_gradient",
        "first-part",
        _SCATTERED,
        "dist.all_reduce(gradient_P); part_S = gradient_P.chunk(dist.get_world_size())[0]",
    ),
    Fault("reduce_gradient", "whole", f"{_SCATTERED}\n", "part_S = gradient_P\n"),
    Fault("reduce_gradient", "kept", "p.grad = None", "pass"),
    Fault("reduce_gradient", "all-reduce", _SCATTERED, f"dist.all_reduce(gradient_P); part_S = {_CHUNK}"),
    Fault("reduce_gradient", "constant", _AVERAGED, "part_S /= 2"),
    Fault("reduce_gradient", "constant", _AVERAGED, "part_S /= 4"),
    Fault("reduce_gradient", "view", _SCATTERED, f"part_S = {_CHUNK}; {_SCATTERED}"),
    Fault(
        "reduce_gradient",
        "late-free",
        f"for p in unit.parameters:\n        p.grad = None\n    {_SCATTERED}",
        f"{_SCATTERED}\n    for p in unit.parameters:\n        p.grad = None",
    ),
    Fault("reduce_gradient", None, _AVERAGED, f"{_AVERAGED}\n    part_S *= dist.get_rank() == 0"),
)

_ASYNC = "unit.work = all_gather(unit.weights_P, unit.shard_S.data, async_op=True)"

_PREFETCH = (
    Fault("prefetch", "waits", _ASYNC, f"{_ASYNC}; unit.work.wait()"),
    Fault("prefetch", "waits", ", async_op=True", ""),
    Fault(
        "prefetch", "lost", _ASYNC, "globals()['_kept'] = all_gather(unit.weights_P, unit.shard_S.data, async_op=True)"
    ),
    Fault("prefetch", "again", "if not is_there(unit.weights_P):", "if True:"),
    Fault("prefetch", "no-room", "allocate(unit.weights_P)", "pass"),
    Fault("prefetch", None, _ASYNC, "pass"),
    Fault("prefetch", None, "unit.shard_S.data,", "torch.zeros_like(unit.shard_S.data),"),
)

_SQUARES = "sum(unit.shard_S.grad.square().sum() for unit in units)"
_TOTAL = "dist.all_reduce(total)"
_SUMMED = f"total = {_SQUARES}\n    {_TOTAL}\n    norm = total.sqrt()"
_SCALE = "unit.shard_S.grad *= max_norm / norm"

_CLIP_SHARDED = (
    Fault("clip_sharded", "local", _TOTAL, "pass"),
    Fault(
        "clip_sharded",
        "sum-of-norms",
        f"{_TOTAL}\n    norm = total.sqrt()",
        f"total = total.sqrt(); {_TOTAL}; norm = total",
    ),
    Fault("clip_sharded", "no-root", "total.sqrt()", "total"),
    Fault("clip_sharded", "always", "if norm > max_norm:", "if True:"),
    Fault("clip_sharded", "unchanged", _SCALE, "unit.shard_S.grad * (max_norm / norm)"),
    Fault(
        "clip_sharded",
        "a-unit",
        "if norm > max_norm:\n        for unit in units:\n            unit.shard_S.grad *= max_norm / norm",
        "for unit in units:\n        one = unit.shard_S.grad.square().sum(); dist.all_reduce(one)\n"
        "        unit.shard_S.grad *= min(1.0, max_norm / one.sqrt())",
    ),
    Fault(
        "clip_sharded",
        "sum-of-norms",
        _SUMMED,
        f"norm = {_SQUARES.replace('square().sum', 'norm')}; dist.all_reduce(norm)",
    ),
    Fault("clip_sharded", "mean", _TOTAL, f"{_TOTAL}; total /= dist.get_world_size()"),
    Fault("clip_sharded", "mean", _SQUARES, _SQUARES.replace("sum()", "mean()")),
    Fault("clip_sharded", "rounded", _TOTAL, f"total = torch.tensor(total.item()); {_TOTAL}"),
    Fault("clip_sharded", "after", "return norm.item()", "return min(norm.item(), max_norm)"),
    Fault("clip_sharded", "tensor", "return norm.item()", "return norm"),
    Fault("clip_sharded", None, "return norm.item()", "return total.item()"),
    Fault("clip_sharded", None, _TOTAL, "dist.reduce(total, dst=0)"),
)

_JOINED = "torch.cat(parts)[:num_values]"

_RESHARD = (
    Fault(
        "reshard",
        "old-padding",
        "size = -(-num_values // world)",
        "num_values = len(torch.cat(parts))\n    size = -(-num_values // world)",
    ),
    Fault(
        "reshard",
        "own-old",
        "return flat_P[rank * size : (rank + 1) * size].clone()",
        "return parts[min(rank, len(parts) - 1)]",
    ),
    Fault(
        "reshard",
        "floor",
        "size = -(-num_values // world)",
        "size = num_values // world; num_values = world * size",
    ),
    Fault(
        "reshard",
        "unpadded",
        "return flat_P[rank * size : (rank + 1) * size].clone()",
        "return flat_P[:num_values][rank * size : (rank + 1) * size].clone()",
    ),
    Fault("reshard", "everything", "return flat_P[rank * size : (rank + 1) * size].clone()", "return flat_P"),
    Fault("reshard", "view", "(rank + 1) * size].clone()", "(rank + 1) * size]"),
    Fault("reshard", "dtype", "parts[0].new_zeros(world * size)", "torch.zeros(world * size)"),
    Fault("reshard", None, "flat_P[rank * size : (rank + 1) * size]", "flat_P[rank % 2 * size :][:size]"),
    Fault("reshard", None, _JOINED, f"{_JOINED}; parts[0].zero_()"),
)

FAULTS = (
    *_PARTITION,
    *_ZERO1_BY_ALL_REDUCE,
    *_ZERO1_STEP,
    *_ZERO2_STEP,
    *_GATHER_FAULTS,
    *_RELEASE,
    *_REDUCE_GRADIENT,
    *_PREFETCH,
    *_CLIP_SHARDED,
    *_RESHARD,
)
