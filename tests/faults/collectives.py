"""Wrong solutions of lab 01."""

from tests.faults import Fault

_HEAD = "rank, world = dist.get_rank(), dist.get_world_size()"


def _instead(body: str) -> str:
    """Lines that do the work another way and return, before the solution's own."""
    lines = body.strip("\n").splitlines()
    return f"{_HEAD}\n" + "\n".join(f"    {line}".rstrip() for line in lines)


_ALL_TO_ZERO = """
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


def _calls(exercise: str) -> tuple[Fault, ...]:
    """Calls that go wrong in any exercise, before the solution's own."""
    faults = {
        "itself": """
if world > 1:
    dist.send(x, rank)
""",
        "tags": """
if world > 1 and rank == 0:
    dist.send(x, 1, tag=3)
if rank == 1:
    dist.recv(torch.empty_like(x), 0)
""",
        "crossed": """
if world > 2 and rank == 0:
    dist.send(x, 1)
if world > 2 and rank == 1:
    dist.recv(torch.empty_like(x), 2)
""",
        "endless": """
while world > 1 and rank < 2:
    if rank == 0:
        dist.send(x, 1)
    else:
        dist.recv(torch.empty_like(x), 0)
""",
        "written": """
if world > 1 and rank == 0:
    mine = x.clone()
    work = dist.isend(mine, 1)
    mine += 1
    work.wait()
if rank == 1:
    dist.recv(torch.empty_like(x), 0)
""",
        "room": """
if world > 1 and rank == 0:
    dist.send(x, 1)
if rank == 1:
    dist.recv(torch.empty(x.shape), 0)
""",
    }
    return tuple(Fault(exercise, id, _HEAD, _instead(body)) for id, body in faults.items())


# --- pass_token ----------------------------------------------------------------------------------

_ADD = "token += arriving"
_PASS = "dist.send(token, rank + 1)"
_IF_NOT_LAST = "if rank < world - 1:"
_RECEIVE = "dist.recv(arriving, rank - 1)"

