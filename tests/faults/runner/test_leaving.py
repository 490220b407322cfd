"""What a function leaves behind, changes or gives back: the rank's process goes, and all of that with it."""

from __future__ import annotations

import asyncio
import atexit
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings

import cloudpickle
import psutil
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from distlab import RankError, run
from tests.faults.runner import Cases

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cases = Cases()


def values(fn, *args, ranks: int = 2):
    """The values of a run that ends well; the one after it does so too."""
    started = time.monotonic()
    found = run(fn, *args, ranks=ranks, device="cpu").values
    assert time.monotonic() - started < 20
    assert run(dist.get_rank, ranks=2, device="cpu").values == [0, 1]
    return found


def of_this_kernel() -> tuple:
    """What a run must not change here."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    return handlers, dict(os.environ), os.getcwd(), torch.get_default_dtype(), torch.get_num_threads(), sys.path[:]


def starts_a_process_of_its_own_session():
    return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid


def starts_a_process_through_a_shell_that_ends():
    return int(os.popen("sleep 1000 > /dev/null & echo $!").read())


def forks_and_lets_the_child_sleep():
    child = os.fork()
    if child == 0:
        time.sleep(1000)
    return child


def forks_and_lets_the_child_return():
    return os.fork()


@pytest.mark.parametrize(
    "fn",
    [
        starts_a_process_of_its_own_session,
        starts_a_process_through_a_shell_that_ends,
        forks_and_lets_the_child_sleep,
        forks_and_lets_the_child_return,
    ],
)
def test_processes_that_a_rank_starts_end_with_it(fn):
    left = values(fn)
    until = time.monotonic() + 5
    while any(map(psutil.pid_exists, left)) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(map(psutil.pid_exists, left))


def starts_a_thread_without_end():
    threading.Thread(target=lambda: [time.sleep(0.01) for _ in iter(int, 1)]).start()


def prints_after_it_has_returned():
    def late():
        time.sleep(0.3)
        print("late")

    threading.Thread(target=late).start()


def asks_for_a_long_sleep_at_exit():
    atexit.register(time.sleep, 1000)


def closes_standard_output():
    sys.stdout.close()


def destroys_the_group_itself():
    dist.destroy_process_group()


def raises_in_a_thread():
    def bad():
        raise ValueError("in a thread")

    thread = threading.Thread(target=bad)
    thread.start()
    thread.join()


def listens_on_a_port_of_its_own():
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=server.accept, daemon=True).start()


def uses_a_pool_of_processes():
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(abs, [-1, 2]) == [1, 2]


def runs_an_event_loop():
    asyncio.run(asyncio.sleep(0.01))


def traces_itself():
    sys.settrace(lambda *_: None)


@pytest.mark.parametrize(
    "fn",
    [
        starts_a_thread_without_end,
        prints_after_it_has_returned,
        asks_for_a_long_sleep_at_exit,
        closes_standard_output,
        destroys_the_group_itself,
        raises_in_a_thread,
        listens_on_a_port_of_its_own,
        uses_a_pool_of_processes,
        runs_an_event_loop,
        traces_itself,
    ],
)
def test_what_a_rank_started_does_not_keep_the_cell(fn):
    assert values(fn) == [None, None]


def test_what_is_printed_after_the_return_shows_under_no_later_cell(capsys):
    values(prints_after_it_has_returned)
    time.sleep(0.5)
    run(dist.get_rank, ranks=2, device="cpu")
    assert "late" not in capsys.readouterr().out.partition("late")[2]


def changes_all_it_can():
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(3)
    random.seed(1)
    os.environ["DISTLAB_TEST"] = "changed"
    os.chdir("/")
    sys.path.append("/nowhere")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.relu = None
    dist.all_reduce = None


def sees():
    dist.all_reduce(torch.ones(1))
    return torch.get_default_dtype(), "DISTLAB_TEST" in os.environ, os.getcwd() != "/", torch.relu is not None


def test_no_change_reaches_the_notebook_or_the_next_run():
    before = of_this_kernel()
    values(changes_all_it_can)
    assert of_this_kernel() == before
    assert values(sees) == [(torch.float32, False, True, True)] * 2


def test_a_failing_run_changes_nothing_here():
    def fail():
        changes_all_it_can()
        raise ValueError

    before = of_this_kernel()
    with pytest.raises(RankError):
        run(fail, ranks=2, device="cpu")
    assert of_this_kernel() == before


@cases.fails("it returned 800 MB, and at most 200 MB can be copied; return a part", ranks=2)
def returns_a_huge_tensor():
    return torch.empty(200_000_000)


@cases.fails("it returned 4,000 MB", ranks=2)
def returns_a_huge_model():
    return {"weights": [torch.empty(1_000_000_000)]}


@cases.fails("it returned a generator that can't leave its process", ranks=2)
def returns_a_generator():
    return (number for number in range(3))


@cases.fails("it returned a socket that can't leave its process", ranks=2)
def returns_a_socket():
    return socket.socket()


@cases.fails("it returned a coroutine that can't leave its process", ranks=2)
def returns_a_coroutine():
    return asyncio.sleep(0)


@cases.fails("it returned a Stubborn that can't leave its process", ranks=2)
def returns_what_refuses_to_be_copied():
    class Stubborn:
        def __reduce__(self):
            raise RuntimeError("no")

    return Stubborn()


@cases.fails(
    "returned a DistributedDataParallel that can't be rebuilt in the notebook .*__setstate__ raised ValueError: "
    "Default process group has not been initialized.*of a model, its state_dict",
    ranks=2,
)
def returns_a_ddp_model():
    return DistributedDataParallel(nn.Linear(1, 1))


@cases.fails("returned a dict that can't be rebuilt in the notebook .DistributedDataParallel.__setstate__", ranks=2)
def returns_a_ddp_model_among_others():
    return {"loss": 1.0, "models": [DistributedDataParallel(nn.Linear(1, 1))]}


@cases.fails("rank 1 raised TypeError: it returned an? .*Group that can't leave its process", rank=1, ranks=2)
def returns_a_group_on_one_rank():
    return dist.group.WORLD if dist.get_rank() == 1 else None


@cases.fails("it returned a Sour that can't be rebuilt .*Sour.__setstate__ raised SystemExit: 3", ranks=2)
def returns_what_ends_whoever_rebuilds_it():
    class Sour:
        x = 1

        def __init__(self):
            self.taste = "sour"

        def __setstate__(self, state):
            sys.exit(3)

    return Sour()


@cases.fails("it returned a ScriptFunction that can't leave its process .ScriptFunction cannot be pickled", ranks=2)
def returns_a_scripted_function():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(torch.nn.functional.relu6)


@cases.fails("it returned a TextIOWrapper that can't leave its process .an open file belongs to its process", ranks=2)
def returns_an_open_file():
    return open(os.devnull)


@cases.fails("it returned a Tensor that can't leave its process .NotImplementedError: .*meta", ranks=2)
def returns_a_tensor_without_data():
    return torch.empty(3, device="meta")


@cases.fails("not finished after 1 s", line="time.sleep(1000)", ranks=2, settings={"timeout": 1})
def returns_what_takes_for_ever_to_copy():
    class Slow:
        def __reduce__(self):
            time.sleep(1000)

    return Slow()


@cases.fails("raised EOFError", line='input("name?")', ranks=2)
def asks_the_learner():
    input("name?")


@cases.fails("run.. was called on a rank: only the notebook starts ranks", line="run(dist.get_rank", ranks=2)
def runs_inside_a_run():
    run(dist.get_rank, ranks=2)


@cases.fails("trying to initialize the default process group twice", line="init_process_group", ranks=2)
def initialises_again():
    dist.init_process_group("gloo")


@cases.fails("raised DistNetworkError: .*address already in use", line="let run() make the process group", ranks=2)
def asks_for_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as server:
        dist.TCPStore("127.0.0.1", server.getsockname()[1], is_master=True)


@cases.fails("raised (AssertionError|RuntimeError).*(CUDA|NVIDIA)", line='device="cuda"', ranks=2)
def wants_a_gpu_that_is_not_there():
    torch.ones(1, device="cuda") if not torch.cuda.is_available() else asks_for_cuda_in_vain()


def asks_for_cuda_in_vain():
    raise RuntimeError('no CUDA device is missing here: device="cuda" works')


@pytest.mark.parametrize("case", cases.each())
def test_what_cannot_be_given_back_or_asked_for_is_named(case):
    case.try_it()


def test_a_run_inside_a_running_event_loop():
    async def cell():
        return run(dist.get_rank, ranks=2, device="cpu").values

    assert asyncio.run(cell()) == [0, 1]


@pytest.mark.parametrize(
    ("captured", "words"),
    [(threading.Lock(), "captured"), (socket.socket(), "captured"), ((n for n in ()), "captured")],
    ids=["lock", "socket", "generator"],
)
def test_what_cannot_be_captured_is_named(captured, words):
    with pytest.raises(TypeError, match=f"can't be given a copy.*`{words}`"):
        run(lambda: captured, ranks=2, device="cpu")
