"""torch's inside: the only module that names what torch keeps private, each name with what it is for.

All of them are in the releases that docs/promises.md lists as tried; where an older one is known to lack a name, it is
said. What a run cannot do without is named as it is: a release without it fails here, at import, by that name. What it
can do without comes from :func:`_optional`: then something is left out, and every recording notes what.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from operator import attrgetter

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

MISSING: list[str] = []  # what this release lacks, and what is left out for it


def _optional(module: str, name: str, left_out: str):
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found
    except (ImportError, AttributeError):
        MISSING.append(f"torch {torch.__version__} has no {module}.{name}: {left_out}")
        return None


# Process groups: where all of them are made, and torch's tables of them. Patching new_group would miss device meshes,
# which import it early; a backend registered under a name of its own is not gloo to torch's own checks.


def wrap_making_of_groups(wrap: Callable[[Callable], Callable]) -> None:
    """Puts a function around the one by which init_process_group, new_group and device meshes make every group."""
    c10d._new_process_group_helper = wrap(c10d._new_process_group_helper)


def wrap_test_for_outsiders(wrap: Callable[[Callable], Callable]) -> None:
    """Puts a function around the one by which a collective finds that this rank is not in its group."""
    c10d._rank_not_in_group = wrap(c10d._rank_not_in_group)


def put_in_place_of(real: dist.ProcessGroup, other: dist.ProcessGroup) -> None:
    """Has torch's tables name a group instead of the real one."""
    world = c10d._world
    tables: list[dict] = [
        world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config, world.pg_to_tag,
    ]  # fmt: skip
    for table in tables:
        if real in table:
            table[other] = table.pop(real)
    for groups in world.tags_to_pg.values():
        groups[:] = [other if group is real else group for group in groups]
    c10d._unregister_process_group(other.group_name)
    c10d._register_process_group(other.group_name, other)


def backends(group: dist.ProcessGroup) -> dict[torch.device, torch._C._distributed_c10d.Backend]:
    """A group's backends, by the device that each serves."""
    return {device: group._get_backend(device) for device in group._device_types}


def take_over(group: dist.ProcessGroup, real: dist.ProcessGroup) -> None:
    """Makes torch find in a group what it finds in the real one: backends, name and description."""
    types = {device: _type_of(backend) for device, backend in backends(real).items()}
    for device, backend in backends(real).items():
        group._register_backend(device, types[device], backend)
    group._set_default_backend(next(iter(types.values())))
    group._set_group_name(real.group_name)
    group._set_group_desc(real.group_desc)


def _type_of(backend) -> dist.ProcessGroup.BackendType:
    return getattr(dist.ProcessGroup.BackendType, backend.name().upper(), dist.ProcessGroup.BackendType.CUSTOM)


def timeout_of(backend):
    """How long a backend's operations wait by default, a timedelta; None where it does not say."""
    return getattr(getattr(backend, "options", None), "_timeout", None)


def source_of(work: dist.Work) -> int:
    """The group rank that sent what a receive from any source has got."""
    return work._source_rank()


def wrap_ddps_work(wrap: Callable[[Callable], Callable]) -> None:
    """Puts a function around the one by which DDP.join gives DDP's reducer, in C++, a Work to wait for."""
    name = "_set_forward_pass_work_handle"
    give = _optional("torch.distributed", f"Reducer.{name}", "DDP.join may fail when recorded")
    if give is not None:
        setattr(dist.Reducer, name, wrap(give))


# Autograd: whether a backward pass runs, and what it does last.


def is_in_backward() -> bool:
    """Whether this thread is in a backward pass."""
    return torch._C._current_graph_task_id() != -1


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Calls something when all gradients of this backward pass are there, and before DDP's own last step."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


# What a node of the graph keeps; its `.data`, which runs no hook, came after torch 2.11.
SavedTensor = torch._C._autograd.SavedTensor

# Dispatch: modes see operators by these two keys; an operator without a kernel is a program of the composite one.
PYTHON_KEYS = (torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot)
COMPOSITE_KEY = torch._C.DispatchKey.CompositeImplicitAutograd
_BOTH_PYTHON_KEYS = torch._C.DispatchKeySet(PYTHON_KEYS[0]) | torch._C.DispatchKeySet(PYTHON_KEYS[1])

Operator = torch._ops.OpOverload
include_key = torch._C._dispatch_tls_set_dispatch_key_included  # (key, bool): for this thread
has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key  # (operator's name, key)
num_dispatch_modes = torch._C._len_torch_dispatch_stack
dispatch_mode_at = torch._C._get_dispatch_stack_at


def without_modes():
    """A context in which no dispatch mode sees what operators do."""
    return torch._C._ExcludeDispatchKeyGuard(_BOTH_PYTHON_KEYS)


def run_composite(operator, *args, **kwargs):
    """Runs an operator's program of other operators, in C++."""
    return operator._op_dk(COMPOSITE_KEY, *args, **kwargs)


def name_of_operator(operator) -> str:
    """An operator's name without its overload: "aten::add"."""
    return operator._schema.name


def is_mutable(operator) -> bool:
    """Whether an operator writes into its arguments."""
    return operator._schema.is_mutable


FakeTensor = torch._subclasses.FakeTensor
# While something is compiled, tensors are fake or functional: they do no work.
_functional = _optional("torch._subclasses.functional_tensor", "FunctionalTensor", "compiled code may be counted twice")
NO_WORK = (FakeTensor, _functional) if _functional else (FakeTensor,)
_get_mode = _optional("torch._C", "_get_dispatch_mode", "compiled code may be counted twice")
_FAKE = _optional("torch._C", "_TorchDispatchModeKey.FAKE", "compiled code may be counted twice")


def makes_fake_tensors() -> bool:
    """Whether what is made now is made as a fake tensor, while something is compiled for example."""
    return _get_mode is not None and _FAKE is not None and _get_mode(_FAKE) is not None


# Dynamo: the marks by which it leaves code alone.
_set_strategy = _optional("torch._C._dynamo.eval_frame", "set_code_exec_strategy", "torch.compile looks into distlab")
_Strategy = _optional("torch._C._dynamo.eval_frame", "_FrameExecStrategy", "torch.compile looks into distlab")
_Action = _optional("torch._C._dynamo.eval_frame", "_FrameAction", "torch.compile looks into distlab")


def leave_uncompiled(function: Callable) -> None:
    """Marks a function as one that torch.compile runs as it is, and does not look into."""
    if _set_strategy is None or _Strategy is None or _Action is None:
        return
    _set_strategy(function.__code__, _Strategy(_Action.SKIP, _Action.SKIP))  # where it is called from C++
    vars(function).update(  # where what is compiled calls it: the graph breaks there
        _torchdynamo_disable=True,
        _torchdynamo_disable_msg="distlab notes what happens here: use record=False or fullgraph=False",
    )


def import_dynamo() -> None:
    """Imports what optimizers import at first: once, before ranks are forked, that takes each a second less."""
    importlib.import_module("torch._dynamo")


# Names of operators, modules and settings that are shipped to the ranks.
OperatorPacket = torch._ops.OpOverloadPacket
HigherOrderOperator = torch._ops.HigherOrderOperator
ClassNamespace = _optional("torch._classes", "_ClassNamespace", "torch.classes can't be shipped to the ranks")
PRINT_OPTIONS = torch._tensor_str.PRINT_OPTS  # what torch.set_printoptions sets, and does not tell


# Of a storage: which memory it is, the same for all Python objects that stand for it.
storage_id = attrgetter("_cdata")


def version_of(tensor: torch.Tensor) -> int:
    """How often it, or what shares its memory, has been written into."""
    return tensor._version
