"""Right answers in other styles for lab 05."""

from __future__ import annotations

from tests.rights import Right

_PARTITION = """parameters = list(dict.fromkeys(p for p in parameters if p.requires_grad))
    world, rank = dist.get_world_size(), dist.get_rank()
    size = -(-sum(p.numel() for p in parameters) // world)
    weights_P = torch.zeros(world * size, dtype=parameters[0].dtype, device=parameters[0].device)
    start = 0
    for p in parameters:
        part = weights_P[start : start + p.numel()].view_as(p)
        part.copy_(p.detach())
        p.data = part
        start += p.numel()
    return weights_P, weights_P[rank * size : (rank + 1) * size]"""
_JOINED = """own = []
    for p in parameters:
        if p.requires_grad and all(p is not other for other in own):
            own.append(p)
    flat = torch.cat([p.data.reshape(-1) for p in own])
    weights_P = F.pad(flat, (0, -len(flat) % dist.get_world_size()))
    for p, values in zip(own, weights_P.split([p.numel() for p in own] + [len(weights_P) - len(flat)])):
        p.data = values.view(p.shape)
    return weights_P, weights_P.chunk(dist.get_world_size())[dist.get_rank()]"""
_TORCHS = """from torch.nn.utils import parameters_to_vector, vector_to_parameters
    own = list({id(p): p for p in parameters if p.requires_grad}.values())
    world = dist.get_world_size()
    with torch.no_grad():
        flat = parameters_to_vector(own)
        weights_P = torch.cat([flat, flat.new_zeros(-flat.numel() % world)])
        vector_to_parameters(weights_P, own)
    return [weights_P, weights_P.view(world, -1)[dist.get_rank()]]"""

_MEAN = """unit.gradient_P /= world
    unit.shard_S.grad = unit.gradient_P.chunk(world)[rank]"""
_OWN_MEAN = "unit.shard_S.grad = unit.gradient_P.view(world, -1)[rank] / world"
_GATHER = "all_gather(unit.weights_P, unit.shard_S)"
_BROADCASTS = "for r, part in enumerate(unit.weights_P.chunk(world)):\n        dist.broadcast(part, src=r)"
_LISTED = "dist.all_gather(list(unit.weights_P.chunk(world)), unit.shard_S.clone())"

_SCATTER = """part_S = unit.gradient_P.chunk(world)[rank]
    reduce_scatter(part_S, unit.gradient_P)
    part_S /= world"""
_REDUCES = """for r, part in enumerate(unit.gradient_P.chunk(world)):
        dist.reduce(part, dst=r)
    part_S = unit.gradient_P.chunk(world)[rank] / world"""
_ALL_TO_ALL = """came_P = torch.empty_like(unit.gradient_P)
    dist.all_to_all_single(came_P, unit.gradient_P)
    part_S = came_P.view(world, -1).mean(dim=0)"""
_NEW_PART = """part_S = torch.empty_like(unit.shard_S)
    unit.gradient_P.div_(world)
    dist.reduce_scatter(part_S, list(unit.gradient_P.chunk(world)))"""

_HOOKS = """hooks = [hook for unit in units for hook in when_complete(unit, scatter)]
    backward()
    for hook in hooks:
        hook.remove()
    for unit in units:
        unit.optimizer.step()
        all_gather(unit.weights_P, unit.shard_S)"""
_COUNTED = """hooks = []
    for unit in units:
        left = [len(unit.parameters)]

        def arrived(_, unit=unit, left=left):
            left[0] -= 1
            if left[0] == 0:
                scatter(unit)

        hooks += [p.register_post_accumulate_grad_hook(arrived) for p in unit.parameters]
    try:
        backward()
    finally:
        [hook.remove() for hook in hooks]
    for unit in reversed(units):
        unit.optimizer.step()
    for unit in reversed(units):
        dist.all_gather(list(unit.weights_P.chunk(dist.get_world_size())), unit.shard_S.clone())"""
_BUCKET = """part_S, gradient_P = torch.empty_like(unit.shard_S), flatten(unit)
        for p in unit.parameters:
            p.grad = None
        reduce_scatter(part_S, gradient_P)
        unit.shard_S.grad = part_S / dist.get_world_size()"""
_CUT = """world = dist.get_world_size()
        flat = torch.cat([p.grad.flatten() for p in unit.parameters])
        for p in unit.parameters:
            p.grad = None
        unit.shard_S.grad = torch.zeros_like(unit.shard_S)
        dist.reduce_scatter(unit.shard_S.grad, list(F.pad(flat / world, (0, -len(flat) % world)).chunk(world)))"""

_GATHERED = """if not is_there(unit.weights_P):
        allocate(unit.weights_P)
        all_gather(unit.weights_P, unit.shard_S.data)"""
_EARLY = """storage = unit.weights_P.untyped_storage()
    if storage.size():
        return
    storage.resize_(unit.weights_P.nbytes)
    work = dist.all_gather(list(unit.weights_P.chunk(dist.get_world_size())), unit.shard_S.detach(), async_op=True)
    work.wait()"""
