"""run(): what a learner gets back when all goes well, and what it says to wrong arguments."""

from __future__ import annotations

import functools
import os
import pickle
import random
import sys
import threading
import time
from dataclasses import dataclass

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from distlab import RankError, run
from distlab.ranks.arguments import pick_device

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def add_ranks():
    x = torch.ones(3) * dist.get_rank()
    dist.all_reduce(x)
    return x


def test_the_process_group_is_ready_and_values_come_back_by_rank():
    assert [v.tolist() for v in run(add_ranks, ranks=4).values] == [[6, 6, 6]] * 4
    assert run(lambda: (dist.get_rank(), dist.get_world_size(), dist.get_backend()), ranks=2).values == [
        (0, 2, "gloo"),
        (1, 2, "gloo"),
    ]


def test_one_rank_is_enough():
    assert run(add_ranks, ranks=1).values[0].tolist() == [0, 0, 0]


def test_lambdas_partials_closures_and_callable_objects_run():
    factor = 10

    class Scale:
        def __call__(self, x):
            return x * factor

    assert run(lambda: dist.get_rank() * factor).values == [0, 10]
    assert run(functools.partial(lambda a, b: a - b, 5), 3).values == [2, 2]
    assert run(Scale(), 7).values == [70, 70]


@dataclass
class Config:
    width: int


class Net(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layer = nn.Linear(config.width, 1)

    def forward(self, x):
        return self.layer(x)


def test_classes_keep_their_identity_across_the_round_trip():
    config = run(lambda: Config(3)).values[0]
    assert isinstance(config, Config) and config == Config(3)


def test_classes_defined_in_the_notebook_can_be_sent_between_ranks():
    def share():
        box = [Config(5) if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(box)
        return box[0].width

    share.__module__ = Config.__module__ = "__main__"
    try:
        assert run(share).values == [5, 5]
    finally:
        Config.__module__ = __name__


def test_a_model_from_the_notebook_trains_on_the_ranks_and_stays_untouched_at_home():
    model = Net(Config(4))
    before = model.layer.weight.detach().clone()

    def train():
        model(torch.ones(2, 4)).sum().backward()
        with torch.no_grad():
            model.layer.weight -= model.layer.weight.grad
        return model.layer.weight

    after = run(train).values
    assert torch.equal(model.layer.weight, before) and model.layer.weight.grad is None
    assert torch.equal(after[0], before - 2) and torch.equal(after[0], after[1])


def test_runs_work_after_a_backward_in_the_notebook():
    nn.Linear(512, 512)(torch.randn(512, 512)).sum().backward()
    assert run(lambda: nn.Linear(512, 512)(torch.randn(512, 512)).sum().backward()).values == [None, None]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_runs_work_after_the_notebook_has_used_its_gpu():
    torch.ones(1, device="cuda")
    assert run(lambda: torch.ones(1, device="cuda").item(), ranks=1, device="cuda").values == [1.0]


@pytest.mark.parametrize(("gpus", "ranks", "device"), [(0, 2, "cpu"), (1, 1, "cpu"), (2, 2, "cuda"), (2, 3, "cpu")])
def test_no_two_ranks_share_a_gpu(monkeypatch, gpus, ranks, device):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert pick_device("auto", ranks) == device


def test_returned_tensors_leave_their_graph_and_the_storage_they_are_a_view_of():
    def view():
        x = torch.arange(1_000_000.0, requires_grad=True)
        return {"row": (x * 2)[:2]}

    row = run(view).values[1]["row"]
    assert row.tolist() == [0, 2] and not row.requires_grad and row.untyped_storage().nbytes() == 8


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch 2.12 warns where it loads one
@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6)[::2],
        torch.ones(2, 3).t(),
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.empty(0, 3),
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([True, False]),
        torch.eye(2).to_sparse(),
    ],
    ids=["strided", "transposed", "bfloat16", "empty", "conjugate", "bool", "sparse"],
)
def test_tensors_of_every_kind_come_back_as_they_were(tensor):
    back = run(lambda: tensor, ranks=1).values[0]
    assert back.dtype == tensor.dtype and back.shape == tensor.shape
    assert torch.equal(back.to_dense(), tensor.to_dense())


def test_one_element_of_a_strided_tensor_comes_back():
    assert run(lambda: torch.arange(10.0)[3::8], ranks=2).values == [torch.tensor([3.0])] * 2


def test_every_rank_and_every_run_starts_from_the_same_seed():
    def draw():
        return torch.rand(1).item(), np.random.rand(), random.random()

    first, again, other = run(draw, seed=3), run(draw, seed=3), run(draw, seed=4)
    assert first.values[0] == first.values[1] == again.values[0] != other.values[0]


def test_a_rank_computes_on_one_thread_and_knows_who_it_is():
    def who():
        return torch.get_num_threads(), os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"]

    assert run(who, ranks=2).values == [(1, "0", "0", "2"), (1, "1", "1", "2")]


def test_ranks_see_the_notebooks_folder_path_and_environment(tmp_path, monkeypatch):
    (tmp_path / "helper_module.py").write_text("ANSWER = 42")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("LEARNERS_OWN", "yes")

    def look():
        import helper_module

        return helper_module.ANSWER, os.environ["LEARNERS_OWN"], os.getcwd()

    assert run(look).values == [(42, "yes", str(tmp_path))] * 2


def test_nothing_can_be_read_from_stdin():
    with pytest.raises(RankError, match="EOFError"):
        run(input)


