"""Waits belong to threads: a rank whose other threads could still communicate is not stuck."""

from __future__ import annotations

import logging.handlers
import multiprocessing
import queue
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from distlab import RankError, run, span
from distlab.machine.machines import classroom
from distlab.machine.replay import replay
from distlab.ranks.processes.threads import acting

cloudpickle.register_pickle_by_value(sys.modules[__name__])
PAUSE = 0.7  # seconds: longer than the quiet after which waiting ranks are looked at


def rank() -> int:
    return dist.get_rank()


def received(source: int, group=None) -> float:
    x = torch.zeros(1)
    dist.recv(x, source, group=group)
    return x.item()


def started(function, *args) -> threading.Thread:
    thread = threading.Thread(target=function, args=args)
    thread.start()
    return thread


# programs that are right


def a_thread_receives_while_the_main_thread_will_send():
    got = []
    thread = started(lambda: got.append(received(1 - rank())))
    time.sleep(PAUSE)
    dist.send(torch.full((1,), 10.0 + rank()), 1 - rank())
    thread.join()
    return got


def the_main_thread_receives_while_a_thread_will_send():
    def send_later():
        time.sleep(PAUSE)
        dist.send(torch.full((1,), 10.0 + rank()), 1 - rank())

    thread = started(send_later)
    got = received(1 - rank())
    thread.join()
    return [got]


def a_barrier_in_a_thread_on_a_group_of_its_own():
    group = dist.new_group()
    thread = started(lambda: dist.barrier(group=group))
    time.sleep(PAUSE * rank())
    x = torch.ones(2)
    dist.all_reduce(x)
    thread.join()
    return [x[0].item()]


def a_timer_sends():
    timer = threading.Timer(PAUSE, dist.send, (torch.full((1,), 10.0 + rank()), 1 - rank()))
    timer.start()
    got = received(1 - rank())
    timer.join()
    return [got]


def a_pool_of_threads_works():
    groups = [dist.new_group() for _ in range(3)]

    def reduced(number):
        time.sleep(PAUSE * (number == rank()))
        x = torch.full((1,), float(number))
        dist.all_reduce(x, group=groups[number])
        return x.item()

    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(reduced, range(3)))


def batches_are_fetched_in_the_background():
    batches: queue.Queue = queue.Queue(maxsize=1)
    loading = dist.new_group()

    def fetch():
        for number in range(3):
            time.sleep(PAUSE * (number == 1 and rank() == 0))
            x = torch.full((1,), float(number))
            dist.broadcast(x, 0, group=loading)
            batches.put(x.item())

    thread = started(fetch)
    total = torch.zeros(1)
    for _ in range(3):
        total += batches.get()
        dist.all_reduce(torch.ones(1))
    thread.join()
    return [total.item()]


def a_thread_outlives_the_function():
    def send_later():
        time.sleep(PAUSE)
        dist.send(torch.ones(1), 1)

    if rank() == 0:
        started(send_later)
        return [0.0]
    return [received(0)]


def a_daemon_waits_for_ever():
    threading.Thread(target=received, args=(1 - rank(),), daemon=True).start()
    time.sleep(PAUSE)
    return [0.0]


RIGHT = {
    a_thread_receives_while_the_main_thread_will_send: [[11.0], [10.0]],
    the_main_thread_receives_while_a_thread_will_send: [[11.0], [10.0]],
    a_barrier_in_a_thread_on_a_group_of_its_own: [[2.0], [2.0]],
    a_timer_sends: [[11.0], [10.0]],
    a_pool_of_threads_works: [[0.0, 2.0, 4.0]] * 2,
    batches_are_fetched_in_the_background: [[3.0]] * 2,
    a_thread_outlives_the_function: [[0.0], [1.0]],
    a_daemon_waits_for_ever: [[0.0], [0.0]],
}


@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("program", RIGHT, ids=lambda program: program.__name__)
def test_right_programs_with_threads_raise_nothing(program, record):
    assert run(program, ranks=2, device="cpu", timeout=30, record=record).values == RIGHT[program]


# programs that hang


def a_thread_and_a_main_thread_receive_first():
    if rank() == 0:
        started(received, 1).join()
    else:
        received(0)


def the_main_thread_waits_for_an_event_that_a_stuck_thread_would_set():
    is_done = threading.Event()

    def receive():
        received(1 - rank())
        is_done.set()

    started(receive)
    is_done.wait()


def both_threads_of_both_ranks_receive():
    thread = started(received, 1 - rank(), dist.new_group())
    received(1 - rank())
    thread.join()


def a_full_queue_holds_up_the_thread_that_would_send():
    batches: queue.Queue = queue.Queue(maxsize=1)

    def fetch():
        for number in range(3):
            batches.put(number)
        dist.send(torch.ones(1), 1 - rank())

    started(fetch)
    received(1 - rank())


