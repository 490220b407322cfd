"""Wrong solutions of lab 01."""

from tests.faults import Fault

_HEAD = "rank, world = dist.get_rank(), dist.get_world_size()"


def _instead(body: str) -> str:
    """Lines before the solution's own."""
    lines = body.strip("\n").splitlines()
    return f"{_HEAD}\n" + "\n".join(f"    {line}".rstrip() for line in lines)


def _calls(exercise: str) -> tuple[Fault, ...]:
    """Calls that go wrong in any exercise, before the solution's own: what the runner says of them is enough."""
    bodies = (
        "if world > 1 and rank == 0:\n    dist.send(x, 1, tag=3)\nif rank == 1:\n    dist.recv(torch.empty_like(x), 0)",
        "if world > 2 and rank == 0:\n    dist.send(x, 1)\nif world > 2 and rank == 1:\n"
        "    dist.recv(torch.empty_like(x), 2)",
        "while world > 1 and rank < 2:\n    (dist.recv if rank else dist.send)(x.clone(), 1 - rank)",
        "if world > 1 and rank == 0:\n    mine = x.clone()\n    work = dist.isend(mine, 1)\n    mine += 1\n"
        "    work.wait()\nif rank == 1:\n    dist.recv(torch.empty_like(x), 0)",
    )
    return tuple(Fault(exercise, None, _HEAD, _instead(body)) for body in bodies)


_HUB = """
arriving = torch.empty_like(x)
if rank > 0:
    dist.send(x, 0)
    dist.recv(x, 0)
    return
for other in range(1, world):
    dist.recv(arriving, other)
    x += arriving
for other in range(1, world):
    dist.send(x, other)
return
"""
_ROTATE = """
passing = x.clone()
for _ in range(world - 1):
    arriving = torch.empty_like(x)
    work = dist.isend(passing, (rank + 1) % world)
    dist.recv(arriving, (rank - 1) % world)
    work.wait()
    x += arriving
    passing = arriving
return
"""


_END = "# END SOLUTION"
_RETURNS = f"return x\n    {_END}"


def _in_turns(first: str, send: str, receive: str) -> str:
    """A send that some ranks do before they receive, and the others after."""
    return (
        f"if {first}:\n            {send}\n            {receive}\n"
        f"        else:\n            {receive}\n            {send}"
    )


# --- pass_token ----------------------------------------------------------------------------------

_TOKEN_HUB = """
token, arriving = x.clone(), torch.empty_like(x)
if rank > 0:
    dist.send(x, 0)
    dist.recv(token, 0)
    return token
for other in range(1, world):
    dist.recv(arriving, other)
    x = x + arriving
    dist.send(x, other)
return token
"""
_TO_ALL_LATER = """
works = [dist.isend(x, other) for other in range(rank + 1, world)]
token = x.clone()
for other in range(rank):
    arriving = torch.empty_like(x)
    dist.recv(arriving, other)
    token += arriving
for work in works:
    work.wait()
return token
"""
_ADD = "token += arriving"
_IF_NOT_LAST = "if rank < world - 1:"
_ROOM, _RECEIVE = "arriving = torch.empty_like(x)", "dist.recv(arriving, rank - 1)"
_PASS = "dist.send(token, rank + 1)"

