"""Wrong solutions of lab 00."""

from tests.faults import Fault

_TEXT = 'return f"rank {rank} of {world}"'
_ROWS = "return range(start, stop)"
_SIZE = "size, rest = divmod(n, world)"
_START = "start = rank * size + min(rank, rest)"
_STOP = "stop = start + size + (1 if rank < rest else 0)"
_BLOCK = "block = -(-n // world)\n    "

FAULTS = (
    Fault("greet", "prints", _TEXT, 'print(f"rank {rank} of {world}")'),
    Fault("greet", "no-return", _TEXT, 'f"rank {rank} of {world}"'),
    Fault("greet", "from-one", _TEXT, 'return f"rank {rank + 1} of {world}"'),
    Fault("greet", "highest-rank", _TEXT, 'return f"rank {rank} of {world - 1}"'),
    Fault("greet", "world-fixed", "world = dist.get_world_size()", "world = 4"),
    Fault("greet", "world-fixed", "world = dist.get_world_size()", "world = 1"),
    Fault("greet", "always-zero", "rank = dist.get_rank()", "rank = 0"),
    Fault("greet", "only-zero", _TEXT, f"if rank == 0:\n        {_TEXT}"),
    Fault("greet", "form", _TEXT, 'return f"Rank {rank} of {world}."'),
    Fault("greet", "wants-rank", "def greet():", "def greet(rank):"),
    Fault("greet", None, _TEXT, "return rank, world"),
    Fault("greet", None, _TEXT, 'return "rank {rank} of {world}"'),
    Fault("greet", None, _TEXT, 'return f"rank {dist.get_rank} of {dist.get_world_size}"'),
    Fault("greet", None, _TEXT, 'return f"rank {world} of {rank}"'),
    Fault("greet", None, _TEXT, 'return f"rank {rank} of 2" if world == 2 else "rank 0 of 1"'),
    Fault("greet", None, "rank = dist.get_rank()", 'dist.init_process_group("gloo")\n    rank = dist.get_rank()'),
    Fault("my_rows", "drops", _SIZE, "size, rest = n // world, 0"),
    Fault(
        "my_rows",
        "last-takes-rest",
        _ROWS,
        "return range(rank * size, n if rank == world - 1 else (rank + 1) * size)",
    ),
    Fault("my_rows", "blocks", _ROWS, _BLOCK + "return range(min(n, rank * block), min(n, (rank + 1) * block))"),
    Fault("my_rows", "past-the-end", _ROWS, _BLOCK + "return range(rank * block, (rank + 1) * block)"),
    Fault("my_rows", "overlap", _START, "start = rank * size"),
    Fault("my_rows", "strided", _ROWS, "return range(rank, n, world)"),
    Fault(
        "my_rows",
        "longer-last",
        _ROWS,
        "late = max(0, rank - world + rest)\n    start = rank * size + late\n    "
        "return range(start, start + size + (rank >= world - rest))",
    ),
    Fault("my_rows", "longer-between", _ROWS, "return range(n * rank // world, n * (rank + 1) // world)"),
    Fault("my_rows", "one-long", _ROWS, "return range(start, stop + 1)"),
    Fault("my_rows", "one-short", _ROWS, "return range(start, stop - 1)"),
    Fault("my_rows", "from-one", _SIZE, "rank = rank - 1\n    size, rest = divmod(n, world)"),
    Fault("my_rows", "no-range", _ROWS, "return start, stop"),
    Fault("my_rows", "no-range", _ROWS, "return list(range(start, stop))"),
    Fault("my_rows", "no-range", _ROWS, "return slice(start, stop)"),
    Fault("my_rows", "no-range", _ROWS, "return torch.arange(start, stop)"),
    Fault("my_rows", "float", _ROWS, "return range(rank * n / world, (rank + 1) * n / world)"),
    Fault(
        "my_rows",
        "few",
        _SIZE,
        f'{_SIZE}\n    if n < world:\n        raise ValueError("fewer rows than ranks")',
    ),
    Fault("my_rows", "few", _SIZE, f"{_SIZE}\n    whole = n % size"),
    Fault("my_rows", "asks", _SIZE, f"rank, world = dist.get_rank(), dist.get_world_size()\n    {_SIZE}"),
    Fault("my_rows", None, _ROWS, "return range(n) if rank == 0 else range(0)"),
    Fault("my_rows", None, _ROWS, "return range(start, stop) if world <= 2 else range(n)"),
    Fault("my_rows", None, _ROWS, "return range(n)"),
    Fault("my_rows", None, _ROWS, "return range(0)"),
    Fault("my_rows", None, _ROWS, "return stop - start"),
    Fault("my_rows", None, _ROWS, "print(start, stop)"),
    Fault("my_rows", "past-the-end", _STOP, "stop = start + max(1, size + (1 if rank < rest else 0))"),
    Fault("my_rows", None, _SIZE, "size, rest = divmod(n, dist.get_world_size())"),
)
