"""Wrong solutions of lab 05."""

from __future__ import annotations

from tests.faults import Fault

_SHARD = "return weights_P, weights_P[rank * size : (rank + 1) * size]"
_ZEROS = "weights_P = torch.zeros(world * size, dtype=parameters[0].dtype"

_PARTITION = (
    Fault("partition", None, _SHARD, "return weights_P"),
    Fault("partition", None, "part.copy_(p.detach())", "rank == 0 and part.copy_(p.detach())"),
    Fault("partition", None, "weights_P[rank * size :", "weights_P[rank % 2 * size :"),
    Fault("partition", None, "dtype=parameters[0].dtype", "dtype=torch.float64"),
    Fault("partition", None, "parameters = list", "parameters[:] = list"),
    Fault("partition", None, "part.copy_", "globals().setdefault('all_parameters', []).append(p); part.copy_"),
    Fault("partition", None, "start = 0", "parameters.reverse(); start = 0"),
    # freed and allocated again, as stage 3 does it, it would end before its last number
    Fault(
        "partition",
        None,
        f"{_ZEROS}, device=parameters[0].device)",
        f"{_ZEROS.replace('world * size', '1 + world * size')})[1:]",
    ),
)

_MINE = "unit.gradient_P.chunk(world)[rank]"
_STEP = "unit.optimizer.step()"
_GATHER = "all_gather(unit.weights_P, unit.shard_S)"
_TWICE = f"all_gather(unit.weights_P.clone(), unit.shard_S); {_GATHER}"

_ZERO1 = (
    Fault("zero1_by_all_reduce", None, f"unit.shard_S.grad = {_MINE}", f"unit.shard_S.grad = -{_MINE}"),
    Fault("zero1_by_all_reduce", None, _GATHER, _TWICE),
    Fault("zero1_step", None, _STEP, f"rank < 2 and {_STEP}"),
    Fault("zero1_step", None, _STEP, f"{_STEP}; {_STEP}"),
    Fault("zero1_step", None, _GATHER, _TWICE),
)

_STEP_2 = f"{_STEP}\n        {_GATHER}"
_CALL = "reduce_scatter(part_S, gradient_P)"
_HOOKS = "hooks = [hook for unit in units for hook in when_complete(unit, scatter)]\n    backward()"
_BEHIND = """waiting = []
    def later(unit):
        [scatter(waiting.pop()) for _ in waiting[:1]]
        waiting.append(unit)
    hooks = [hook for unit in units for hook in when_complete(unit, later)]
    backward()
    scatter(waiting.pop())"""
_NEW = "unit.shard_S.grad = part_S / dist.get_world_size()"
_SHARED = (
    "room = scatter.__dict__.setdefault(len(part_S), part_S)\n"
    "        unit.shard_S.grad = room.copy_(part_S / dist.get_world_size())"
)

_ZERO2_STEP = (
    Fault("zero2_step", None, _STEP_2, f"{_GATHER}\n        {_STEP}"),
    Fault("zero2_step", None, _STEP, f"dist.get_rank() < 2 and {_STEP}"),
    Fault("zero2_step", None, "backward()\n", "backward(); backward()\n"),
    Fault("zero2_step", None, _CALL, f"{_CALL}; {_CALL}"),
    Fault("zero2_step", None, _STEP_2, "pass"),
    Fault("zero2_step", None, "backward()\n", "pass\n"),
    Fault("zero2_step", "behind", _HOOKS, _BEHIND),
    Fault("zero2_step", "one-buffer", _NEW, _SHARED),
    Fault(
        "zero2_step",
        None,
        "in units for hook in when_complete(unit, scatter)]",
        "in units for hook in when_complete(unit, scatter) if not hasattr(unit, 'is_hooked')]\n"
        "    for unit in units:\n        unit.is_hooked = True",
    ),
)

_GATHERED = "all_gather(unit.weights_P, unit.shard_S.data)"

_GATHER_FAULTS = (
    Fault("gather", None, _GATHERED, f"{_GATHERED}; unit.weights_P += dist.get_rank() == 2"),
    Fault("gather", None, _GATHERED, "all_gather(unit.weights_P, torch.zeros_like(unit.shard_S.data))"),
    Fault("gather", None, _GATHERED, f"{_GATHERED}; unit.shard_S.data.zero_()"),
)

_FREE = "free(unit.weights_P)"

_RELEASE = (
    Fault("release", None, _FREE, f"dist.get_rank() == 0 and {_FREE}"),
    Fault("release", None, _FREE, f"dist.barrier(); {_FREE}"),
    Fault("release", None, _FREE, f"dist.get_rank() < 2 and {_FREE}"),
    Fault("release", None, _FREE, f"'_done' in globals() or globals().update(_done={_FREE})"),
    Fault("release", None, _FREE, f"{_FREE}; unit.shard_S.data.zero_()"),
)

_AVERAGED = "part_S /= dist.get_world_size()"

_REDUCE_GRADIENT = (
    Fault("reduce_gradient", None, _AVERAGED, f"{_AVERAGED}\n    part_S *= dist.get_rank() == 0"),
    Fault("reduce_gradient", None, _CALL, f"{_CALL}; {_CALL}"),
    Fault("reduce_gradient", None, "unit.shard_S.grad = part_S", "unit.shard_S.grad = part_S.float()"),
)

_ASYNC = "unit.work = all_gather(unit.weights_P, unit.shard_S.data, async_op=True)"

_PREFETCH = (
    Fault("prefetch", None, _ASYNC, "pass"),
    Fault("prefetch", None, "unit.shard_S.data,", "torch.zeros_like(unit.shard_S.data),"),
)

_TOTAL = "dist.all_reduce(total)"

_CLIP_SHARDED = (
    Fault("clip_sharded", None, "return norm.item()", "return total.item()"),
    Fault("clip_sharded", "always", "if norm > max_norm:", "if norm > max_norm / 2:"),
    Fault("clip_sharded", None, _TOTAL, "dist.reduce(total, dst=0)"),
    Fault(
        "clip_sharded",
        None,
        _TOTAL,
        f"[dist.all_reduce(unit.shard_S.grad.clone()) for unit in units]; {_TOTAL}",
    ),
)

_JOINED = "torch.cat(parts)[:num_values]"

_RESHARD = (
    Fault("reshard", None, "flat_P[rank * size : (rank + 1) * size]", "flat_P[rank % 2 * size :][:size]"),
    Fault("reshard", None, _JOINED, f"{_JOINED}; parts[0].zero_()"),
    Fault("reshard", None, _JOINED, f"{_JOINED}; parts.pop()"),
)

FAULTS = (
    *_PARTITION,
    *_ZERO1,
    *_ZERO2_STEP,
    *_GATHER_FAULTS,
    *_RELEASE,
    *_REDUCE_GRADIENT,
    *_PREFETCH,
    *_CLIP_SHARDED,
    *_RESHARD,
)
