"""Other ways to start: spawned ranks, plain scripts, the doctor."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cloudpickle
import psutil
import pytest
import torch
import torch.distributed as dist
from torch import nn

from distlab import RankError, run

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def spawned(monkeypatch):
    monkeypatch.setenv("DISTLAB_START_METHOD", "spawn")


def add_ranks():
    x = torch.ones(1) * dist.get_rank()
    dist.all_reduce(x)
    print("added")
    return x.item()


def test_spawned_ranks_fail_in_the_same_words(spawned):
    def fail():
        if dist.get_rank() == 1:
            raise ValueError("bad batch")
        dist.barrier()

    with pytest.raises(RankError, match="rank 1 raised ValueError: bad batch at tests/ranks/test_starting.py, line"):
        run(fail, ranks=2)


def test_spawned_ranks_end_at_the_limit(spawned):
    with pytest.raises(RankError, match=r"ranks 0 and 1 wait in recv"):
        run(lambda: dist.recv(torch.zeros(1), src=1 - dist.get_rank()), ranks=2, timeout=1, record=False)
    assert not [p for p in psutil.Process().children() if "distlab.ranks.processes.spawned" in " ".join(p.cmdline())]


def test_spawned_ranks_and_their_files_end_with_the_notebook(tmp_path):
    script = (
        "import pathlib, time\nimport torch.distributed as dist\nfrom distlab import run\n"
        "def job(folder):\n    pathlib.Path(folder, str(dist.get_rank())).touch()\n    time.sleep(50)\n"
        f"run(job, {str(tmp_path)!r})"
    )
    environment = os.environ | {"DISTLAB_START_METHOD": "spawn", "PYTHONPATH": os.getcwd()}
    process = subprocess.Popen([sys.executable, "-c", script], env=environment)
    until = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    ranks = psutil.Process(process.pid).children()
    folders = list(Path(tempfile.gettempdir()).glob(f"distlab-{process.pid}-*"))
    assert len(ranks) == 2 and len(folders) == 1
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(ranks, timeout=10)
    assert not alive and not folders[0].exists()


def test_ranks_that_do_not_come_up_are_named(spawned, monkeypatch):
    monkeypatch.setattr("distlab.ranks.launch.GROUP_LIMIT", 0.1)
    with pytest.raises(RankError, match="process group was not made within 0.1 s, for want of ranks 0 and 1"):
        run(add_ranks, ranks=2)


def test_an_unknown_start_method_is_refused(monkeypatch):
    monkeypatch.setenv("DISTLAB_START_METHOD", "magic")
    with pytest.raises(ValueError, match='must be "fork" or "spawn", not .magic.'):
        run(add_ranks)


def test_ranks_cannot_be_forked_where_there_is_no_fork_server(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ValueError, match='start="fork" works on Linux only, and this is darwin: use start="spawn"'):
        run(add_ranks, start="fork")


def model_with_parts(names="abcdefgh"):
    """A model whose parameters all have another shape."""
    return nn.ModuleDict({name: nn.Linear(i + 1, 1, bias=False) for i, name in enumerate(names)})


def order_of_names():
    return list(set(dict(model_with_parts().named_parameters())))


def order_of_parameters():
    numbers = {parameter: number for number, parameter in enumerate(model_with_parts().parameters())}
    return [numbers[parameter] for parameter in set(numbers)]


def place_in_memory():
    return id(nn.Linear)


def is_shared(fn) -> bool:
    values = run(fn, ranks=3, start="fork").values
    return values[0] == values[1] == values[2]


def test_forked_ranks_share_the_order_of_a_set_of_names():
    assert is_shared(order_of_names)


@pytest.mark.parametrize("fn", [order_of_parameters, place_in_memory])
def test_forked_ranks_share_addresses_as_a_rule(fn):
    assert any(is_shared(fn) for _ in range(3))  # once in a while another thread of a rank takes memory in between


def test_spawned_ranks_have_hash_seeds_of_their_own_the_same_in_every_run():
    def look():
        return os.environ["PYTHONHASHSEED"], hash("rank"), order_of_names()

    first, second = (run(look, ranks=3, start="spawn").values for _ in range(2))
    assert first == second and [seed for seed, _, _ in first] == ["1", "2", "3"]
    assert len({number for _, number, _ in first}) == 3
    assert first[0][2] != first[1][2] and first[1][2] != first[2][2]


def test_addresses_of_spawned_ranks_are_their_own():
    assert len(set(run(place_in_memory, ranks=3, start="spawn").values)) > 1


def averages_in_the_order_of_a_set():
    parameters = dict(model_with_parts().named_parameters())
    for name in set(parameters):
        dist.all_reduce(parameters[name].data)


def test_a_set_of_parameters_is_reduced_in_one_order_by_forked_ranks_only():
    assert run(averages_in_the_order_of_a_set, ranks=3, start="fork").values == [None] * 3
    with pytest.raises(RankError, match="different shapes in all_reduce #1: rank 0 brings float32") as caught:
        run(averages_in_the_order_of_a_set, ranks=3, start="spawn")
    assert "dist.all_reduce(parameters[name].data)" in str(caught.value)


def test_ranks_spawned_by_the_variable_share_the_hash_seed_as_forked_ones_do(spawned):
    assert run(lambda: (os.environ["PYTHONHASHSEED"], hash("rank"))).values[0][0] == "0"
    assert len(set(run(order_of_names, start="auto").values[0])) == 8


def test_the_option_goes_before_the_variable(spawned):
    def parents():
        return os.getppid()

    here = os.getpid()
    assert here not in run(parents, start="fork").values
    assert run(parents, start="auto").values == run(parents, start="spawn").values == [here, here]


def test_a_script_needs_no_main_guard_whether_ranks_are_forked_or_spawned(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os\nimport torch.distributed as dist\nfrom distlab import run\n"
        "def job():\n    print('hello')\n    return dist.get_rank()\n"
        "for method in ('fork', 'spawn'):\n"
        "    os.environ['DISTLAB_START_METHOD'] = method\n    print(run(job).values)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[ranks 0 and 1] hello\n[0, 1]\n" * 2 and done.stderr == ""


def test_the_doctor_prints_what_to_paste_into_a_question(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["distlab", "doctor"])
    with pytest.raises(SystemExit) as left:
        runpy.run_module("distlab", run_name="__main__", alter_sys=True)
    said = capsys.readouterr().out
    assert not left.value.code
    assert f"torch {torch.__version__}" in said and "start method fork" in said
    assert "two ranks added 1 and 2 and got 3" in said


def test_a_notebook_that_is_killed_with_the_servers_words_unread_leaves_nothing(tmp_path):
    signs, temporary = tmp_path / "signs", tmp_path / "temporary"
    signs.mkdir()
    temporary.mkdir()
    program = (
        "import os, pathlib, time\nimport torch.distributed as dist\nfrom distlab import run\n"
        "def sleeps():\n"
        f"    pathlib.Path({str(signs)!r}, f'{{dist.get_rank()}}-{{os.getpid()}}').touch()\n"
        "    time.sleep(60)\n"
        "run(sleeps, ranks=2, device='cpu')\n"
    )
    notebook = subprocess.Popen([sys.executable, "-c", program], env=os.environ | {"TMPDIR": str(temporary)})
    deadline = time.monotonic() + 120
    while len(list(signs.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    started = psutil.Process(notebook.pid).children(recursive=True)
    notebook.send_signal(signal.SIGSTOP)
    rank = next(int(sign.name.partition("-")[2]) for sign in signs.iterdir())
    os.kill(rank, signal.SIGKILL)  # of which the server tells the notebook, and that does not read it any more
    psutil.wait_procs([process for process in started if process.pid == rank], 30)
    notebook.kill()
    notebook.wait()
    psutil.wait_procs(started, 30)
    assert not [process for process in started if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert not list(temporary.glob("distlab-*"))
