"""Other ways to start: spawned ranks, plain scripts, the doctor."""

from __future__ import annotations

import os
import subprocess
import sys

import cloudpickle
import psutil
import pytest
import torch
import torch.distributed as dist

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


def test_spawned_ranks_give_the_same(spawned, capsys):
    assert run(add_ranks, ranks=2).values == [1, 1]
    assert capsys.readouterr().out == "[ranks 0 and 1] added\n"


def test_spawned_ranks_fail_in_the_same_words(spawned):
    def fail():
        if dist.get_rank() == 1:
            raise ValueError("bad batch")
        dist.barrier()

    with pytest.raises(RankError, match="rank 1 raised ValueError: bad batch at tests/ranks/test_starting.py, line"):
        run(fail, ranks=2)


def test_spawned_ranks_end_at_the_limit(spawned):
    with pytest.raises(RankError, match=r"ranks 0 and 1 wait in recv"):
        run(lambda: dist.recv(torch.zeros(1), src=1 - dist.get_rank()), ranks=2, timeout=5, record=False)
    assert not [p for p in psutil.Process().children() if "distlab.ranks.spawned" in " ".join(p.cmdline())]


def test_spawned_ranks_end_with_the_notebook(tmp_path):
    script = "import time, os\nfrom distlab import run\nprint('up', flush=True)\nrun(time.sleep, 50)"
    environment = os.environ | {"DISTLAB_START_METHOD": "spawn", "PYTHONPATH": os.getcwd()}
    process = subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE)
    process.stdout.readline()
    ranks = []
    while len(ranks) < 2:
        ranks = psutil.Process(process.pid).children()
    process.kill()
    process.wait()
    process.stdout.close()
    _, alive = psutil.wait_procs(ranks, timeout=60)
    assert not alive


def test_an_unknown_start_method_is_refused(monkeypatch):
    monkeypatch.setenv("DISTLAB_START_METHOD", "magic")
    with pytest.raises(ValueError, match='must be "fork" or "spawn", not .magic.'):
        run(add_ranks)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_script_needs_no_main_guard(tmp_path, method):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch.distributed as dist\nfrom distlab import run\nprint(run(lambda: dist.get_rank()).values)\n"
    )
    environment = os.environ | {"DISTLAB_START_METHOD": method, "PYTHONPATH": os.getcwd()}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[0, 1]\n" and done.stderr == ""


def test_the_doctor_prints_what_to_paste_into_a_question():
    done = subprocess.run([sys.executable, "-m", "distlab", "doctor"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert f"torch {torch.__version__}" in done.stdout and "start method fork" in done.stdout
    assert "two ranks added 1 and 2 and got 3" in done.stdout


def test_an_unresolvable_host_name_does_not_matter():
    namespace = ["unshare", "--uts", "sh", "-c", f"hostname nosuch.invalid && exec {sys.executable} -m distlab doctor"]
    done = subprocess.run(namespace, capture_output=True, text=True, timeout=60)
    if "unshare" in done.stderr:
        pytest.skip("needs the right to make a namespace with a host name of its own (root)")
    assert "two ranks added 1 and 2 and got 3" in done.stdout