_PASS_TOKEN = (
    *_calls("pass_token"),
    Fault("pass_token", "hub", _HEAD, _instead(_TOKEN_HUB)),
    Fault(
        "pass_token",
        "collective",
        _HEAD,
        _instead(
            "rows = [torch.empty_like(x) for _ in range(world)]\ndist.all_gather(rows, x)\nreturn sum(rows[: rank + 1])"
        ),
    ),
    Fault(
        "pass_token",
        "widened",
        f"{_ROOM}\n        {_RECEIVE}\n        {_ADD}\n    {_IF_NOT_LAST}\n        {_PASS}",
        f"arriving = torch.empty_like(x, dtype=torch.float64)\n        {_RECEIVE}\n        {_ADD}\n"
        f"    {_IF_NOT_LAST}\n        dist.send(token.double(), rank + 1)",
    ),
    Fault("pass_token", "line", _HEAD, _instead(_TO_ALL_LATER)),
    Fault(
        "pass_token",
        "line",
        "return token",
        "if rank == world - 1 > 0:\n        dist.send(token, 0)\n    elif rank == 0 and world > 1:\n"
        "        dist.recv(torch.empty_like(x), world - 1)\n    return token",
    ),
    Fault("pass_token", None, "x.clone()", "torch.zeros(x.shape) + x.float()"),
    Fault("pass_token", None, "x.clone()", "torch.zeros(len(x), dtype=x.dtype) + x"),
    Fault("pass_token", None, _ADD, "token += ariving"),
    Fault("pass_token", None, _PASS, "dist.isend(token, rank + 1)"),
    Fault("pass_token", None, "return token", "return token if world <= 2 else x"),
    Fault("pass_token", None, "return token", "return token.view(-1)"),
    Fault("pass_token", None, "return token", "print(token)"),
    Fault("pass_token", None, _PASS, f"{_PASS}\n        if rank == 0 and world > 2:\n            dist.send(token, 2)"),
    Fault("pass_token", None, _HEAD, "rank, world = dist.get_rank(), 2"),
)

# --- broadcast_tree ------------------------------------------------------------------------------

_PLACE = "place = (rank - root) % world"
_TREE_SEND = "dist.send(x, (rank + distance) % world)"
_TREE_RECV = "dist.recv(x, (rank - distance) % world)"
_LOOP = "while distance < world:"
_ELIF = "elif distance <= place < 2 * distance:"
_HEAP = """
place = (rank - root) % world
if place > 0:
    dist.recv(x, ((place - 1) // 2 + root) % world)
for child in (2 * place + 1, 2 * place + 2):
    if child < world:
        dist.send(x, (child + root) % world)
return
"""
_ONE_HELPS = """
place = (rank - root) % world
if place == world - 1 > 2:
    dist.recv(x, (rank - 1) % world)
elif place > 0:
    dist.recv(x, root)
    if place == world - 2 > 1:
        dist.send(x, (rank + 1) % world)
for other in range(1, world if world < 4 else world - 1):
    if rank == root:
        dist.send(x, (root + other) % world)
return
"""
_FLAT = """
if rank != root:
    dist.recv(x, root)
    return
for other in range(world):
    if other != root:
        dist.send(x, other)
return
"""

_BROADCAST_TREE = (
    *_calls("broadcast_tree"),
    Fault("broadcast_tree", "flat", _HEAD, _instead(_FLAT)),
    Fault("broadcast_tree", "flat", _HEAD, _instead(_FLAT.replace("range(world)", "reversed(range(world))"))),
    Fault(
        "broadcast_tree",
        "chain",
        _PLACE,
        f"{_PLACE}\n    if place > 0:\n        dist.recv(x, (rank - 1) % world)\n    if place < world - 1:\n"
        "        dist.send(x, (rank + 1) % world)\n    return",
    ),
    Fault("broadcast_tree", "idle", _HEAD, _instead(_HEAP)),
    Fault("broadcast_tree", "idle", _HEAD, _instead(_ONE_HELPS)),
    Fault("broadcast_tree", "again", "distance *= 2", "distance += 1"),
    Fault(
        "broadcast_tree",
        "widened",
        f"{_TREE_SEND}\n        {_ELIF}\n            {_TREE_RECV}",
        f"{_TREE_SEND.replace('(x,', '(x.double(),')}\n        {_ELIF}\n            room = x.double()\n"
        f"            {_TREE_RECV.replace('(x,', '(room,')}\n            x.copy_(room)",
    ),
    Fault("broadcast_tree", "collective", _HEAD, _instead("dist.broadcast(x, root)\nreturn")),
    Fault("broadcast_tree", None, "root=0", "root=1"),
    Fault("broadcast_tree", None, _HEAD, f"{_HEAD}\n    if world == 3:\n        x.no_such_method()"),
    Fault("broadcast_tree", None, "distance *= 2", "pass"),
    Fault("broadcast_tree", None, _TREE_SEND, "dist.send(x, rank + distance)"),
    Fault("broadcast_tree", None, "dist.send(x", "dist.isend(x"),
    Fault("broadcast_tree", None, _PLACE, "place = (rank + root) % world"),
    Fault("broadcast_tree", None, _LOOP, "while distance < min(world, 2):"),
    Fault("broadcast_tree", None, "distance *= 2", "distance *= 2\n    x += 1"),
    Fault("broadcast_tree", None, _END, _RETURNS),
    Fault(
        "broadcast_tree",
        None,
        f"{_TREE_SEND}\n        {_ELIF}\n            {_TREE_RECV}",
        f"{_TREE_SEND}\n        {_ELIF}\n            room = torch.empty_like(x)\n"
        f"            {_TREE_RECV.replace('(x,', '(room,')}\n            x.mul_(0).add_(room)",
    ),
)

