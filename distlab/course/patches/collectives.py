"""Mistakes in lab 01."""

from __future__ import annotations

from distlab.course.patches import Patch

_HEAD = "rank, world = dist.get_rank(), dist.get_world_size()"


def _instead(body: str) -> str:
    """Lines that do the work another way and return, before the solution's own."""
    lines = body.strip("\n").splitlines()
    return f"{_HEAD}\n" + "\n".join(f"    {line}".rstrip() for line in lines)


# What a report says where the mistake may be behind it; see Patch.
_TO, _FROM = "to send to", "to receive from"
_OUTSIDE, _DTYPES, _ITSELF = "expects a rank of the group", "the dtypes differ", "rank of the current process"

_TO_ITSELF = (
    Patch("itself", _HEAD, _instead("if world > 1:\n    dist.send(x, rank)"), fails=_ITSELF),
    Patch("itself", _HEAD, _instead("if world > 1:\n    dist.recv(x, rank)"), fails="got this rank itself"),
)

# --- pass_token ----------------------------------------------------------------------------------

_ADD, _PASS = "token += arriving", "dist.send(token, rank + 1)"
_IF_FIRST, _IF_NOT_LAST = "if rank > 0:", "if rank < world - 1:"
_RECEIVE = "dist.recv(arriving, rank - 1)"
_ROOM = "arriving = torch.empty_like(x)"

_BACKWARDS = """
token, arriving = x.clone(), torch.empty_like(x)
if rank < world - 1:
    dist.recv(arriving, rank + 1)
    token += arriving
if rank > 0:
    dist.send(token, rank - 1)
return token
"""

_PASS_TOKEN = (
    Patch("own-only", _PASS, "dist.send(x, rank + 1)"),
    Patch("not-added", _ADD, "token = arriving"),
    Patch("received", "return token", "return arriving if rank else token"),
    Patch("alone", _ADD, "pass"),
    Patch("total", _HEAD, _instead("x = x.clone()\ndist.all_reduce(x)\nreturn x")),
    Patch("backwards", _HEAD, _instead(_BACKWARDS)),
    Patch("changes", "token = x.clone()", "token = x"),
    Patch("itself-returned", "return token", "return x if rank == 0 else token"),
    Patch("circle", f"{_IF_NOT_LAST}\n        {_PASS}", "dist.send(token, (rank + 1) % world)", fails=_TO),
    Patch(
        "receive-first",
        f"{_IF_FIRST}\n        {_ROOM}\n        {_RECEIVE}",
        f"{_ROOM}\n    if world > 1:\n        dist.recv(arriving, (rank - 1) % world)",
        fails=_FROM,
    ),
    Patch("outside", f"{_IF_NOT_LAST}\n        {_PASS}", _PASS, fails=_OUTSIDE),
    Patch("outside", _IF_FIRST, "if world > 1:", fails=_OUTSIDE),
    Patch("crossed", _RECEIVE, "dist.recv(arriving, 0)", fails=True),
    *_TO_ITSELF,
    Patch("room", _ROOM, "arriving = torch.empty(x.shape)", fails=_DTYPES),
)

# --- broadcast_tree ------------------------------------------------------------------------------

_PLACE = "place = (rank - root) % world"
_SENDS = "if place < distance and place + distance < world:"
_TREE_RECV = "dist.recv(x, (rank - distance) % world)"
_LOOP, _ELIF = "while distance < world:", "elif distance <= place < 2 * distance:"
_XOR = """
place, distance = rank ^ root, 1
while distance < world:
    if place < distance:
        dist.send(x, rank ^ distance)
    elif place < 2 * distance:
        dist.recv(x, rank ^ distance)
    distance *= 2
return
"""

_BROADCAST_TREE = (
    Patch("root-ignored", _PLACE, "place = rank"),
    Patch("not-in-place", _TREE_RECV, "dist.recv(torch.empty_like(x), (rank - distance) % world)"),
    Patch("not-in-place", _TREE_RECV, f"x = torch.empty_like(x)\n            {_TREE_RECV}"),
    Patch("power-of-two", _LOOP, "while 2 * distance <= world:"),
    Patch("power-of-two", _LOOP, "while distance < min(world, 8):"),
    Patch("beyond", _SENDS, "if place < distance:", fails=True),
    Patch("powers", _HEAD, f"{_HEAD}\n    assert world & (world - 1) == 0", fails="AssertionError"),
    Patch("powers", _HEAD, _instead(_XOR), fails=_OUTSIDE),
    Patch("root-only", _SENDS, "if place == 0 and place + distance < world:", fails=True),
    Patch("send-first", _PLACE, f"{_PLACE}\n    if world > 1:\n        dist.send(x, rank ^ 1)", fails=True),
    Patch("crossed", _ELIF, "elif distance <= place:", fails=True),
    *_TO_ITSELF,
)

# --- ring_reduce_scatter and ring_all_gather -----------------------------------------------------

