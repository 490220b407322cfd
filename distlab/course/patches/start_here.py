"""Mistakes in lab 00."""

from __future__ import annotations

from distlab.course.patches import Patch

_TEXT = 'return f"rank {rank} of {world}"'

_GREET = (
    Patch("prints", _TEXT, 'print(f"rank {rank} of {world}")'),
    Patch("no-return", _TEXT, 'f"rank {rank} of {world}"'),
    Patch("from-one", _TEXT, 'return f"rank {rank + 1} of {world}"'),
    Patch("always-zero", "rank = dist.get_rank()", "rank = 0"),
    Patch("only-zero", _TEXT, f"if rank == 0:\n        {_TEXT}"),
    Patch("wants-rank", "def greet():", "def greet(rank):", fails="required positional argument"),
    Patch("wants-rank", "def greet():", "def greet(rank, world):", fails="required positional argument"),
)

_ROWS = "return range(start, stop)"
_SIZE = "size, rest = divmod(n, world)"
_START = "start = rank * size + min(rank, rest)"
_BLOCK = "block = -(-n // world)\n    "
_LATE = (
    "late = max(0, rank - world + rest)\n    start = rank * size + late\n    "
    "return range(start, start + size + (rank >= world - rest))"
)

_MY_ROWS = (
    Patch("drops", _SIZE, "size, rest = n // world, 0"),
    Patch("last-takes-rest", _ROWS, "return range(rank * size, n if rank == world - 1 else (rank + 1) * size)"),
    Patch(
        "first-takes-rest",
        _ROWS,
        "return range(rank * size + (rest if rank else 0), (rank + 1) * size + rest)",
    ),
    Patch("blocks", _ROWS, _BLOCK + "return range(min(n, rank * block), min(n, (rank + 1) * block))"),
    Patch("past-the-end", _ROWS, _BLOCK + "return range(rank * block, (rank + 1) * block)"),
    Patch("overlap", _START, "start = rank * size"),
    Patch("strided", _ROWS, "return range(rank, n, world)"),
    Patch("longer-last", _ROWS, _LATE),
    Patch("longer-between", _ROWS, "return range(n * rank // world, n * (rank + 1) // world)"),
    Patch("longer-between", _ROWS, "return range(round(n * rank / world), round(n * (rank + 1) / world))"),
    Patch("longer-between", _ROWS, "return range(-(-n * rank // world), -(-n * (rank + 1) // world))"),
    Patch("one-long", _ROWS, "return range(start, stop + 1)"),
    Patch("one-short", _ROWS, "return range(start, stop - 1)"),
    Patch("one-more", "if rank < rest", "if rank <= rest"),
    Patch("from-one", _SIZE, f"rank = rank - 1\n    {_SIZE}"),
    Patch("float", _ROWS, "return range(rank * n / world, (rank + 1) * n / world)", fails="'float' object cannot"),
    Patch("float", _SIZE, "size, rest = n / world, n % world", fails="'float' object cannot"),
    Patch("kept", _ROWS, "return my_rows.__dict__.setdefault((n, rank), range(start, stop))"),
    Patch("asks", _SIZE, f"rank, world = dist.get_rank(), dist.get_world_size()\n    {_SIZE}"),
)

PATCHES = {"greet": _GREET, "my_rows": _MY_ROWS}