# --- ring_reduce_scatter and ring_all_gather -----------------------------------------------------

_WAIT = "work.wait()"
_ADD_CHUNK = "chunk += arriving"
_RIGHT, _LEFT = "(rank + 1) % world", "(rank - 1) % world"
_ISEND = f"work = dist.isend(parts[(rank - step) % world], {_RIGHT})"
_RECV = f"dist.recv(arriving, {_LEFT})"
_SENT = f"work = dist.isend(parts[(rank + 1 - step) % world], {_RIGHT})"
_CAME = f"dist.recv(parts[(rank - step) % world], {_LEFT})"
_STEPS = "range(world - 1)"
_OTHERS_ZERO = """
for chunk, part in enumerate(x.tensor_split(world)):
    if chunk != (rank + 1) % world:
        part.zero_()
"""
_DIRECT_SCATTER = """
parts = [part.clone() for part in x.tensor_split(world)]
total = x.tensor_split(world)[(rank + 1) % world]
for step in range(1, world):
    arriving = torch.empty_like(total)
    work = dist.isend(parts[(rank + step + 1) % world], (rank + step) % world)
    dist.recv(arriving, (rank - step) % world)
    work.wait()
    total += arriving
return
"""
_DIRECT_GATHER = """
parts = x.tensor_split(world)
for step in range(1, world):
    work = dist.isend(parts[(rank + 1) % world], (rank + step) % world)
    dist.recv(parts[(rank - step + 1) % world], (rank - step) % world)
    work.wait()
return
"""
_SCATTER_LEFTWARDS = """
parts = x.tensor_split(world)
for step in range(world - 1):
    target = parts[(rank + step + 3) % world]
    came = torch.empty_like(target)
    work = dist.isend(parts[(rank + step + 2) % world], (rank - 1) % world)
    dist.recv(came, (rank + 1) % world)
    work.wait()
    target += came
return
"""
_GATHER_LEFTWARDS = """
parts = x.tensor_split(world)
for step in range(world - 1):
    receiving = dist.irecv(parts[(rank + 2 + step) % world], (rank + 1) % world)
    dist.isend(parts[(rank + 1 + step) % world], (rank - 1) % world).wait()
    receiving.wait()
return
"""
_ARRIVING = "arriving = room[: len(chunk)]"


def _in_both(exercise: str, send: str, receive: str, before: str = "") -> tuple[Fault, ...]:
    """What can be wrong in a ring, whatever it does with the chunks."""
    blocking = send.replace("work = dist.isend", "dist.send")
    return (
        *_calls(exercise),
        Fault(exercise, "many", _STEPS, "range(world)"),
        Fault(exercise, "whole", _HEAD, _instead(before + _ROTATE.lstrip("\n"))),
        Fault(exercise, "hub", _HEAD, _instead(before + _HUB.lstrip("\n"))),
        *(
            Fault(exercise, "serial", f"{send}\n        {receive}\n        {_WAIT}", _in_turns(who, blocking, receive))
            for who in ("rank == 0", "rank % 2 == 0", "rank == world - 1")
        ),
        Fault(exercise, "collective", _HEAD, _instead(f"{before}dist.all_reduce(x)\nreturn")),
        Fault(exercise, None, _END, _RETURNS),
        Fault(exercise, None, _WAIT, "pass"),
        Fault(exercise, None, _HEAD, "rank, world = dist.get_rank(), 2"),
        Fault(exercise, None, _HEAD, f"{_HEAD}\n    if world > 2:\n        x.zero_()"),
        Fault(exercise, None, _HEAD, f"{_HEAD}\n    if rank > 0:\n        return"),
        Fault(exercise, None, _HEAD, f"{_HEAD}\n    x.data = x.clone()"),
    )