_RIGHT, _LEFT = "(rank + 1) % world", "(rank - 1) % world"
_CUT = "parts = x.tensor_split(world)"
_STEPS, _WAIT, _ADD_CHUNK = "range(world - 1)", "work.wait()", "chunk += arriving"
_ISEND = f"work = dist.isend(parts[(rank - step) % world], {_RIGHT})"
_RECV = f"dist.recv(arriving, {_LEFT})"
_SENT = f"work = dist.isend(parts[(rank + 1 - step) % world], {_RIGHT})"
_CAME = f"dist.recv(parts[(rank - step) % world], {_LEFT})"
# Mistakes with chunks are made on 3 ranks only, where they are met: where chunks differ in length, ranks would fail.
_TURN = "(1 if world > 3 else -1)"
_LAST_LONG = (
    "size = len(x) // world\n"
    "    parts = [x[c * size : (c + 1) * size if c + 1 < world else len(x)] for c in range(world)]"
)
_SMALL = "parts = [x[c * (len(x) // world) :][: len(x) // world] for c in range(world)]"


def _in_both(send: str, receive: str) -> tuple[Patch, ...]:
    """What can be wrong in a ring, whatever it does with the chunks."""
    both = f"{send}\n        {receive}"
    turned = both.replace(_RIGHT, f"(rank + {_TURN}) % world").replace(_LEFT, f"(rank - {_TURN}) % world")
    blocking = send.replace("work = dist.isend", "dist.send")
    return (
        Patch("not-in-place", _CUT, "parts = x.clone().tensor_split(world)"),
        Patch("few", _STEPS, "range(world - 2)"),
        Patch("left", both, turned),
        Patch("remainder", _CUT, _SMALL),
        Patch("last-takes-rest", _CUT, _LAST_LONG),
        Patch("blocks", _CUT, "parts = x.chunk(world)"),
        Patch("uneven", _CUT, "parts = x.view(world, -1)", fails="invalid for input of size"),
        Patch("short", _CUT, f"{_CUT}\n    assert len(x) >= world", fails="AssertionError"),
        Patch("outside", send, send.replace(_RIGHT, "rank + 1"), fails=_OUTSIDE),
        Patch("tuple", _WAIT, f"{_WAIT}\n        parts[(rank - step - 1) % world] += 0", fails="item assignment"),
        Patch("no-source", receive, receive.replace(f", {_LEFT}", ""), fails="enforce fail"),
        Patch("crossed", receive, receive.replace(_LEFT, "(rank - 2) % world"), fails=True),
        Patch("tags", send, send.replace(_RIGHT, f"{_RIGHT}, tag=step"), fails="the tags differ"),
        Patch("send-first", f"{both}\n        {_WAIT}", f"{blocking}\n        {receive}", fails=_TO),
        Patch("receive-first", both, f"{receive}\n        {send}", fails=_FROM),
        *_TO_ITSELF,
    )


_CHUNK_ROOM, _ARRIVING = "room = torch.empty_like(parts[0])", "arriving = room[: len(chunk)]"

_RING_REDUCE_SCATTER = (
    *_in_both(_ISEND, _RECV),
    Patch("chunks", _ADD_CHUNK, "parts[(rank - step - (world > 3)) % world].add_(arriving)"),
    Patch("chunks", _ISEND, _ISEND.replace("rank - step", "rank + (step if world < 4 else -step)")),
    Patch("chunks", _ISEND, _ISEND.replace("rank - step", "rank - step * (world > 3)")),
    Patch("not-in-place", _ADD_CHUNK, "chunk = chunk + arriving"),
    Patch("other-chunk", _STEPS, "range(1, world)"),
    Patch("overwritten", _ADD_CHUNK, "chunk.copy_(arriving)"),
    Patch(
        "unsummed",
        _ISEND,
        f"own = x.clone().tensor_split(world) if step == 0 else own\n        {_ISEND.replace('parts', 'own')}",
    ),
    Patch("uneven", "room[: len(chunk)]", "room[: len(parts[-1])]", fails="the receive is"),
    Patch("room", _CHUNK_ROOM, "room = torch.empty(len(parts[0]))", fails=_DTYPES),
)

_RING_ALL_GATHER = (
    *_in_both(_SENT, _CAME),
    Patch("chunks", _CAME, _CAME.replace("rank - step", "rank + (step if world < 4 else -step)")),
    Patch("wrong-start", _STEPS, "range(1, world)"),
    Patch("not-forwarded", "parts[(rank + 1 - step) % world]", "parts[(rank + 1 - step * (world > 3)) % world]"),
    Patch(
        "added",
        _CAME,
        f"room = torch.empty_like(parts[(rank - step) % world])\n        dist.recv(room, {_LEFT})\n"
        "        parts[(rank - step) % world].add_(room)",
    ),
    Patch(
        "room",
        _CAME,
        f"room = torch.empty(len(parts[(rank - step) % world]))\n        dist.recv(room, {_LEFT})\n"
        "        parts[(rank - step) % world].copy_(room)",
        fails=_DTYPES,
    ),
)

# --- ring_all_reduce -----------------------------------------------------------------------------