def test_fifty_runs_in_a_row():
    for _ in range(50):
        run(dist.barrier)


def test_a_data_loader_with_workers_runs_on_a_rank():
    def load():
        loader = torch.utils.data.DataLoader(torch.arange(6), batch_size=2, num_workers=1)
        return [batch.tolist() for batch in loader]

    assert run(load, timeout=30).values[1] == [[0, 1], [2, 3], [4, 5]]


def test_the_kernel_keeps_its_handlers_environment_and_folder():
    import signal

    def state():
        return (
            signal.getsignal(signal.SIGINT),
            signal.getsignal(signal.SIGTERM),
            dict(os.environ),
            os.getcwd(),
            torch.get_num_threads(),
        )

    before = state()
    run(add_ranks)
    with pytest.raises(RankError):
        run(lambda: 1 / 0)
    assert state() == before


def test_a_run_works_from_another_thread_and_only_one_at_a_time(tmp_path):
    begun, over = tmp_path / "begun", tmp_path / "over"

    def wait():
        begun.touch()
        while not over.exists():
            time.sleep(0.01)
        return dist.get_rank()

    results = []
    thread = threading.Thread(target=lambda: results.append(run(wait).values))
    thread.start()
    until = time.monotonic() + 20
    while not begun.exists() and time.monotonic() < until:
        time.sleep(0.01)
    with pytest.raises(RuntimeError, match="one at a time"):
        run(add_ranks)
    over.touch()
    thread.join()
    assert results == [[0, 1]]


def test_a_rank_cannot_start_ranks():
    with pytest.raises(RankError, match="called on a rank"):
        run(lambda: run(add_ranks))


def test_a_run_prints_as_one_line_a_rank():
    text = repr(run(add_ranks, ranks=2))
    assert text.splitlines()[0] == "add_ranks on 2 ranks (gloo on CPU)"
    assert text.splitlines()[1:] == ["rank 0: tensor([1., 1., 1.])", "rank 1: tensor([1., 1., 1.])"]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"ranks": 0}, ValueError, "ranks must be from 1 to 64, not 0"),
        ({"ranks": 65}, ValueError, "ranks must be from 1 to 64, not 65"),
        ({"ranks": "4"}, TypeError, "ranks must be a whole number, not '4' .str."),
        ({"ranks": True}, TypeError, "ranks must be a whole number"),
        ({"ranks": 2.0}, TypeError, "ranks must be a whole number"),
        ({"timeout": -1}, ValueError, "timeout must be a positive, finite number of seconds, not -1"),
        ({"timeout": float("inf")}, ValueError, "timeout must be a positive, finite"),
        ({"timeout": "soon"}, TypeError, "timeout must be a number of seconds, not 'soon'"),
        ({"seed": -1}, ValueError, "seed must be from 0"),
        ({"seed": 1.5}, TypeError, "seed must be a whole number"),
        ({"start": "forkserver"}, ValueError, 'start must be "auto", "fork" or "spawn", not .forkserver.'),
        ({"start": None}, ValueError, 'start must be "auto", "fork" or "spawn", not None'),
        ({"device": "gpu"}, ValueError, 'device must be "auto", "cpu" or "cuda", not .gpu.'),
        ({"device": "cuda", "ranks": 64}, ValueError, "expected at least 64, found"),
    ],
)
def test_a_wrong_argument_is_named_with_what_was_expected_and_what_came(options, error, words):
    with pytest.raises(error, match=words):
        run(add_ranks, **options)


def test_a_function_that_wants_its_rank_is_told_to_ask_for_it():
    with pytest.raises(TypeError, match=r"wants `rank`.*rank = dist.get_rank\(\)"):
        run(lambda rank: rank)


def test_what_cannot_be_called_or_does_not_fit_is_refused():
    with pytest.raises(TypeError, match="fn must be a function that every rank can call, not 3"):
        run(3)
    with pytest.raises(TypeError, match=r"write run\(f\), not run\(f\(\)\)"):
        run(None)
    with pytest.raises(TypeError, match="run.. gave it 2 arguments"):
        run(lambda a: a, 1, 2)


def test_what_cannot_be_copied_to_the_ranks_is_named():
    lock = threading.Lock()
    with pytest.raises(TypeError, match="It is `lock` that can't be copied"):
        run(lambda: lock)
    with pytest.raises(TypeError, match="It is argument 2 that can't be copied"):
        run(lambda a, b: None, 1, threading.Lock())


def test_what_is_too_large_to_copy_is_named(monkeypatch):
    monkeypatch.setattr("distlab.ranks.shipping.packing.PAYLOAD_LIMIT", 1_000_000)
    table = torch.zeros(1_000_000)
    with pytest.raises(ValueError, match="The largest part is `table`, 4 MB"):
        run(lambda: table.sum())


def test_a_value_that_cannot_leave_its_rank_is_named():
    with pytest.raises(RankError, match="rank 0 .*returned a generator that can't leave its process"):
        run(lambda: (i for i in range(3)))


def test_an_error_that_does_not_survive_pickling_is_told_in_words():
    class Odd(Exception):
        def __init__(self, a, b):
            super().__init__(f"{a} and {b}")

    def fail():
        raise Odd(1, 2)

    with pytest.raises(Exception, match="missing 1 required positional argument"):
        pickle.loads(cloudpickle.dumps(Odd(1, 2)))
    with pytest.raises(RankError, match="raised Odd: 1 and 2"):
        run(fail)
