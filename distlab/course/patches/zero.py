"""Mistakes in lab 05."""

from __future__ import annotations

from distlab.course.patches import Patch

_WORLD = "dist.get_world_size()"

_SIZE = "size = -(-sum(p.numel() for p in parameters) // world)"
_SHARD = "return weights_P, weights_P[rank * size : (rank + 1) * size]"
_ONCE = "list(dict.fromkeys(p for p in parameters if p.requires_grad))"
_BY_IN = "[p for i, p in enumerate(parameters) if p.requires_grad and p not in parameters[:i]]"
_EQUAL = "list({str(p.data.tolist()): p for p in reversed(parameters) if p.requires_grad}.values())[::-1]"

_PARTITION = (
    Patch("floor", _SIZE, "size = sum(p.numel() for p in parameters) // world", fails=True),
    Patch("floor", "return weights_P,", "size = start // world\n    return weights_P[: world * size],"),
    Patch("unpadded", "torch.zeros(world * size, dtype", "torch.zeros(sum(p.numel() for p in parameters), dtype"),
    Patch("tied-twice", _ONCE, "[p for p in parameters if p.requires_grad]"),
    Patch("by-value", _ONCE, _EQUAL),
    Patch("frozen", _ONCE, "list(dict.fromkeys(parameters))"),
    Patch("rank-0", _SHARD, "return weights_P, weights_P[:size]"),
    Patch("reversed", _SHARD, "return weights_P, weights_P.chunk(world)[world - 1 - rank]"),
    Patch("strided", _SHARD, "return weights_P, weights_P[rank::world]"),
    Patch("parameters-copied", "p.data = part", "p.data = part.clone()"),
    Patch("shard-copied", _SHARD, f"{_SHARD}.clone()"),
    Patch("unfilled", "part.copy_(p.detach())", "pass"),
    Patch("no-start", "start += p.numel()", "pass"),
    Patch("one-too-many", _SIZE, "size = sum(p.numel() for p in parameters) // world + 1"),
    Patch("looked-for", _ONCE, _BY_IN, fails=True),
    Patch("dtype", ", dtype=parameters[0].dtype, device=parameters[0].device", ""),
    Patch("in-graph", "part.copy_(p.detach())", "part.copy_(p)"),
)

_MINE = "unit.gradient_P.chunk(world)[rank]"
_ALL_REDUCE = "dist.all_reduce(unit.gradient_P)"
_STEP = "unit.optimizer.step()"
_STEP_LINE = f"{_STEP}\n"  # it stands in a docstring, too
_GATHER = "all_gather(unit.weights_P, unit.shard_S)"
_NEW_WEIGHTS = f"unit.weights_P = torch.empty_like(unit.weights_P); {_GATHER}"
_NEW_GRADIENT = "unit.gradient_P = unit.gradient_P / world"

_WEIGHTS = (
    Patch("not-gathered", _GATHER, "pass"),
    Patch("gathered-first", f"{_STEP}\n    {_GATHER}", f"{_GATHER}\n    {_STEP}"),
    Patch("summed-weights", _GATHER, "dist.all_reduce(unit.weights_P)"),
    Patch("new-weights", _GATHER, _NEW_WEIGHTS),
)
_ZERO1_BY_ALL_REDUCE = (
    *_WEIGHTS,
    Patch("no-step", _STEP_LINE, "pass\n"),
    Patch("skips-zeros", _STEP_LINE, f"unit.shard_S.grad.any() and {_STEP_LINE}"),
    Patch("no-gradient", f"unit.shard_S.grad = {_MINE}", f"mine = {_MINE}"),
    Patch("sum", "unit.gradient_P /= world", "pass"),
    Patch("own", f"{_ALL_REDUCE}\n    unit.gradient_P /= world", "pass"),
    Patch("own-divided", _ALL_REDUCE, "dist.all_reduce(unit.gradient_P.clone())"),
    Patch("swapped", _GATHER, "all_gather(unit.shard_S, unit.weights_P)", fails=True),
    Patch("twice", "/= world", "/= world**2"),
    Patch("first-part", _MINE, "unit.gradient_P.chunk(world)[0]"),
    Patch("whole", _MINE, "unit.gradient_P", fails=True),
    Patch("only-rank-0", _STEP_LINE, f"rank == 0 and {_STEP_LINE}"),
    Patch("neighbour", _MINE, "unit.gradient_P.chunk(world)[(rank + 1) % world]"),
    *(Patch("constant", "/= world", f"/= {constant}") for constant in (2, 4)),
    Patch("new-gradient", "unit.gradient_P /= world", _NEW_GRADIENT),
)