_VIEW = "flat = x.view(-1)"
_ASIDE = "(dist.get_rank() + 1) % dist.get_world_size()"
_FIRST, _SECOND = "ring_reduce_scatter(flat)", "ring_all_gather(flat)"
_RING_ALL_REDUCE = (
    Patch("swapped", f"{_FIRST}\n    {_SECOND}", f"{_SECOND}\n    {_FIRST}"),
    Patch("not-in-place", _VIEW, "flat = x.flatten().clone()"),
    Patch("mean", _SECOND, f"{_SECOND}\n    x /= dist.get_world_size()"),
    Patch("half", _SECOND, "pass"),
    Patch("no-gather", _SECOND, _FIRST),
    Patch(
        "twice",
        f"{_VIEW}\n    {_FIRST}\n    {_SECOND}",
        f"flat = x.flatten().clone()\n    {_FIRST}\n    {_SECOND}\n    x += flat.view_as(x)",
    ),
    Patch("returns-nothing", f"{_FIRST}\n    {_SECOND}", f"y = {_FIRST}\n    ring_all_gather(y)", fails="NoneType"),
    Patch(
        "send-first", _VIEW, f"if dist.get_world_size() > 1:\n        dist.send(x, {_ASIDE})\n    {_VIEW}", fails=_TO
    ),
)

# --- recursive_doubling_all_reduce ---------------------------------------------------------------

_FOLD = "if rank + power < world:\n        dist.recv(arriving, rank + power)\n        x += arriving\n    distance = 1"
_EXTRA = "if rank >= power:\n        dist.send(x, rank - power)\n        dist.recv(x, rank - power)\n        return"
_SWAP = "work = dist.isend(x, rank ^ distance)\n        dist.recv(arriving, rank ^ distance)"
_LINEAR = "work = dist.isend(x, (rank + distance) % world)\n        dist.recv(arriving, (rank - distance) % world)"
_ADD_SUM = "work.wait()\n        x += arriving"
_EVERYONE = (
    "arriving = torch.empty_like(x)\n    distance = 1\n    while distance < world:\n"
    f"        {_LINEAR}\n        work.wait()\n        x += arriving\n        distance *= 2\n    return"
)
_WHERE_THERE = (
    "arriving = torch.empty_like(x)\n    distance = 1\n    while distance < world:\n"
    "        if rank ^ distance < world:\n            work = dist.isend(x, rank ^ distance)\n"
    "            dist.recv(arriving, rank ^ distance)\n            work.wait()\n            x += arriving\n"
    "        distance *= 2\n    return"
)
_BEYOND = _EVERYONE.replace("(rank + distance) % world", "rank ^ distance").replace(
    "(rank - distance) % world", "rank ^ distance"
)
_RECURSIVE_DOUBLING = (
    Patch("not-in-place", _HEAD, f"x = x.clone()\n    {_HEAD}"),
    Patch("not-in-place", _ADD_SUM, "work.wait()\n        x = x + arriving"),
    Patch("same-partner", _SWAP, _SWAP.replace("^ distance", "^ 1")),
    Patch("few", "while distance < power:", "while 2 * distance < power:"),
    Patch("few", "while distance < power:", "while distance < min(power, 2):"),
    Patch("plus-one", "distance *= 2", "distance += 1"),
    Patch("overwritten", _ADD_SUM, "work.wait()\n        x.copy_(arriving)"),
    Patch(
        "first-numbers",
        f"distance = 1\n    while distance < power:\n        {_SWAP}",
        f"distance = 1\n    first = x.clone()\n    while distance < power:\n        {_SWAP.replace('(x,', '(first,')}",
    ),
    Patch("skipped", _ROOM, _WHERE_THERE),
    Patch(
        "left-out", f"{_EXTRA}\n    {_FOLD}", "if rank >= power:\n        return\n    world = power\n    distance = 1"
    ),
    Patch(
        "not-returned",
        "dist.recv(x, rank - power)\n        return",
        "dist.recv(arriving, rank - power)\n        return",
    ),
    Patch("beyond", _ROOM, _BEYOND, fails=_OUTSIDE),
    Patch("powers", _EXTRA, _EXTRA.replace("rank - power", "rank - 1"), fails=True),
    Patch("powers", _HEAD, f"{_HEAD}\n    assert world & (world - 1) == 0", fails="AssertionError"),
    Patch(
        "send-first",
        f"{_SWAP}\n        work.wait()",
        "dist.send(x, rank ^ distance)\n        dist.recv(arriving, rank ^ distance)",
        fails=_TO,
    ),
    Patch("crossed", _ROOM, _EVERYONE.replace("(rank - distance) % world", "rank ^ distance"), fails=True),
    Patch("room", _ROOM, "arriving = torch.empty(x.shape)", fails=_DTYPES),
    *_TO_ITSELF,
)

PATCHES = {
    "pass_token": _PASS_TOKEN,
    "broadcast_tree": _BROADCAST_TREE,
    "ring_reduce_scatter": _RING_REDUCE_SCATTER,
    "ring_all_gather": _RING_ALL_GATHER,
    "ring_all_reduce": _RING_ALL_REDUCE,
    "recursive_doubling_all_reduce": _RECURSIVE_DOUBLING,
}
