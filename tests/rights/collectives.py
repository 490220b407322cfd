"""Right answers in other styles for lab 01."""

from __future__ import annotations

from tests.rights import Right

_HEAD = "rank, world = dist.get_rank(), dist.get_world_size()"


def _other(exercise: str, body: str, old: str = _HEAD) -> Right:
    """Another body, which returns before the solution's own lines."""
    indented = "\n".join(f"    {line}" if line else line for line in body.strip("\n").splitlines())
    return Right(exercise, old, f"{indented.lstrip()}\n    {old}")


_SUM_OF_TWO = f"""
{_HEAD}
before = torch.zeros_like(x)
if rank:
    dist.recv(before, src=rank - 1)
total = before + x
if rank + 1 < world:
    dist.send(total, dst=rank + 1)
return total
"""
_BEGUN = f"""
{_HEAD}
token = x.detach().clone()
if rank != 0:
    arriving = torch.empty(x.shape, dtype=x.dtype)
    dist.irecv(arriving, src=rank - 1).wait()
    token.add_(arriving)
if rank != world - 1:
    dist.isend(token, rank + 1).wait()
return token
"""

_MPICH = f"""
{_HEAD}
place, mask = (rank - root) % world, 1
while mask < world:
    if place & mask:
        dist.recv(x, (rank - mask) % world)
        break
    mask <<= 1
mask >>= 1
while mask:
    if place + mask < world:
        dist.send(x, (rank + mask) % world)
    mask >>= 1
"""
_HALVES = f"""
{_HEAD}
place, low, high = (rank - root) % world, 0, world
while high - low > 1:
    middle = (low + high + 1) // 2
    if place == low:
        dist.send(x, (middle + root) % world)
    elif place == middle:
        dist.recv(x, (low + root) % world)
    low, high = (low, middle) if place < middle else (middle, high)
return
"""
_PARENT_FIRST = f"""
{_HEAD}
place = (rank - root) % world
if place:
    parent = place - (1 << place.bit_length() - 1)
    dist.irecv(x, (parent + root) % world).wait()
children = [place + (1 << k) for k in range(place.bit_length(), world.bit_length()) if place + (1 << k) < world]
works = [dist.isend(x, (child + root) % world) for child in children]
for work in works:
    work.wait()
return
"""

_BATCH = """
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, {sent}, {to}), dist.P2POp(dist.irecv, {room}, {source})])
    for work in works:
        work.wait()
"""
_RIGHT, _LEFT = "(rank + 1) % world", "(rank - 1) % world"
_SCATTER_BATCH = (
    f"""
{_HEAD}
parts = list(x.tensor_split(world))
for step in range(world - 1):
    sent, mine = parts[(rank - step) % world], parts[(rank - step - 1) % world]
    room = torch.zeros_like(mine)"""
    + _BATCH.format(sent="sent", to=_RIGHT, room="room", source=_LEFT)
    + "    mine.add_(room)\nreturn"
)
_PASSING = f"""
{_HEAD}
parts = x.tensor_split(world)
running = parts[rank].clone()
for chunk in (c % world for c in range(rank - 1, rank - world, -1)):
    arriving = torch.empty_like(parts[chunk])
    receiving = dist.irecv(arriving, {_LEFT})
    dist.send(running, {_RIGHT})
    receiving.wait()
    running = arriving + parts[chunk]
parts[{_RIGHT}].copy_(running)
return
"""
_NO_EMPTY = f"""
{_HEAD}
bounds = [len(x) // world * c + min(c, len(x) % world) for c in range(world + 1)]
for step in range(world - 1):
    sent, kept = (rank - step) % world, (rank - step - 1) % world
    out, into = x[bounds[sent] : bounds[sent + 1]], x[bounds[kept] : bounds[kept + 1]]
    work = dist.isend(out, {_RIGHT}) if out.numel() else None
    if into.numel():
        room = into.clone()
        dist.recv(room, {_LEFT})
        into += room
    if work:
        work.wait()
return
"""

_GATHER_BATCH = (
    f"""
{_HEAD}
parts = x.tensor_split(world)
for step in range(world - 1):"""
    + _BATCH.format(
        sent="parts[(rank + 1 - step) % world]", to=_RIGHT, room="parts[(rank - step) % world]", source=_LEFT
    )
    + "return"
)
_COPIES = f"""
{_HEAD}
chunk, parts = (rank + 1) % world, x.tensor_split(world)
passing = parts[chunk].clone()
for _ in range(world - 1):
    work = dist.isend(passing, {_RIGHT})
    chunk = (chunk - 1) % world
    came = torch.empty_like(parts[chunk])
    dist.recv(came, {_LEFT})
    work.wait()
    parts[chunk][:] = came
    passing = came
return
"""

_PADDED = f"""
{_HEAD}
if world == 1:
    return
block = -(-x.numel() // world)
rows = x.new_zeros(world, block)
rows.view(-1)[: x.numel()] = x.reshape(-1)
room = torch.empty_like(rows[0])
for step in range(2 * (world - 1)):
    target = rows[(rank - step - 1) % world]
    work = dist.isend(rows[(rank - step) % world], {_RIGHT})
    dist.recv(room, {_LEFT})
    work.wait()
    target.copy_(target + room if step < world - 1 else room)
x.copy_(rows.view(-1)[: x.numel()].view_as(x))
return
"""
_BOTH = "flat = x.view(-1)\n    ring_reduce_scatter(flat)\n    ring_all_gather(flat)"
_VIEW = "flat = x.view(-1)"

_DOUBLED = f"""
{_HEAD}
power = 2 ** (world.bit_length() - 1)
extra = rank + power
if rank >= power:
    dist.send(x, rank - power)
    dist.recv(x, rank - power)
    return
if extra < world:
    more = x.clone()
    dist.recv(more, extra)
    x.add_(more)
for bit in range(power.bit_length() - 1):
    mine, theirs = x.clone(), torch.empty_like(x)
    receiving = dist.irecv(theirs, rank ^ (1 << bit))
    dist.send(mine, rank ^ (1 << bit))
    receiving.wait()
    x.copy_(mine + theirs)
if extra < world:
    dist.send(x, extra)
return
"""

RIGHTS = (
    _other("pass_token", _SUM_OF_TWO),
    _other("pass_token", _BEGUN),
    _other("broadcast_tree", _MPICH + "return\n"),
    _other("broadcast_tree", _HALVES),
    _other("broadcast_tree", _PARENT_FIRST),
    _other("ring_reduce_scatter", _SCATTER_BATCH),
    _other("ring_reduce_scatter", _PASSING),
    _other("ring_reduce_scatter", _NO_EMPTY),
    _other("ring_all_gather", _GATHER_BATCH),
    _other("ring_all_gather", _COPIES),
    _other("ring_all_reduce", _PADDED, _VIEW),
    Right("ring_all_reduce", _BOTH, "for half in (ring_reduce_scatter, ring_all_gather):\n        half(x.flatten())"),
    Right(
        "ring_all_reduce",
        _BOTH,
        "copy = x.reshape(-1).clone()\n    ring_reduce_scatter(copy)\n    ring_all_gather(copy)\n"
        "    x.view(-1)[:] = copy",
    ),
    _other("recursive_doubling_all_reduce", _DOUBLED),
)