_SCATTER = "reduce_scatter(part_S, unit.gradient_P)"
_DIVIDE = "part_S /= world"
_KEEP = f"{_DIVIDE}\n    unit.shard_S.grad = part_S\n    {_STEP}\n    "
_OTHERS = "unit.weights_P[: rank * len(part_S)] = 0; unit.weights_P[(rank + 1) * len(part_S) :] = 0"
_ADD_WEIGHTS = f"{_OTHERS}\n    dist.all_reduce(unit.weights_P)"
_REDUCES = "[dist.reduce(whole_P, dst) for dst, whole_P in enumerate(wholes)]"

_ZERO1_STEP = (
    *_WEIGHTS,
    Patch("no-step", _STEP, "pass"),
    Patch("skips-zeros", _STEP, f"part_S.any() and {_STEP}"),
    Patch("no-gradient", "unit.shard_S.grad = part_S", "pass"),
    Patch("sum", _DIVIDE, "pass"),
    Patch("own", f"{_SCATTER}\n    {_DIVIDE}", "pass"),
    Patch("own-divided", _SCATTER, "reduce_scatter(part_S.clone(), unit.gradient_P)"),
    Patch("swapped", _SCATTER, "reduce_scatter(unit.gradient_P, part_S)", fails=True),
    Patch("twice", _DIVIDE, "part_S /= world**2"),
    Patch("first-part", _SCATTER, f"{_ALL_REDUCE}; part_S = unit.gradient_P.chunk(world)[0]"),
    Patch("whole", "unit.shard_S.grad = part_S", "unit.shard_S.grad = unit.gradient_P", fails=True),
    Patch("all-reduce", _SCATTER, _ALL_REDUCE),
    Patch("both", _SCATTER, f"reduce_scatter(part_S.clone(), unit.gradient_P); {_ALL_REDUCE}"),
    Patch("reduce-scatter-and-all-reduce", _GATHER, _ADD_WEIGHTS),
    Patch("two-all-reduces", f"{_SCATTER}\n    {_KEEP}{_GATHER}", f"{_ALL_REDUCE}\n    {_KEEP}{_ADD_WEIGHTS}"),
    Patch("neighbour", _SCATTER, f"{_ALL_REDUCE}; part_S = unit.gradient_P.chunk(world)[(rank + 1) % world]"),
    *(Patch("constant", _DIVIDE, f"part_S /= {constant}") for constant in (2, 4)),
    Patch("new-gradient", _DIVIDE, f"{_NEW_GRADIENT}; part_S = {_MINE}"),
    Patch(
        "reduces",
        _SCATTER,
        f"wholes = [unit.gradient_P.clone() for _ in range(world)]\n    {_REDUCES}\n"
        "    part_S = wholes[rank].chunk(world)[rank]",
    ),
    Patch("elsewhere", f"part_S = {_MINE}", "part_S = unit.gradient_P.chunk(world)[0]"),
    Patch("only-rank-0", _STEP, f"rank == 0 and {_STEP}"),
)

