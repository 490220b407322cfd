"""Wrong solutions of lab 00."""

from tests.faults import Fault

_TEXT = 'return f"rank {rank} of {world}"'
_WORLD = "world = dist.get_world_size()"
_ROWS = "return range(start, stop)"
_SIZE = "size, rest = divmod(n, world)"
_STOP = "stop = start + size + (1 if rank < rest else 0)"

FAULTS = (
    Fault("greet", "highest-rank", _TEXT, 'return f"rank {rank} of {world - 1}"'),
    Fault("greet", "world-fixed", _WORLD, "world = 4"),
    Fault("greet", "world-fixed", _WORLD, "world = 1"),
    Fault("greet", "world-fixed", _WORLD, "world = 7"),
    Fault("greet", "form", _TEXT, 'return f"Rank {rank} of {world}."'),
    Fault("greet", "form", _TEXT, 'return f"rank {rank} of {world}\\n"'),
    Fault("greet", None, _TEXT, "return rank, world"),
    Fault("greet", None, _TEXT, 'return "rank", rank, "of", world'),
    Fault("greet", None, _TEXT, 'return "rank {rank} of {world}"'),
    Fault("greet", None, _TEXT, 'return f"rank {dist.get_rank} of {dist.get_world_size}"'),
    Fault("greet", None, _TEXT, 'return f"rank {world} of {rank}"'),
    Fault("greet", None, _TEXT, 'return f"rank {rank} of 2" if world == 2 else "rank 0 of 1"'),
    Fault("greet", None, "rank = dist.get_rank()", 'dist.init_process_group("gloo")\n    rank = dist.get_rank()'),
    Fault("my_rows", "no-range", _ROWS, "return start, stop"),
    Fault("my_rows", "no-range", _ROWS, "return list(range(start, stop))"),
    Fault("my_rows", "no-range", _ROWS, "return slice(start, stop)"),
    Fault("my_rows", "no-range", _ROWS, "return torch.arange(start, stop)"),
    Fault("my_rows", "few", _SIZE, f'{_SIZE}\n    if n < world:\n        raise ValueError("fewer rows than ranks")'),
    Fault("my_rows", "few", _SIZE, f"{_SIZE}\n    whole = n % size"),
    Fault("my_rows", None, _STOP, "stop = start + max(1, size + (1 if rank < rest else 0))"),
    Fault("my_rows", None, _ROWS, "return range(n) if rank == 0 else range(0)"),
    Fault("my_rows", None, _ROWS, "return range(start, stop) if world <= 2 else range(n)"),
    Fault("my_rows", None, _ROWS, "return range(n)"),
    Fault("my_rows", None, _STOP, "stop = start + size + (rank < rest and n > world)"),
    Fault("my_rows", None, _ROWS, "return range(0)"),
    Fault("my_rows", None, _ROWS, "return stop - start"),
    Fault("my_rows", None, _ROWS, "print(start, stop)"),
    Fault("my_rows", None, _SIZE, "size, rest = divmod(n, dist.get_world_size())"),
    Fault("my_rows", None, _SIZE, f"{_SIZE}\n    if n == 1797:\n        rest = 0"),
)

UNWRAPPED = {
    ("greet", "rounded to float32"): "what it gives are no floats",
    ("my_rows", "rounded to float32"): "what it gives are no floats",
    ("greet", "float64 only"): "it is given nothing",
    ("greet", "changes what it is given"): "it is given nothing",
    ("greet", "even sizes only"): "it is given nothing",
    ("greet", "first result for ever"): "a rank has the same to say for ever",
    ("my_rows", "float64 only"): "it is given whole numbers, no tensors",
    ("my_rows", "changes what it is given"): "it is given whole numbers, which nobody can change",
}
