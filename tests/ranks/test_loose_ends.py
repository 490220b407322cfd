"""What is begun and not waited for, or used before the wait, is said at the end of a run that succeeds."""

from __future__ import annotations

import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn

from distlab import run
from distlab.course.trial import RankFailed
from distlab.ranks.outcome import RankError
from distlab.ranks.verdicts.loose_ends import loose_ends

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def rank() -> int:
    return dist.get_rank()


def divides_without_waiting():
    g = torch.ones(4)
    dist.all_reduce(g, async_op=True)
    g /= 2


def waits_for_some_works_of_a_batch():
    parts = [torch.zeros(1) for _ in range(3)]
    begin = dist.isend if rank() == 0 else dist.irecv
    works = [begin(part, 1 - rank()) for part in parts]
    works[0].wait()
    dist.barrier()
    return works and None


def gathers_and_does_not_wait():
    dist.all_gather([torch.zeros(2) for _ in range(2)], torch.ones(2), async_op=True)


def starts_a_barrier():
    work = dist.barrier(async_op=True)
    dist.all_reduce(torch.ones(1))
    return work and None


@pytest.mark.parametrize("record", [True, "messages"])
@pytest.mark.parametrize(
    ("program", "words"),
    [
        (divides_without_waiting, "ranks 0 and 1 began an asynchronous all_reduce at"),
        (waits_for_some_works_of_a_batch, "never waited for 2 of them: keep each Work, and call wait() on it"),
        (gathers_and_does_not_wait, "ranks 0 and 1 began an asynchronous all_gather at"),
        (starts_a_barrier, "never waited for it: keep its Work, and call wait() on it"),
    ],
)
def test_what_is_never_waited_for_is_said_under_the_cell_and_in_the_notes(program, words, record, capfd):
    recording = run(program, ranks=2, device="cpu", record=record).recording
    assert any(words in note for note in recording.notes), recording.notes
    shown = [line for line in capfd.readouterr().out.splitlines() if words in line]
    assert shown and all(line.startswith("Note: rank") and "test_loose_ends.py, line" in line for line in shown)


def drops_a_send_and_waits_for_its_receive():
    x, y = torch.zeros(1), torch.zeros(1)
    dist.isend(x, 1 - rank())
    work = dist.irecv(y, 1 - rank())
    work.wait()


def test_a_dropped_send_is_said_with_its_own_line_and_not_with_that_of_the_receive():
    with pytest.raises(RankError) as caught:
        for _ in range(5):  # gloo loses what was dropped, now and then not
            run(drops_a_send_and_waits_for_its_receive, ranks=2, device="cpu")
    first = drops_a_send_and_waits_for_its_receive.__code__.co_firstlineno
    assert f"(begun at tests/ranks/test_loose_ends.py, line {first + 2})" in caught.value.verdict, str(caught.value)
    assert "dist.irecv" not in RankFailed("", caught.value).detail


def writes_during_an_all_reduce():
    g = torch.ones(4)
    work = dist.all_reduce(g, async_op=True)
    g /= 2
    work.wait()


def writes_during_an_isend():
    x = torch.zeros(4)
    if rank() == 0:
        work = dist.isend(x, 1)
        x += 1
        work.wait()
    else:
        dist.recv(x, 0)


def zeroes_a_bucket_during_a_broadcast():
    bucket = torch.ones(8)
    work = dist.broadcast(bucket, 0, async_op=True)
    bucket.zero_()
    work.wait()


def reads_before_the_wait():
    x = torch.zeros(4)
    if rank() == 0:
        dist.send(x, 1)
    else:
        work = dist.irecv(x, 0)
        x.sum()
        work.wait()


def reads_gathered_parts_before_the_wait():
    parts = [torch.zeros(2) for _ in range(2)]
    work = dist.all_gather(parts, torch.ones(2), async_op=True)
    torch.stack(parts)
    work.wait()