_BUCKET = "part_S, gradient_P = torch.empty_like(unit.shard_S), flatten(unit)"
_CLEAR = "for p in unit.parameters:\n            p.grad = None"
_CALL = "reduce_scatter(part_S, gradient_P)"
_PART = f"unit.shard_S.grad = part_S / {_WORLD}"
_CHUNK = f"gradient_P.chunk({_WORLD})[dist.get_rank()]"
_HOOKS = "hooks = [hook for unit in units for hook in when_complete(unit, scatter)]"
_REMOVE = "for hook in hooks:\n        hook.remove()"
_EVERY_ONE = "p.register_post_accumulate_grad_hook(lambda p, unit=unit: scatter(unit)) for p in unit.parameters"
_AFTER = f"\n\n    {_HOOKS}\n    backward()\n    {_REMOVE}\n    for unit in units:\n        "

_ZERO2_STEP = (
    Patch(
        "late", f"{_HOOKS}\n    backward()\n    {_REMOVE}", "backward()\n    for unit in units:\n        scatter(unit)"
    ),
    Patch("never", "when_complete(unit, scatter)", "when_complete(unit, lambda unit: None)"),
    Patch("never", "in units for", "in units if not hasattr(unit, 'old') and not setattr(unit, 'old', 1) for"),
    Patch("swapped", _CALL, "reduce_scatter(gradient_P, part_S)", fails=True),
    Patch("cleared-first", _BUCKET, f"{_CLEAR}\n        {_BUCKET}"),
    Patch("kept", _CLEAR, "pass"),
    Patch("kept", "p.grad = None", "p.grad.zero_()"),
    Patch("hooks-stay", "hook.remove()", "pass"),
    Patch("hooks-stay", "for hook in hooks:", "for hook in hooks[-2:]:"),
    Patch("all-reduce", _CALL, f"dist.all_reduce(gradient_P); part_S = {_CHUNK}"),
    Patch("no-step", _STEP, "pass"),
    Patch("sum", f" / {_WORLD}", ""),
    Patch("own", _PART, f"unit.shard_S.grad = {_CHUNK}"),
    Patch("twice", f" / {_WORLD}", f" / {_WORLD} ** 2"),
    Patch("whole", _PART, "unit.shard_S.grad = gradient_P", fails=True),
    Patch("not-gathered", _GATHER, "pass"),
    Patch("first-unit", _GATHER, f"unit is units[0] and {_GATHER}"),
    Patch("last-unit", f"        {_GATHER}", f"    {_GATHER}"),
    Patch("view", _PART, f"unit.shard_S.grad = {_CHUNK}.copy_(part_S / {_WORLD})"),
    Patch("buckets", _CALL, f"unit.kept = gradient_P; {_CALL}"),
    Patch("late-free", f"{_CLEAR}\n        {_CALL}", f"{_CALL}\n        {_CLEAR}"),
    Patch("new-weights", _GATHER, _NEW_WEIGHTS),
    Patch("loop-variable", "when_complete(unit, scatter)", "when_complete(unit, lambda _: scatter(unit))"),
    Patch("each-parameter", "for hook in when_complete(unit, scatter)", f"for hook in [{_EVERY_ONE}]"),
    Patch("in-hook", f"{_PART}\n", f"{_PART}; {_STEP}; {_GATHER}\n"),
    Patch("in-hook", f"{_PART}{_AFTER}{_STEP}\n        {_GATHER}", f"{_PART}\n        {_STEP}{_AFTER}{_GATHER}"),
    *(Patch("constant", f" / {_WORLD}", f" / {constant}") for constant in (2, 4, "len(units)")),
    Patch("last-bucket", _CALL, f"units[0].last = gradient_P; {_CALL}"),
    Patch("only-rank-0", _STEP, f"dist.get_rank() == 0 and {_STEP}"),
)

_GATHERED = "all_gather(unit.weights_P, unit.shard_S.data)"
_COPIED = f"unit.weights_P.chunk({_WORLD})[dist.get_rank()].copy_(unit.shard_S.data)"

