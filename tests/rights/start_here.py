"""Right answers in other styles for lab 00."""

from __future__ import annotations

from tests.rights import Right

_TEXT = 'return f"rank {rank} of {world}"'
_SIZE = "size, rest = divmod(n, world)"

RIGHTS = (
    Right("greet", _TEXT, 'return "rank " + str(rank) + " of " + str(world)'),
    Right("greet", _TEXT, 'text = "rank %d of %d" % (rank, world)\n    print(text)\n    return text'),
    Right("greet", "rank = dist.get_rank()", "rank = dist.distributed_c10d.get_rank(dist.group.WORLD)"),
    Right(
        "my_rows",
        _SIZE,
        "sizes = [(n + world - 1 - r) // world for r in range(rank + 1)]\n"
        "    return range(sum(sizes) - sizes[-1], sum(sizes))"
        f"\n    {_SIZE}",
    ),
    Right(
        "my_rows",
        _SIZE,
        "stops = [0]\n    for r in range(world):\n        stops.append(stops[-1] + n // world + (r < n % world))\n"
        f"    return range(stops[rank], stops[rank + 1])\n    {_SIZE}",
    ),
    Right(
        "my_rows",
        _SIZE,
        "sizes = [len(part) for part in torch.arange(n).tensor_split(world)]\n"
        f"    return range(n)[sum(sizes[:rank]) : sum(sizes[: rank + 1])]\n    {_SIZE}",
    ),
)