def steps_before_the_gradients_are_there():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 3)).sum().backward()
    works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
    optimizer.step()
    for work in works:
        work.wait()


def receives_twice_into_one_buffer():
    x = torch.zeros(4)
    begin = dist.isend if rank() == 0 else dist.irecv
    works = [begin(x if rank() else torch.ones(4), 1 - rank()) for _ in range(2)]
    for work in works:
        work.wait()


def sends_on_what_has_not_come():
    x = torch.zeros(1)
    if rank() == 0:
        dist.send(x, 1)
    if rank() == 1:
        work = dist.irecv(x, 0)
        dist.send(x, 2)
        work.wait()
    if rank() == 2:
        dist.recv(x, 1)


WROTE, READ = "and wrote to it", "and read it"


@pytest.mark.parametrize(
    ("program", "words", "records"),
    [
        (writes_during_an_all_reduce, WROTE, (True, "messages")),
        (writes_during_an_isend, WROTE, (True, "messages")),
        (zeroes_a_bucket_during_a_broadcast, WROTE, (True, "messages")),
        (receives_twice_into_one_buffer, WROTE, (True, "messages")),
        (sends_on_what_has_not_come, READ, (True, "messages")),
        (reads_before_the_wait, READ, (True,)),
        (reads_gathered_parts_before_the_wait, READ, (True,)),
        (steps_before_the_gradients_are_there, READ, (True,)),
    ],
)
def test_memory_that_is_used_before_the_wait_is_said(program, words, records):
    ranks = 3 if program is sends_on_what_has_not_come else 2
    for record in records:
        lines = loose_ends(run(program, ranks=ranks, device="cpu", record=record).recording)
        assert any(words in line and "before the wait(): wait for the Work first" in line for line in lines), lines


def test_a_full_recording_names_the_line_that_used_it():
    (line,) = loose_ends(run(writes_during_an_all_reduce, ranks=2, device="cpu").recording)
    first = writes_during_an_all_reduce.__code__.co_firstlineno
    assert f"line {first + 2} and wrote to it at" in line and f"line {first + 3} before the wait()" in line


# right programs, of which nothing is said


def overlaps_by_hooks():
    model, works = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: works.append(dist.all_reduce(p.grad, async_op=True)))
    for _ in range(2):
        model(torch.ones(3, 4)).sum().backward()
        for work in works:
            work.wait()
        works.clear()
        model.zero_grad()


def uses_another_part_of_the_bucket():
    bucket = torch.ones(8)
    work = dist.all_reduce(bucket[:4], async_op=True)
    bucket[4:] += 1
    bucket[4:].sum()
    work.wait()
    bucket /= 2


def reads_what_it_sends():
    x = torch.ones(4)
    works = [dist.isend(x, other) for other in range(dist.get_world_size()) if other != rank()]
    y = x.sum() + torch.zeros_like(x)
    for other in range(dist.get_world_size()):
        if other != rank():
            dist.recv(torch.empty(4), other)
    for work in works:
        work.wait()
    x += y


def trains_with_ddp():
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        model(torch.randn(4, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def chains_to_a_future():
    x = torch.ones(2)
    return dist.all_reduce(x, async_op=True).get_future().then(lambda future: future.value()[0] / 2).wait()[0].item()


def asks_until_it_is_over():
    x = torch.ones(2)
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        pass
    return x.sum().item()


@pytest.mark.parametrize("record", [True, "messages"])
@pytest.mark.parametrize(
    "program",
    [
        overlaps_by_hooks,
        uses_another_part_of_the_bucket,
        reads_what_it_sends,
        trains_with_ddp,
        chains_to_a_future,
        asks_until_it_is_over,
    ],
)
def test_of_right_programs_nothing_is_said(program, record, capfd):
    assert loose_ends(run(program, ranks=2, device="cpu", record=record).recording) == []
    assert "Note" not in capfd.readouterr().out