_GATHER_UNIT = (
    Patch("no-room", "allocate(unit.weights_P)", "pass", fails=True),
    Patch("new-tensor", _GATHERED, f"unit.weights_P = torch.empty_like(unit.weights_P); {_GATHERED}"),
    Patch("released", _GATHERED, f"{_GATHERED}; free(unit.weights_P)"),
    Patch("not-sent", _GATHERED, _COPIED),
    Patch("other", _GATHERED, f"unit.weights_P.zero_(); {_COPIED}; dist.all_reduce(unit.weights_P)"),
    Patch("again", "not is_there(unit.weights_P)", "True"),
    Patch("not-all", _GATHERED, f"dist.get_rank() == 0 and {_GATHERED}", fails=True),
    Patch("not-all", "not is_there", "dist.get_rank() or not is_there", fails=True),
)

_FREE = "free(unit.weights_P)"
_OWN = f"unit.weights_P.chunk({_WORLD})[dist.get_rank()] * 2"
_EMPTY = "for p in unit.parameters: p.data = torch.empty(0, dtype=p.dtype)"

_RELEASE = (
    Patch("kept", _FREE, "unit.weights_P.zero_()"),
    Patch("dropped", _FREE, "unit.weights_P = torch.empty(0)"),
    Patch("dropped", _FREE, "unit.weights_P.data = torch.empty(0, dtype=unit.shard_S.dtype)"),
    Patch("dropped", _FREE, _EMPTY),
    Patch("writes", _FREE, f"unit.shard_S.data.copy_({_OWN}); {_FREE}"),
    Patch("some-left", _FREE, "unit.weights_P.untyped_storage().resize_(unit.shard_S.element_size())"),
    Patch("shard", _FREE, f"{_FREE}; free(unit.shard_S)"),
    Patch("shape", _FREE, f"{_FREE}\n    {_EMPTY}"),
)

_LET_GO = "for p in unit.parameters:\n        p.grad = None"
_ROOM = "torch.empty_like(unit.shard_S.data)"
_IF_ANY = "if any(p.grad is None for p in unit.parameters)"
_MEAN = f"part_S /= {_WORLD}"
_NONE = "if unit.shard_S.grad is None:\n        unit.shard_S.grad = part_S"
_ADD = f"{_NONE}\n    else:\n        unit.shard_S.grad += part_S"

_REDUCE_GRADIENT = (
    Patch("nothing", _ADD, "pass"),
    Patch("swapped", _CALL, "reduce_scatter(gradient_P, part_S)", fails=True),
    Patch("cleared-first", "gradient_P = flatten(unit)", f"{_LET_GO}\n    gradient_P = flatten(unit)"),
    Patch("sum", _MEAN, "pass"),
    Patch("overwritten", _ADD, "unit.shard_S.grad = part_S"),
    Patch("mixed", f"{_MEAN}\n    {_ADD}", f"{_ADD}\n    unit.shard_S.grad /= {_WORLD}"),
    Patch("own", f"{_CALL}\n    {_MEAN}", f"part_S = {_CHUNK}"),
    Patch("one-buffer", f"part_S = {_ROOM}", f"part_S = vars(unit).setdefault('part_S', {_ROOM})"),
    Patch("skips-none", "gradient_P = flatten(unit)", f"{_IF_ANY}: return\n    gradient_P = flatten(unit)"),
    Patch("twice", _MEAN, f"{_MEAN} ** 2"),
    Patch("first-part", _CALL, f"dist.all_reduce(gradient_P); part_S = gradient_P.chunk({_WORLD})[0]"),
    Patch("whole", f"{_CALL}\n", "part_S = gradient_P\n", fails=True),
    Patch("kept", "p.grad = None", "pass"),
    Patch("all-reduce", _CALL, f"dist.all_reduce(gradient_P); part_S = {_CHUNK}"),
    *(Patch("constant", _MEAN, f"part_S /= {constant}") for constant in (2, 4)),
    Patch("view", _CALL, f"part_S = {_CHUNK}; {_CALL}"),
    Patch("late-free", f"{_LET_GO}\n    {_CALL}", f"{_CALL}\n    {_LET_GO}"),
)