_RING_REDUCE_SCATTER = (
    *_in_both("ring_reduce_scatter", _ISEND, _RECV),
    Fault("ring_reduce_scatter", None, _ARRIVING, f"if not len(chunk):\n            continue\n        {_ARRIVING}"),
    Fault("ring_reduce_scatter", None, _ARRIVING, "arriving = torch.empty_like(parts[(rank - step) % world])"),
    Fault("ring_reduce_scatter", "chunks", _ISEND, _ISEND.replace("rank - step", "rank + step")),
    Fault("ring_reduce_scatter", "no-ring", _HEAD, _instead(_DIRECT_SCATTER)),
    Fault("ring_reduce_scatter", "leftwards", _HEAD, _instead(_SCATTER_LEFTWARDS)),
    Fault(
        "ring_reduce_scatter",
        "widened",
        f"{_ARRIVING}\n        {_ISEND}",
        f"arriving = torch.empty(len(chunk), dtype=torch.float64)\n        "
        f"{_ISEND.replace('% world], ', '% world].double(), ')}",
    ),
    Fault(
        "ring_reduce_scatter",
        None,
        _WAIT,
        f"parts[(rank - step) % world].zero_()\n        {_WAIT}",
    ),
    Fault("ring_reduce_scatter", None, _ADD_CHUNK, f"{_ADD_CHUNK}\n        chunk /= world"),
)

_RING_ALL_GATHER = (
    *_in_both("ring_all_gather", _SENT, _CAME, _OTHERS_ZERO),
    Fault("ring_all_gather", None, _SENT, _SENT.replace("rank + 1 - step", "rank + 1 + step")),
    Fault(
        "ring_all_gather",
        None,
        _CAME,
        f"room = torch.empty_like(parts[(rank - step) % world])\n        dist.recv(room, {_LEFT})\n"
        "        parts[(rank - step) % world].mul_(0).add_(room)",
    ),
    Fault("ring_all_gather", "not-forwarded", "parts[(rank + 1 - step) % world]", "parts[(rank + 1) % world]"),
    Fault("ring_all_gather", "no-ring", _HEAD, _instead(_DIRECT_GATHER)),
    Fault("ring_all_gather", "leftwards", _HEAD, _instead(_GATHER_LEFTWARDS)),
    Fault(
        "ring_all_gather",
        "widened",
        f"{_SENT}\n        {_CAME}",
        f"{_SENT.replace('% world], ', '% world].double(), ')}\n        room = parts[(rank - step) % world].double()\n"
        f"        dist.recv(room, {_LEFT})\n        parts[(rank - step) % world].copy_(room)",
    ),
)

# --- ring_all_reduce -----------------------------------------------------------------------------

_FLAT = "flat = x.view(-1)"
_FIRST, _SECOND = "ring_reduce_scatter(flat)", "ring_all_gather(flat)"

_SERIAL_ALL_REDUCE = """
parts = x.view(-1).tensor_split(world)
for step in range(2 * (world - 1)):
    chunk = parts[(rank - step - 1) % world]
    arriving = torch.empty_like(chunk)
    if rank == 0:
        dist.send(parts[(rank - step) % world], (rank + 1) % world)
    dist.recv(arriving, (rank - 1) % world)
    if rank > 0:
        dist.send(parts[(rank - step) % world], (rank + 1) % world)
    chunk.copy_(chunk + arriving if step < world - 1 else arriving)
return
"""