_PASS_TOKEN = (
    *_calls("pass_token"),
    Fault("pass_token", "outside", f"{_IF_NOT_LAST}\n        {_PASS}", _PASS),
    Fault("pass_token", None, _ADD, "token += ariving"),
    Fault("pass_token", "itself-returned", "return token", "return x if rank == 0 else token"),
    Fault(
        "pass_token",
        "widened",
        f"arriving = torch.empty_like(x)\n        {_RECEIVE}\n        {_ADD}\n    {_IF_NOT_LAST}\n        {_PASS}",
        f"arriving = torch.empty_like(x, dtype=torch.float64)\n        {_RECEIVE}\n        {_ADD}\n"
        f"    {_IF_NOT_LAST}\n        dist.send(token.double(), rank + 1)",
    ),
    Fault("pass_token", "own-only", _PASS, "dist.send(x, rank + 1)"),
    Fault("pass_token", "not-added", _ADD, "token = arriving"),
    Fault("pass_token", "received", "return token", "return arriving if rank else token"),
    Fault("pass_token", "alone", _ADD, "pass"),
    Fault("pass_token", "total", _HEAD, _instead("x = x.clone()\ndist.all_reduce(x)\nreturn x")),
    Fault("pass_token", "changes", "token = x.clone()", "token = x"),
    Fault("pass_token", "circle", f"{_IF_NOT_LAST}\n        {_PASS}", "dist.send(token, (rank + 1) % world)"),
    Fault(
        "pass_token",
        "receive-first",
        f"if rank > 0:\n        arriving = torch.empty_like(x)\n        {_RECEIVE}\n        {_ADD}",
        "arriving = torch.empty_like(x)\n    if world > 1:\n        dist.recv(arriving, (rank - 1) % world)",
    ),
    Fault(
        "pass_token",
        "hub",
        _HEAD,
        _instead(
            """
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
        ),
    ),
    Fault(
        "pass_token",
        "collective",
        _HEAD,
        _instead(
            "rows = [torch.empty_like(x) for _ in range(world)]\ndist.all_gather(rows, x)\nreturn sum(rows[: rank + 1])"
        ),
    ),
    Fault("pass_token", "unwaited", _PASS, "dist.isend(token, rank + 1)"),
    Fault("pass_token", "alone", "return token", "return token if world <= 2 else x"),
    Fault("pass_token", None, "return token", "return token.view(-1)"),
    Fault("pass_token", None, "return token", "print(token)"),
    Fault("pass_token", "crossed", _RECEIVE, "dist.recv(arriving, 0)"),
    Fault("pass_token", None, _PASS, f"{_PASS}\n        if rank == 0 and world > 2:\n            dist.send(token, 2)"),
    Fault("pass_token", None, _HEAD, "rank, world = dist.get_rank(), 2"),
)

# --- broadcast_tree ------------------------------------------------------------------------------

_PLACE = "place = (rank - root) % world"
_SENDS = "if place < distance and place + distance < world:"
_RECEIVES = "dist.recv(x, (rank - distance) % world)"
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

_BROADCAST_TREE = (
    *_calls("broadcast_tree"),
    Fault("broadcast_tree", None, _HEAD, f"{_HEAD}\n    if world == 3:\n        x.no_such_method()"),
    Fault("broadcast_tree", "idle", _HEAD, _instead(_HEAP)),
    Fault("broadcast_tree", "power-of-two", _LOOP, "while distance < min(world, 8):"),
    Fault("broadcast_tree", "crossed", _ELIF, "elif distance <= place:"),
    Fault("broadcast_tree", "root-only", _SENDS, "if place == 0 and place + distance < world:"),
    Fault("broadcast_tree", "endless", "distance *= 2", "pass"),
    Fault("broadcast_tree", "itself", "dist.send(x, (rank + distance) % world)", "dist.send(x, rank ** distance)"),
    Fault(
        "broadcast_tree",
        "widened",
        f"dist.send(x, (rank + distance) % world)\n        {_ELIF}\n            {_RECEIVES}",
        f"dist.send(x.double(), (rank + distance) % world)\n        {_ELIF}\n            room = x.double()\n"
        f"            {_RECEIVES.replace('(x,', '(room,')}\n            x.copy_(room)",
    ),
    Fault("broadcast_tree", "root-ignored", _PLACE, "place = rank"),
    Fault("broadcast_tree", "not-in-place", _RECEIVES, "dist.recv(torch.empty_like(x), (rank - distance) % world)"),
    Fault("broadcast_tree", "not-in-place", _RECEIVES, f"x = torch.empty_like(x)\n            {_RECEIVES}"),
    Fault("broadcast_tree", "power-of-two", _LOOP, "while 2 * distance <= world:"),
    Fault("broadcast_tree", "beyond", _SENDS, "if place < distance:"),
    Fault("broadcast_tree", "powers", _HEAD, f"{_HEAD}\n    assert world & (world - 1) == 0"),
    Fault(
        "broadcast_tree",
        "flat",
        _HEAD,
        _instead(
            """
if rank != root:
    dist.recv(x, root)
    return
for other in range(world):
    if other != root:
        dist.send(x, other)
return
"""
        ),
    ),
    Fault(
        "broadcast_tree",
        "chain",
        _PLACE,
        f"{_PLACE}\n    if place > 0:\n        dist.recv(x, (rank - 1) % world)\n    if place < world - 1:\n"
        "        dist.send(x, (rank + 1) % world)\n    return",
    ),
    Fault("broadcast_tree", "again", "distance *= 2", "distance += 1"),
    Fault("broadcast_tree", "send-first", _PLACE, f"{_PLACE}\n    if world > 1:\n        dist.send(x, rank ^ 1)"),
    Fault("broadcast_tree", "unwaited", "dist.send(x", "dist.isend(x"),
    Fault("broadcast_tree", "collective", _HEAD, _instead("dist.broadcast(x, root)\nreturn")),
    Fault("broadcast_tree", None, _PLACE, "place = (rank + root) % world"),
    Fault("broadcast_tree", None, _LOOP, "while distance < min(world, 2):"),
    Fault("broadcast_tree", None, "distance *= 2", "distance *= 2\n    x += 1"),
)

# --- ring_reduce_scatter and ring_all_gather -----------------------------------------------------

_RIGHT, _LEFT = "(rank + 1) % world", "(rank - 1) % world"
_CUT = "parts = x.tensor_split(world)"
_STEPS = "range(world - 1)"
_WAIT = "work.wait()"
_ADD_CHUNK = "chunk += arriving"
_ISEND = f"work = dist.isend(parts[(rank - step) % world], {_RIGHT})"
_RECV = f"dist.recv(arriving, {_LEFT})"
_SENT = f"work = dist.isend(parts[(rank + 1 - step) % world], {_RIGHT})"
_CAME = f"dist.recv(parts[(rank - step) % world], {_LEFT})"
_SMALL = "parts = [x[c * (len(x) // world) :][: len(x) // world] for c in range(world)]"


def _in_both(exercise: str, send: str, receive: str) -> tuple[Fault, ...]:
    """What can be wrong in a ring, whatever it does with the chunks."""
    return (
        *_calls(exercise),
        Fault(exercise, "outside", send, send.replace(_RIGHT, "rank + 1")),
        Fault(
            exercise,
            "tuple",
            _WAIT,
            f"{_WAIT}\n        parts[(rank - step - 1) % world] += 0",
        ),
        Fault(exercise, "no-source", receive, receive.replace(f", {_LEFT}", "")),
        Fault(exercise, "crossed", receive, receive.replace(_LEFT, "(rank - 2) % world")),
        Fault(exercise, "tags", send, send.replace(_RIGHT, f"{_RIGHT}, tag=step")),
        Fault(exercise, "few", _STEPS, "range(world - 2)"),
        Fault(exercise, "many", _STEPS, "range(world)"),
        Fault(exercise, "not-in-place", _CUT, "parts = x.clone().tensor_split(world)"),
        Fault(exercise, "remainder", _CUT, _SMALL),
        Fault(exercise, "blocks", _CUT, "parts = x.chunk(world)"),
        Fault(exercise, "uneven", _CUT, "parts = x.view(world, -1)"),
        Fault(exercise, "short", _CUT, f"{_CUT}\n    assert len(x) >= world"),
        Fault(
            exercise,
            "left",
            f"{send}\n        {receive}",
            f"{send}\n        {receive}".replace(_RIGHT, "RIGHT").replace(_LEFT, _RIGHT).replace("RIGHT", _LEFT),
        ),
        Fault(
            exercise, "send-first", send, send.replace("work = dist.isend", "dist.send").replace("work.wait()", "pass")
        ),
        Fault(exercise, "receive-first", f"{send}\n        {receive}", f"{receive}\n        {send}"),
        Fault(exercise, "unwaited", _WAIT, "pass"),
        Fault(exercise, "whole", _HEAD, _instead(_GATHER_WHOLE if exercise == "ring_all_gather" else _ROTATE)),
        Fault(exercise, "hub", _HEAD, _instead(_GATHER_HUB if exercise == "ring_all_gather" else _ALL_TO_ZERO)),
        Fault(exercise, None, _HEAD, "rank, world = dist.get_rank(), 2"),
        Fault(exercise, None, _HEAD, f"{_HEAD}\n    if world > 2:\n        x.zero_()"),
        Fault(exercise, None, _HEAD, f"{_HEAD}\n    if rank > 0:\n        return"),
    )


_OTHERS_ZERO = """
for chunk, part in enumerate(x.tensor_split(world)):
    if chunk != (rank + 1) % world:
        part.zero_()
"""
_GATHER_WHOLE = _OTHERS_ZERO + _ROTATE.lstrip("\n")
_GATHER_HUB = _OTHERS_ZERO + _ALL_TO_ZERO.lstrip("\n")
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

_LINES = f"{_ISEND}\n        {_RECV}\n        {_WAIT}"
_ROOM, _ARRIVING = "room = torch.empty_like(parts[0])", "arriving = room[: len(chunk)]"


def _in_turns(first: str, sent: str, receive: str) -> str:
    """A send that some ranks do before they receive, and the others after."""
    send = f"dist.send({sent}, {_RIGHT})"
    return (
        f"if {first}:\n            {send}\n            {receive}\n"
        f"        else:\n            {receive}\n            {send}"
    )


_RING_REDUCE_SCATTER = (
    *_in_both("ring_reduce_scatter", _ISEND, _RECV),
    Fault("ring_reduce_scatter", "serial", _LINES, _in_turns("rank == 0", "parts[(rank - step) % world]", _RECV)),
    Fault("ring_reduce_scatter", "serial", _LINES, _in_turns("rank % 2 == 0", "parts[(rank - step) % world]", _RECV)),
    Fault("ring_reduce_scatter", "chunks", _ADD_CHUNK, "parts[(rank - step) % world].add_(arriving)"),
    Fault("ring_reduce_scatter", "chunks", _ISEND, _ISEND.replace("rank - step", "rank + step")),
    Fault("ring_reduce_scatter", "chunks", _ISEND, _ISEND.replace("rank - step", "rank")),
    Fault("ring_reduce_scatter", "room", _ROOM, "room = torch.empty(len(parts[0]))"),
    Fault(
        "ring_reduce_scatter",
        "written",
        _LINES,
        f"mine = parts[(rank - step) % world]\n        {_ISEND}\n        mine.zero_()\n        {_RECV}\n"
        f"        {_WAIT}",
    ),
    Fault(
        "ring_reduce_scatter",
        "widened",
        f"{_ARRIVING}\n        {_ISEND}",
        f"arriving = torch.empty(len(chunk), dtype=torch.float64)\n        "
        f"{_ISEND.replace('% world], ', '% world].double(), ')}",
    ),
    Fault("ring_reduce_scatter", "not-in-place", _ADD_CHUNK, "chunk = chunk + arriving"),
    Fault("ring_reduce_scatter", "other-chunk", _STEPS, "range(1, world)"),
    Fault("ring_reduce_scatter", "overwritten", _ADD_CHUNK, "chunk.copy_(arriving)"),
    Fault(
        "ring_reduce_scatter",
        "unsummed",
        _ISEND,
        f"own = x.clone().tensor_split(world) if step == 0 else own\n        {_ISEND.replace('parts', 'own')}",
    ),
    Fault("ring_reduce_scatter", "uneven", "room[: len(chunk)]", "room[: len(parts[-1])]"),
    Fault("ring_reduce_scatter", "no-ring", _HEAD, _instead(_DIRECT_SCATTER)),
    Fault("ring_reduce_scatter", "collective", _HEAD, _instead("dist.all_reduce(x)\nreturn")),
    Fault("ring_reduce_scatter", None, _ADD_CHUNK, f"{_ADD_CHUNK}\n        chunk /= world"),
)

_GATHER_LINES = f"{_SENT}\n        {_CAME}\n        {_WAIT}"

_RING_ALL_GATHER = (
    *_in_both("ring_all_gather", _SENT, _CAME),
    Fault(
        "ring_all_gather", "serial", _GATHER_LINES, _in_turns("rank == 0", "parts[(rank + 1 - step) % world]", _CAME)
    ),
    Fault("ring_all_gather", "chunks", _SENT, _SENT.replace("rank + 1 - step", "rank + 1 + step")),
    Fault(
        "ring_all_gather",
        "widened",
        _GATHER_LINES,
        f"{_SENT.replace('% world], ', '% world].double(), ')}\n        room = parts[(rank - step) % world].double()\n"
        f"        dist.recv(room, {_LEFT})\n        {_WAIT}\n        parts[(rank - step) % world].copy_(room)",
    ),
    Fault("ring_all_gather", "not-in-place", _CUT, "parts = [part.clone() for part in x.tensor_split(world)]"),
    Fault("ring_all_gather", "wrong-start", _STEPS, "range(1, world)"),
    Fault("ring_all_gather", "not-forwarded", "parts[(rank + 1 - step) % world]", "parts[(rank + 1) % world]"),
    Fault(
        "ring_all_gather",
        "added",
        f"{_CAME}\n        {_WAIT}",
        f"room = torch.empty_like(parts[(rank - step) % world])\n        dist.recv(room, {_LEFT})\n"
        f"        {_WAIT}\n        parts[(rank - step) % world].add_(room)",
    ),
    Fault("ring_all_gather", "no-ring", _HEAD, _instead(_DIRECT_GATHER)),
    Fault("ring_all_gather", "collective", _HEAD, _instead(_OTHERS_ZERO + "dist.all_reduce(x)\nreturn")),
)

# --- ring_all_reduce -----------------------------------------------------------------------------

_FLAT = "flat = x.view(-1)"
_FIRST, _SECOND = "ring_reduce_scatter(flat)", "ring_all_gather(flat)"

_RING_ALL_REDUCE = (
    Fault("ring_all_reduce", "swapped", f"{_FIRST}\n    {_SECOND}", f"{_SECOND}\n    {_FIRST}"),
    Fault("ring_all_reduce", "returns-nothing", f"{_FIRST}\n    {_SECOND}", f"y = {_FIRST}\n    ring_all_gather(y)"),
    Fault("ring_all_reduce", "serial", _FLAT, f"{_instead(_SERIAL_ALL_REDUCE)}\n    {_FLAT}"),
    Fault(
        "ring_all_reduce",
        "widened",
        f"{_FLAT}\n    {_FIRST}\n    {_SECOND}",
        f"flat = x.view(-1).double()\n    {_FIRST}\n    {_SECOND}\n    x.copy_(flat.view_as(x))",
    ),
    Fault("ring_all_reduce", "not-in-place", _FLAT, "flat = x.flatten().clone()"),
    Fault("ring_all_reduce", "mean", _SECOND, f"{_SECOND}\n    x /= dist.get_world_size()"),
    Fault("ring_all_reduce", "half", _SECOND, "pass"),
    Fault(
        "ring_all_reduce",
        "twice",
        f"{_FLAT}\n    {_FIRST}\n    {_SECOND}",
        f"flat = x.flatten().clone()\n    {_FIRST}\n    {_SECOND}\n    x += flat.view_as(x)",
    ),
    Fault("ring_all_reduce", "rows", _FLAT, "flat = x"),
    Fault("ring_all_reduce", "whole", _FLAT, f"{_instead(_ROTATE)}\n    {_FLAT}"),
    Fault("ring_all_reduce", "hub", _FLAT, f"{_instead(_ALL_TO_ZERO)}\n    {_FLAT}"),
    Fault("ring_all_reduce", "no-ring", _SECOND, f"{_instead(_DIRECT_GATHER).replace('x.tensor', 'flat.tensor')}"),
    Fault("ring_all_reduce", "many", _SECOND, f"{_SECOND}\n    {_SECOND}"),
    Fault(
        "ring_all_reduce",
        "send-first",
        _FLAT,
        f"{_instead(_ROTATE.replace('work = dist.isend', 'dist.send').replace('work.wait()', 'pass'))}\n    {_FLAT}",
    ),
    Fault("ring_all_reduce", "unwaited", _FLAT, f"{_instead(_ROTATE.replace('work.wait()', 'pass'))}\n    {_FLAT}"),
    Fault("ring_all_reduce", "collective", _FLAT, f"dist.all_reduce(x)\n    return\n    {_FLAT}"),
    Fault("ring_all_reduce", None, _FLAT, f"if dist.get_world_size() > 2:\n        return\n    {_FLAT}"),
    Fault("ring_all_reduce", None, _SECOND, f"{_SECOND}\n    if dist.get_rank() > 0:\n        x.zero_()"),
    Fault("ring_all_reduce", None, _FIRST, f"if dist.get_rank() == 0:\n        {_FIRST}"),
)

# --- recursive_doubling_all_reduce ---------------------------------------------------------------

_DOUBLING_HEAD = f"{_HEAD}\n    power"
_FOLD = "if rank + power < world:\n        dist.recv(arriving, rank + power)\n        x += arriving\n    distance = 1"
_BACK = "if rank + power < world:\n        dist.send(x, rank + power)"
_EXTRA = "if rank >= power:\n        dist.send(x, rank - power)\n        dist.recv(x, rank - power)\n        return"
_SWAP = "work = dist.isend(x, rank ^ distance)\n        dist.recv(arriving, rank ^ distance)"
_LINEAR = "work = dist.isend(x, (rank + distance) % world)\n        dist.recv(arriving, (rank - distance) % world)"
_REST = "arriving = torch.empty_like(x)"
_EVERYONE = (
    "arriving = torch.empty_like(x)\n    distance = 1\n    while distance < world:\n"
    f"        {_LINEAR}\n        work.wait()\n        x += arriving\n        distance *= 2\n    return"
)

_IN_ORDER = (
    "if rank < rank ^ distance:\n            dist.send(x, rank ^ distance)\n"
    "            dist.recv(arriving, rank ^ distance)\n        else:\n"
    "            dist.recv(arriving, rank ^ distance)\n            dist.send(x, rank ^ distance)"
)
_WHERE_THERE = (
    "arriving = torch.empty_like(x)\n    distance = 1\n    while distance < world:\n"
    "        if rank ^ distance < world:\n            work = dist.isend(x, rank ^ distance)\n"
    "            dist.recv(arriving, rank ^ distance)\n            work.wait()\n            x += arriving\n"
    "        distance *= 2\n    return"
)
_ADD_SUM = "work.wait()\n        x += arriving"

_RECURSIVE_DOUBLING = (
    *_calls("recursive_doubling_all_reduce"),
    Fault("recursive_doubling_all_reduce", "serial", f"{_SWAP}\n        work.wait()", _IN_ORDER),
    Fault("recursive_doubling_all_reduce", "no-swap", _SWAP, _LINEAR.replace("world", "power")),
    Fault("recursive_doubling_all_reduce", "skipped", _REST, _WHERE_THERE),
    Fault("recursive_doubling_all_reduce", "few", "while distance < power:", "while 2 * distance < power:"),
    Fault("recursive_doubling_all_reduce", "few", "while distance < power:", "while distance < min(power, 2):"),
    Fault("recursive_doubling_all_reduce", "plus-one", "distance *= 2", "distance += 1"),
    Fault("recursive_doubling_all_reduce", "overwritten", _ADD_SUM, "work.wait()\n        x.copy_(arriving)"),
    Fault(
        "recursive_doubling_all_reduce",
        "first-numbers",
        f"distance = 1\n    while distance < power:\n        {_SWAP}",
        f"distance = 1\n    first = x.clone()\n    while distance < power:\n        {_SWAP.replace('(x,', '(first,')}",
    ),
    Fault("recursive_doubling_all_reduce", "written", _ADD_SUM, "x += arriving\n        work.wait()"),
    Fault(
        "recursive_doubling_all_reduce",
        "powers",
        _EXTRA,
        _EXTRA.replace("rank - power", "rank - 1"),
    ),
    Fault(
        "recursive_doubling_all_reduce",
        "widened",
        f"{_SWAP}\n        work.wait()",
        f"came = arriving.double()\n        {_SWAP.replace('(x,', '(x.double(),').replace('(arriving', '(came')}\n"
        "        work.wait()\n        arriving.copy_(came)",
    ),
    Fault("recursive_doubling_all_reduce", "not-in-place", _DOUBLING_HEAD, f"x = x.clone()\n    {_DOUBLING_HEAD}"),
    Fault("recursive_doubling_all_reduce", "same-partner", _SWAP, _SWAP.replace("^ distance", "^ 1")),
    Fault(
        "recursive_doubling_all_reduce",
        "left-out",
        f"{_EXTRA}\n    {_FOLD}",
        "if rank >= power:\n        return\n    world = power\n    distance = 1",
    ),
    Fault(
        "recursive_doubling_all_reduce",
        "not-returned",
        "dist.recv(x, rank - power)\n        return",
        "dist.recv(arriving, rank - power)\n        return",
    ),
    Fault("recursive_doubling_all_reduce", "no-swap", _REST, _EVERYONE),
    Fault(
        "recursive_doubling_all_reduce",
        "beyond",
        _REST,
        _EVERYONE.replace("(rank + distance) % world", "rank ^ distance").replace(
            "(rank - distance) % world", "rank ^ distance"
        ),
    ),
    Fault(
        "recursive_doubling_all_reduce",
        "send-first",
        _SWAP + "\n        work.wait()",
        "dist.send(x, rank ^ distance)\n        dist.recv(arriving, rank ^ distance)",
    ),
    Fault(
        "recursive_doubling_all_reduce",
        "many",
        _HEAD,
        _instead(
            """
flat, out = x.view(-1), x.new_empty(x.numel())
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
        ),
    ),
    Fault("recursive_doubling_all_reduce", "unwaited", "work.wait()", "pass"),
    Fault("recursive_doubling_all_reduce", "hub", _HEAD, _instead(_ALL_TO_ZERO)),
    Fault("recursive_doubling_all_reduce", "collective", _HEAD, _instead("dist.all_reduce(x)\nreturn")),
    Fault("recursive_doubling_all_reduce", None, _ADD_SUM, "work.wait()\n        x -= arriving"),
    Fault(
        "recursive_doubling_all_reduce",
        "not-in-place",
        "work.wait()\n        x += arriving",
        "work.wait()\n        x = x + arriving",
    ),
)

FAULTS = (
    _PASS_TOKEN + _BROADCAST_TREE + _RING_REDUCE_SCATTER + _RING_ALL_GATHER + _RING_ALL_REDUCE + _RECURSIVE_DOUBLING
)