_ASYNC = "all_gather(unit.weights_P, unit.shard_S.data, async_op=True)"

_PREFETCH = (
    Patch("waits", _ASYNC, f"{_ASYNC}; unit.work.wait()"),
    Patch("waits", ", async_op=True", ""),
    Patch("lost", f"unit.work = {_ASYNC}", f"globals()['_kept'] = {_ASYNC}"),
    Patch("again", "not is_there(unit.weights_P)", "True"),
    Patch("elsewhere", "unit.shard_S.data,", f"unit.weights_P.chunk({_WORLD})[0].copy_(unit.shard_S.data),"),
    Patch("no-room", "allocate(unit.weights_P)", "pass", fails=True),
)

_SQUARES = "sum(unit.shard_S.grad.square().sum() for unit in units)"
_NORMS = "sum(unit.shard_S.grad.norm() for unit in units)"
_TOTAL = "dist.all_reduce(total)"
_ROOT = "\n    norm = total.sqrt()"
_SCALE = "unit.shard_S.grad *= max_norm / norm"
_ONE = "one = unit.shard_S.grad.square().sum(); dist.all_reduce(one)"

_CLIP_SHARDED = (
    Patch("local", _TOTAL, "pass"),
    Patch("sum-of-norms", f"{_TOTAL}{_ROOT}", f"total = total.sqrt(); {_TOTAL}; norm = total"),
    Patch("sum-of-norms", f"{_SQUARES}\n    {_TOTAL}{_ROOT}", f"{_NORMS}\n    {_TOTAL}\n    norm = total"),
    Patch("no-root", "total.sqrt()", "total"),
    Patch("always", "if norm > max_norm:", "if True:"),
    Patch("unchanged", _SCALE, "unit.shard_S.grad * (max_norm / norm)"),
    Patch("a-unit", _SCALE, f"{_ONE}; unit.shard_S.grad *= max_norm / one.sqrt()"),
    Patch("mean", _TOTAL, f"{_TOTAL}; total /= {_WORLD}"),
    Patch("mean", _SQUARES, "sum(unit.shard_S.grad.square().mean() for unit in units)"),
    Patch("rounded", _TOTAL, f"total = torch.tensor(total.item()); {_TOTAL}"),
    Patch("after", "return norm.item()", "return min(norm.item(), max_norm)"),
    Patch("tensor", "return norm.item()", "return norm"),
)

_NEW_PART = "return flat_P[rank * size : (rank + 1) * size].clone()"

_RESHARD = (
    Patch("old-padding", "size = -(-num", "num_values = len(torch.cat(parts)); size = -(-num"),
    Patch("own-old", _NEW_PART, "return parts[min(rank, len(parts) - 1)]"),
    Patch("floor", "size = -(-num_values // world)", "size = num_values // world; num_values = world * size"),
    Patch("unpadded", "return flat_P[rank", "return flat_P[:num_values][rank"),
    Patch("everything", _NEW_PART, "return flat_P"),
    Patch("view", ".clone()", ""),
    Patch("dtype", "parts[0].new_zeros", "torch.zeros"),
)

PATCHES = {
    "partition": _PARTITION,
    "zero1_by_all_reduce": _ZERO1_BY_ALL_REDUCE,
    "zero1_step": _ZERO1_STEP,
    "zero2_step": _ZERO2_STEP,
    "gather": _GATHER_UNIT,
    "release": _RELEASE,
    "reduce_gradient": _REDUCE_GRADIENT,
    "prefetch": _PREFETCH,
    "clip_sharded": _CLIP_SHARDED,
    "reshard": _RESHARD,
}