_RING_ALL_REDUCE = (
    Fault("ring_all_reduce", "rows", _FLAT, "flat = x"),
    Fault("ring_all_reduce", "whole", _FLAT, f"{_instead(_ROTATE)}\n    {_FLAT}"),
    Fault("ring_all_reduce", "hub", _FLAT, f"{_instead(_HUB)}\n    {_FLAT}"),
    Fault("ring_all_reduce", "no-ring", _SECOND, f"{_instead(_DIRECT_GATHER).replace('x.tensor', 'flat.tensor')}"),
    Fault("ring_all_reduce", "many", _SECOND, f"{_SECOND}\n    {_SECOND}"),
    Fault("ring_all_reduce", "serial", _FLAT, f"{_instead(_SERIAL_ALL_REDUCE)}\n    {_FLAT}"),
    Fault(
        "ring_all_reduce",
        "widened",
        f"{_FLAT}\n    {_FIRST}\n    {_SECOND}",
        f"flat = x.view(-1).double()\n    {_FIRST}\n    {_SECOND}\n    x.copy_(flat.view_as(x))",
    ),
    Fault("ring_all_reduce", "collective", _FLAT, f"dist.all_reduce(x)\n    return\n    {_FLAT}"),
    Fault("ring_all_reduce", None, _FLAT, f"if dist.get_world_size() > 2:\n        return\n    {_FLAT}"),
    Fault("ring_all_reduce", None, _SECOND, f"{_SECOND}\n    if dist.get_rank() > 0:\n        x.zero_()"),
    Fault("ring_all_reduce", None, _SECOND, f"{_SECOND}\n    return x"),
    Fault("ring_all_reduce", None, _SECOND, f"{_SECOND}\n    return flat.clone()"),
    Fault("ring_all_reduce", None, _SECOND, f"{_SECOND}\n    x.copy_(x.float())"),
    Fault("ring_all_reduce", None, _FIRST, f"if dist.get_rank() == 0:\n        {_FIRST}"),
)

# --- recursive_doubling_all_reduce ---------------------------------------------------------------

_SWAP = "work = dist.isend(x, rank ^ distance)\n        dist.recv(arriving, rank ^ distance)"
_LINEAR = "work = dist.isend(x, (rank + distance) % world)\n        dist.recv(arriving, (rank - distance) % world)"
_EVERYONE = (
    "arriving = torch.empty_like(x)\n    distance = 1\n    while distance < world:\n"
    f"        {_LINEAR}\n        work.wait()\n        x += arriving\n        distance *= 2\n    return"
)
_IN_ORDER = _in_turns("rank < rank ^ distance", "dist.send(x, rank ^ distance)", "dist.recv(arriving, rank ^ distance)")
_ADD_SUM = "work.wait()\n        x += arriving"

_RECURSIVE_DOUBLING = (
    *_calls("recursive_doubling_all_reduce"),
    Fault("recursive_doubling_all_reduce", "no-swap", _SWAP, _LINEAR.replace("world", "power")),
    Fault("recursive_doubling_all_reduce", "no-swap", _ROOM, _EVERYONE),
    Fault("recursive_doubling_all_reduce", "many", _HEAD, _instead(_ROTATE)),
    Fault("recursive_doubling_all_reduce", "serial", f"{_SWAP}\n        work.wait()", _IN_ORDER),
    Fault("recursive_doubling_all_reduce", "hub", _HEAD, _instead(_HUB)),
    Fault(
        "recursive_doubling_all_reduce",
        "widened",
        f"{_SWAP}\n        work.wait()",
        f"came = arriving.double()\n        {_SWAP.replace('(x,', '(x.double(),').replace('(arriving', '(came')}\n"
        "        work.wait()\n        arriving.copy_(came)",
    ),
    Fault("recursive_doubling_all_reduce", "collective", _HEAD, _instead("dist.all_reduce(x)\nreturn")),
    Fault("recursive_doubling_all_reduce", None, _ADD_SUM, "x += arriving\n        work.wait()"),
    Fault("recursive_doubling_all_reduce", None, "work.wait()", "pass"),
    Fault("recursive_doubling_all_reduce", None, _END, _RETURNS),
    Fault("recursive_doubling_all_reduce", None, _ADD_SUM, "work.wait()\n        x -= arriving"),
)

FAULTS = (
    _PASS_TOKEN + _BROADCAST_TREE + _RING_REDUCE_SCATTER + _RING_ALL_GATHER + _RING_ALL_REDUCE + _RECURSIVE_DOUBLING
)