_IN_TURN = """if is_there(unit.weights_P):
        return
    allocate(unit.weights_P)
    for r, part in enumerate(unit.weights_P.chunk(dist.get_world_size())):
        if r == dist.get_rank():
            part.copy_(unit.shard_S)
        dist.broadcast(part, src=r)"""
_REDUCED = """part_S = torch.empty_like(unit.shard_S.data)
    gradient_P = flatten(unit)
    for p in unit.parameters:
        p.grad = None
    reduce_scatter(part_S, gradient_P)
    part_S /= dist.get_world_size()
    if unit.shard_S.grad is None:
        unit.shard_S.grad = part_S
    else:
        unit.shard_S.grad += part_S"""
_SUMMED = """world = dist.get_world_size()
    gradient_P = flatten(unit).div_(world)
    for p in unit.parameters:
        p.grad = None
    came_P = torch.empty_like(gradient_P)
    dist.all_to_all_single(came_P, gradient_P)
    part_S = came_P.view(world, -1).sum(dim=0)
    unit.shard_S.grad = part_S if unit.shard_S.grad is None else unit.shard_S.grad + part_S"""
_ADDED = """world = dist.get_world_size()
    if unit.shard_S.grad is None:
        unit.shard_S.grad = torch.zeros_like(unit.shard_S)
    pieces = list(flatten(unit).chunk(world))
    for p in unit.parameters:
        p.grad = None
    part_S = torch.zeros_like(unit.shard_S.data)
    dist.reduce_scatter(part_S, pieces)
    unit.shard_S.grad.add_(part_S, alpha=1 / world)"""

_CLIPPED = """total = sum(unit.shard_S.grad.square().sum() for unit in units)
    dist.all_reduce(total)
    norm = total.sqrt()
    if norm > max_norm:
        for unit in units:
            unit.shard_S.grad *= max_norm / norm
    return norm.item()"""
_AS_TORCH = """norms = torch.stack([torch.linalg.vector_norm(unit.shard_S.grad) for unit in units])
    squares = [torch.empty_like(norms) for _ in range(dist.get_world_size())]
    dist.all_gather(squares, norms)
    norm = torch.linalg.vector_norm(torch.cat(squares))
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for unit in units:
        unit.shard_S.grad.mul_(factor)
    return float(norm)"""
_EACH = """total = torch.zeros((), dtype=torch.float64)
    for unit in units:
        square = unit.shard_S.grad.double().pow(2).sum()
        dist.all_reduce(square)
        total += square
    norm = total.sqrt().item()
    for unit in units:
        unit.shard_S.grad = unit.shard_S.grad * min(1.0, max_norm / norm)
    return norm"""

_RESHARDED = """size = -(-num_values // world)
    flat_P = parts[0].new_zeros(world * size)
    flat_P[:num_values] = torch.cat(parts)[:num_values]
    return flat_P[rank * size : (rank + 1) * size].clone()"""
_PICKED = """size = (num_values + world - 1) // world
    own = torch.zeros_like(parts[0]).new_zeros(size)
    values = torch.cat(parts)[rank * size : min(num_values, (rank + 1) * size)]
    own[: len(values)] = values
    return own"""

_ASYNC = """if not is_there(unit.weights_P):
        allocate(unit.weights_P)
        unit.work = all_gather(unit.weights_P, unit.shard_S.data, async_op=True)"""
_ASYNC_LIST = """if unit.work is not None or is_there(unit.weights_P):
        return
    allocate(unit.weights_P)
    parts = list(unit.weights_P.chunk(dist.get_world_size()))
    unit.work = dist.all_gather(parts, unit.shard_S.detach(), async_op=True)"""

RIGHTS = (
    Right("partition", _PARTITION, _JOINED),
    Right("partition", _PARTITION, _TORCHS),
    Right("zero1_by_all_reduce", _MEAN, _OWN_MEAN),
    Right("zero1_by_all_reduce", _GATHER, _BROADCASTS),
    Right(
        "zero1_by_all_reduce",
        f"dist.all_reduce(unit.gradient_P)\n    {_MEAN}",
        f"{_REDUCES}\n    unit.shard_S.grad = part_S",
    ),
    Right("zero1_step", _SCATTER, _ALL_TO_ALL),
    Right("zero1_step", _SCATTER, _NEW_PART),
    Right("zero1_step", _SCATTER, _REDUCES),
    Right("zero1_step", _GATHER, _LISTED),
    Right("zero2_step", _HOOKS, _COUNTED),
    Right("zero2_step", _BUCKET, _CUT),
    Right("gather", _GATHERED, _EARLY),
    Right("gather", _GATHERED, _IN_TURN),
    Right("release", "free(unit.weights_P)", "unit.weights_P.untyped_storage().resize_(0)"),
    Right("release", "free(unit.weights_P)", "for p in unit.parameters:\n        p.data.untyped_storage().resize_(0)"),
    Right("reduce_gradient", _REDUCED, _SUMMED),
    Right("reduce_gradient", _REDUCED, _ADDED),
    Right("clip_sharded", _CLIPPED, _AS_TORCH),
    Right("clip_sharded", _CLIPPED, _EACH),
    Right("reshard", _RESHARDED, _PICKED),
    Right("prefetch", _ASYNC, _ASYNC_LIST),
)