def a_pool_is_idle_while_its_owner_is_stuck():
    with ThreadPoolExecutor(2) as pool:
        pool.submit(rank).result()
        received(1 - rank())


def helpers_of_libraries_are_there():
    shipped: multiprocessing.Queue = multiprocessing.Queue()
    shipped.put(1)  # starts a thread that feeds the queue
    records: queue.Queue = queue.Queue()
    listener = logging.handlers.QueueListener(records)
    listener.start()
    loader = torch.utils.data.DataLoader(range(8), num_workers=1)
    next(iter(loader))
    received(1 - rank())


HANGS = [
    helpers_of_libraries_are_there,
    a_thread_and_a_main_thread_receive_first,
    the_main_thread_waits_for_an_event_that_a_stuck_thread_would_set,
    both_threads_of_both_ranks_receive,
    a_full_queue_holds_up_the_thread_that_would_send,
    a_pool_is_idle_while_its_owner_is_stuck,
]


@pytest.mark.parametrize("program", HANGS, ids=lambda program: program.__name__)
def test_ranks_all_of_whose_threads_are_stuck_are_named(program):
    with pytest.raises(RankError) as caught:
        run(program, ranks=2, device="cpu", timeout=60)
    assert caught.value.verdict == "ranks 0 and 1 each wait to receive from the other"


def test_a_thread_that_is_busy_keeps_its_rank_alive_until_it_is_over():
    def busy_then_gone():
        def compute():
            end = time.monotonic() + 2 * PAUSE
            while time.monotonic() < end:
                torch.ones(100).sum()

        if rank() == 0:
            started(compute)
        received(1 - rank())

    begun = time.monotonic()
    with pytest.raises(RankError, match="each wait to receive from the other"):
        run(busy_then_gone, ranks=2, device="cpu", timeout=60)
    assert time.monotonic() - begun > 2 * PAUSE


# what is noted


def test_collectives_of_two_threads_on_one_group_are_noted():
    def mixed():
        def reduce_slowly():
            for _ in range(20):
                dist.all_reduce(torch.ones(200_000))

        threads = [started(reduce_slowly) for _ in range(2)]
        for thread in threads:
            thread.join()

    notes = run(mixed, ranks=2, device="cpu").recording.notes
    assert any("rank 0 has collectives of two threads under way in world at once" in note for note in notes), notes


def test_two_threads_on_groups_of_their_own_and_messages_of_two_threads_are_not():
    def apart():
        groups = [dist.new_group() for _ in range(2)]

        def reduce_slowly(number):
            for _ in range(20):
                dist.all_reduce(torch.ones(2000), group=groups[number])
            if rank() == number:
                dist.send(torch.ones(1), 1 - rank(), tag=number)
            else:
                dist.recv(torch.ones(1), 1 - rank(), tag=number)

        threads = [started(reduce_slowly, number) for number in range(2)]
        for thread in threads:
            thread.join()

    notes = run(apart, ranks=2, device="cpu").recording.notes
    assert not any("two threads under way" in note for note in notes), notes


def test_waits_of_other_threads_move_no_modelled_clock():
    finished = run(a_thread_receives_while_the_main_thread_will_send, ranks=2, device="cpu")
    assert replay(finished.recording, classroom).end > 0  # in the main threads nobody waits in a circle
    assert any("communicates from 2 threads" in note for note in finished.recording.notes)


def test_a_span_of_another_thread_is_noted_and_not_shown():
    def spanned():
        def in_thread():
            with span("hidden"):
                dist.all_reduce(torch.ones(1))

        with span("shown"):
            started(in_thread).join()

    recording = run(spanned, ranks=2, device="cpu").recording
    assert "hidden" not in str([history for history in recording.ranks])
    assert any("the span 'hidden' was opened by a thread" in note for note in recording.notes)


# who could act


def test_a_thread_that_waits_without_a_limit_for_another_cannot_act_and_others_can():
    is_over = threading.Event()
    empty: queue.Queue = queue.Queue()

    def sleeps():
        while not is_over.is_set():
            time.sleep(0.01)

    waits = [started(is_over.wait), started(empty.get)]
    busy = [started(sleeps), started(is_over.wait, 60.0)]
    joins = started(busy[0].join)
    try:
        mine = acting(lambda file: file == __file__)
        assert busy[0].ident in mine
        assert not {thread.ident for thread in [*waits, joins]} & set(mine)
    finally:
        is_over.set()
        empty.put(None)


def test_a_wait_that_has_been_notified_may_act():
    condition, told = threading.Condition(), []

    def wait():
        with condition:
            condition.wait()
            told.append(True)

    thread = started(wait)
    while thread.ident in acting(lambda file: file == __file__):
        time.sleep(0.01)
    with condition:
        condition.notify()
        assert thread.ident in acting(lambda file: file == __file__)
    thread.join()
    assert told == [True]
