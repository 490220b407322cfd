"""What a puzzling message means is said beside it, and only where it fits: torch's own messages, from real ranks."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import queue
import re
import sys
from pathlib import Path

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from distlab import RankError, run
from distlab.ranks.cells import library_frame

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def told(fn, ranks: int = 3, **settings) -> str:
    """The report of a run that must fail."""
    with pytest.raises(RankError) as caught:
        run(fn, ranks=ranks, timeout=20, device="cpu", **settings)
    return str(caught.value)


def group_of_two():
    return dist.new_group([1, 2])


def broadcasts_from_outside_its_group():
    group = group_of_two()
    if dist.get_rank():
        dist.broadcast(torch.ones(1), src=0, group=group)


def reduces_to_outside_its_group():
    group = group_of_two()
    if dist.get_rank():
        dist.reduce(torch.ones(1), dst=0, group=group)


def gathers_objects_outside_its_group():
    group = group_of_two()
    if dist.get_rank():
        dist.gather_object(1, None, dst=0, group=group)


@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize(
    "fn", [broadcasts_from_outside_its_group, reduces_to_outside_its_group, gathers_objects_outside_its_group]
)
def test_a_root_outside_the_group_may_be_meant_as_the_group_counts(fn, record):
    text = told(fn, record=record)
    assert "Global rank 0 is not part of group" in text and "group_src= and group_dst=" in text


def reads_what_another_writes(folder):
    if dist.get_rank() == 0:
        return None
    return (Path(folder) / "weights.json").read_text()


def loads_what_another_saves(folder):
    return torch.load(Path(folder) / "weights.pt") if dist.get_rank() else None


def loads_what_another_has_half_written(folder):
    path = Path(folder) / "weights.pt"
    if dist.get_rank() == 0:
        torch.save(torch.ones(1000), path)
        path.write_bytes(path.read_bytes()[:500])
    dist.barrier()
    return torch.load(path) if dist.get_rank() else None


def parses_what_another_has_only_opened(folder):
    path = Path(folder) / "losses.json"
    path.touch()
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    "fn",
    [
        reads_what_another_writes,
        loads_what_another_saves,
        loads_what_another_has_half_written,
        parses_what_another_has_only_opened,
    ],
)
def test_a_file_that_is_not_there_yet_wants_a_barrier(fn, tmp_path):
    assert "if another rank writes this file, let all ranks meet in dist.barrier()" in told(
        functools.partial(fn, str(tmp_path))
    )


def adds_to_what_all_reduce_returned():
    x = torch.ones(1)
    y = dist.all_reduce(x)
    return y + 1


def divides_at_once():
    x = torch.ones(1)
    return dist.all_reduce(x) / dist.get_world_size()


def averaged(x):
    return dist.all_reduce(x)


def uses_a_helper_that_returns_it():
    y = averaged(torch.ones(1))
    return y.sum()


def gives_it_to_torch():
    parts = dist.all_gather([torch.empty(1) for _ in range(3)], torch.ones(1))
    return torch.cat(parts)


def indexes_it():
    objects = torch.distributed.all_gather_object([None] * 3, dist.get_rank())
    return objects[0]


def gives_it_to_a_loss():
    got = torch.ones(1)
    got = dist.broadcast(got, 0)
    return nn.functional.mse_loss(got, torch.ones(1))


class Averager:
    def average(self, x):
        self.mean = dist.all_reduce(x)
        return self.mean / 2


def keeps_it_in_an_object():
    return Averager().average(torch.ones(1))


IN_PLACE = "collectives work in place and return None"


@pytest.mark.parametrize(
    "fn",
    [
        adds_to_what_all_reduce_returned,
        divides_at_once,
        uses_a_helper_that_returns_it,
        gives_it_to_torch,
        indexes_it,
        gives_it_to_a_loss,
        keeps_it_in_an_object,
    ],
)
def test_what_a_collective_returned_is_none(fn):
    assert IN_PLACE in told(fn)


def reduces_a_gradient_that_is_none():
    model = nn.Linear(1, 1)
    dist.all_reduce(model.weight.grad)


def adds_to_a_missing_entry():
    x = torch.ones(1)
    dist.all_reduce(x)
    y = {}.get("x")
    return y + x


def has_an_unused_result_and_another_none():
    x = torch.ones(1)
    done = dist.all_reduce(x)  # noqa: F841
    other = None
    return other + 1


def awaits_its_work_and_has_another_none():
    x = torch.ones(1)
    work = dist.all_reduce(x, async_op=True)
    work = work.wait() and None
    return work + 1


def reduces_with_functools():
    total = functools.reduce(lambda a, b: None, [1, 2])
    return total + 1


@pytest.mark.parametrize(
    "fn",
    [
        reduces_a_gradient_that_is_none,
        adds_to_a_missing_entry,
        has_an_unused_result_and_another_none,
        awaits_its_work_and_has_another_none,
        reduces_with_functools,
    ],
)
def test_another_none_is_not_blamed_on_a_collective(fn):
    text = told(fn)
    assert "NoneType" in text and IN_PLACE not in text


def adds_to_a_work():
    return dist.all_reduce(torch.ones(1), async_op=True) + 1


def asks_a_work_for_its_sum():
    work = dist.all_reduce(torch.ones(1), async_op=True)
    return work.sum()


def gives_a_work_to_torch():
    return torch.relu(dist.irecv(torch.ones(1), (dist.get_rank() + 1) % 3))


@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("fn", [adds_to_a_work, asks_a_work_for_its_sum, gives_a_work_to_torch])
def test_a_work_is_no_tensor(fn, record):
    assert "call its wait(), then go on with the tensor that you gave" in told(fn, record=record)


def wants_an_option():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", required=True)
    return parser.parse_args()


def wants_its_first_argument():
    return float(sys.argv[1])


def wants_a_command():
    parser = argparse.ArgumentParser()
    parser.add_subparsers(required=True).add_parser("train")
    args, _ = parser.parse_known_args()
    return args


@pytest.mark.parametrize("fn", [wants_an_option, wants_its_first_argument, wants_a_command])
def test_a_rank_has_no_command_line(fn):
    assert "a rank has no command line" in told(fn)


def leaves():
    sys.exit(2)


def asks_for_too_much():
    return [1, 2][5]


@pytest.mark.parametrize("fn", [leaves, asks_for_too_much])
def test_other_exits_and_indices_are_not_blamed_on_a_command_line(fn):
    assert "command line" not in told(fn)


def replaces_a_layer_after_the_wrap():
    model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)))
    model.module[1] = nn.Linear(2, 1)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()


def test_a_layer_replaced_after_the_wrap_is_a_reduction_without_end():
    text = told(replaces_a_layer_after_the_wrap)
    assert "Expected to have finished reduction" in text and "replace it first and wrap then" in text


def calls_an_operator_of_the_notebooks():
    return torch.ops.notebooks_own.twice(torch.ones(1))


def test_an_operator_that_only_the_notebook_knows_is_to_be_registered_on_the_ranks():
    assert "register it inside the function" in told(calls_an_operator_of_the_notebooks)


def takes_from_an_empty_queue():
    queue.Queue().get_nowait()


def leaves_a_block_that_fails():
    with contextlib.ExitStack() as stack:
        stack.callback(takes_from_an_empty_queue)


def normalises_with_a_class_that_is_not_for_use():
    torch.nn.modules.batchnorm._BatchNorm(3)(torch.ones(2, 3))


@pytest.mark.parametrize(
    ("fn", "words", "line"),
    [
        (takes_from_an_empty_queue, "Empty", "queue.py, line ###: if not self._qsize(): raise Empty"),
        (leaves_a_block_that_fails, "Empty", "queue.py, line ###: if not self._qsize(): raise Empty"),
        (
            normalises_with_a_class_that_is_not_for_use,
            "NotImplementedError",
            "torch/nn/modules/batchnorm.py, line ###: raise NotImplementedError",
        ),
    ],
)
def test_an_error_without_a_message_shows_the_librarys_own_line(fn, words, line):
    with pytest.raises(RankError) as caught:
        run(fn, ranks=1)
    verdict, *report = re.sub(r"line \d+", "line ###", str(caught.value)).splitlines()
    assert verdict.startswith(f"rank 0 raised {words} ({line}) at tests/ranks/test_hints.py, line ###")
    place, _, code = line.partition(": ")
    assert [text for text in report if text.startswith(f"  {place}, in ") and text.endswith(code)]


def fails_itself():
    raise AssertionError


def test_an_error_without_a_message_of_the_learners_own_shows_their_line_once():
    text = told(fails_itself, ranks=1)
    assert text.count("raise AssertionError") == 1 and "raised AssertionError at tests" in text


def test_a_bare_raise_of_a_library_comes_with_its_condition(tmp_path):
    file = tmp_path / "library.py"
    file.write_text("def check(n):\n    if n < 1:\n        raise ValueError\n")
    assert library_frame(str(file), 3, "check").code == "if n < 1: raise ValueError"
