"""What torch keeps private is named in one module; what a release lacks is left out and said."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

import distlab
from distlab.ranks import torch_inside
from distlab.ranks.watching.operations import OPERATIONS

ROOT = Path(distlab.__file__).parent
PRIVATE = re.compile(
    r"\b(torch(\.\w+)*|c10d|dist)\._[a-zA-Z]\w*"  # torch._C, torch.distributed._x, c10d._world
    r"|from torch(\.\w+)*\._|import torch(\.\w+)*\._"
    r"|\._(cdata|schema|version|op_dk|source_rank|execution_engine|device_types|get_backend|register_backend)\b"
)
# By which dispatch modes are written everywhere, torch's own documentation included.
KNOWN = {"torch.utils._python_dispatch"}


def private_names(path: Path) -> list[str]:
    lines = (line.partition("#")[0] for line in path.read_text().splitlines())
    found = [match[0] for line in lines for match in PRIVATE.finditer(line)]
    return [name for name in found if name != "torch.__version__"]


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_other_module_names_what_torch_keeps_private(path):
    if path.name == "torch_inside.py":
        return
    text = path.read_text()
    names = private_names(path)
    allowed = sum(text.count(f"from {name} import") for name in KNOWN)
    assert len(names) <= allowed, names


# Methods of a process group that are no messages, or give no Work of their own.
NOT_WATCHED = {
    "abort", "allreduce_sparse", "barrier_", "boxed", "group_name", "group_desc", "merge_remote_group", "name", "rank",
    "set_timeout", "shutdown", "size", "split_group", "unbox", "bound_device_id", "supports_time_estimate",
    "get_group_store", "supportsTensorAlloc",
}  # fmt: skip


def test_every_operation_of_this_torchs_process_groups_can_be_read():
    methods = {name for name in vars(dist.ProcessGroup) if not name.startswith("_") and name != "BackendType"}
    operations = {
        name
        for name in methods
        if "Work" in (getattr(dist.ProcessGroup, name).__doc__ or "") and name not in NOT_WATCHED
    }
    assert len(operations) > 15
    assert operations <= OPERATIONS.keys()


def test_this_torch_lacks_nothing():
    assert torch_inside.MISSING == []


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("torch._C._dynamo.eval_frame.set_code_exec_strategy", "torch.compile looks into distlab"),
        ("torch._C._get_dispatch_mode", "compiled code may be counted twice"),
        ("torch._classes._ClassNamespace", "torch.classes can't be shipped to the ranks"),
    ],
)
def test_without_a_name_that_a_run_can_do_without_something_is_left_out_and_said(name, left_out):
    owner, _, attribute = name.rpartition(".")
    program = f"""
import torch, torch._classes, torch._dynamo
del {owner}.{attribute}
import distlab
from distlab.ranks import torch_inside
from distlab.ranks.watching.counting import OperatorCounter
with OperatorCounter() as counter:
    torch.ones(3) + 1
assert counter.operators == 2, counter.operators
print(torch_inside.MISSING)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT.parent)
    assert left_out in done.stdout, done.stderr
