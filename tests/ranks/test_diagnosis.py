"""A hang or a mismatch is named within a second: who waits for whom, in which operation, at which line."""

from __future__ import annotations

import random
import sys
import time

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn

from distlab import RankError, run

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def rank() -> int:
    return dist.get_rank()


def next_rank() -> int:
    return (dist.get_rank() + 1) % dist.get_world_size()


def previous_rank() -> int:
    return (dist.get_rank() - 1) % dist.get_world_size()


def different_collectives():
    dist.all_reduce(torch.ones(4)) if rank() == 0 else dist.broadcast(torch.ones(4), 0)


def all_reduce_of_different_shapes():
    dist.all_reduce(torch.ones(4 if rank() == 0 else 6))


def all_reduce_of_different_dtypes():
    dist.all_reduce(torch.ones(4, dtype=torch.float32 if rank() == 0 else torch.float64))


def broadcast_of_different_shapes():
    dist.broadcast(torch.ones(4 if rank() == 0 else 6), 0)


def broadcast_of_different_dtypes():
    dist.broadcast(torch.ones(4, dtype=torch.float32 if rank() == 0 else torch.int32), 0)


def different_roots():
    dist.broadcast(torch.ones(4), src=rank() % 2)


def different_reduce_ops():
    dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX if rank() == 0 else dist.ReduceOp.SUM)


def all_to_all_of_parts_that_do_not_fit():
    ones = [torch.ones(2 if rank() == 1 else 1) for _ in range(4)]
    dist.all_to_all([torch.empty_like(part) for part in ones], ones)


def all_to_all_with_the_other_sides_splits():
    sizes = [1 + rank()] * 4
    dist.all_to_all_single(torch.ones(sum(sizes)), torch.ones(sum(sizes)), sizes, sizes)


def a_scatter_of_parts_that_are_too_long():
    length = 1 if rank() == 2 else 3
    dist.scatter(torch.ones(length), [torch.ones(length) for _ in range(4)] if rank() == 0 else None, 0)


def a_gather_into_too_little_room():
    length = 2 if rank() == 3 else 1
    dist.gather(torch.ones(length), [torch.ones(length) for _ in range(4)] if rank() == 0 else None, 0)


def a_longer_receive():
    if rank() == 0:
        dist.send(torch.ones(2), 1)
    if rank() == 1:
        dist.recv(torch.ones(4), 0)


def a_shorter_receive():
    if rank() == 0:
        dist.send(torch.ones(4), 1)
    if rank() == 1:
        dist.recv(torch.ones(2), 0)


def one_returns_early():
    for _ in range(2 if rank() == 2 else 3):
        dist.all_reduce(torch.ones(1))


def two_send_first():
    if rank() < 2:
        dist.send(torch.ones(1), 1 - rank())


def all_send_first():
    dist.send(torch.ones(1), next_rank())
    dist.recv(torch.ones(1), previous_rank())


def two_receive_first():
    if rank() < 2:
        dist.recv(torch.ones(1), 1 - rank())


def all_receive_first():
    dist.recv(torch.ones(1), previous_rank())
    dist.send(torch.ones(1), next_rank())


def all_receive_from_anyone():
    dist.recv(torch.ones(1))


def wrong_tag():
    if rank() == 0:
        dist.send(torch.ones(1), 1, tag=1)
    if rank() == 1:
        dist.recv(torch.ones(1), 0, tag=2)


def wrong_peer():
    if rank() == 0:
        dist.send(torch.ones(1), 1)
    if rank() == 1:
        dist.recv(torch.ones(1), 2)


def a_member_never_joins_its_group():
    group = dist.new_group([0, 1, 2])
    if rank() < 2:
        dist.all_reduce(torch.ones(1), group=group)


def a_member_never_makes_its_group():
    if rank() != 1:
        dist.new_group([0, 1, 2])


def groups_in_different_order():
    pairs = [[0, 1], [2, 3]]
    for pair in pairs if rank() < 2 else pairs[::-1]:
        dist.new_group(pair)


def an_isend_nobody_waited_for():
    if rank() == 0:
        dist.isend(torch.ones(100_000), 1)
    if rank() == 1:
        time.sleep(1.5)
        dist.recv(torch.ones(100_000), 0)


def isends_dropped_on_a_ring():
    dist.isend(torch.ones(1000), next_rank())
    time.sleep(0.2)
    dist.recv(torch.ones(1000), previous_rank())
    time.sleep(20)


def ddp_with_uneven_batches():
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    for _ in range(2 if rank() == 1 else 3):
        model(torch.ones(2, 4)).sum().backward()


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (different_collectives, "different collectives at #1: rank 0 calls all_reduce, ranks 1-3 call broadcast"),
        (
            all_reduce_of_different_shapes,
            "different shapes in all_reduce #1: rank 0 brings float32[4], ranks 1-3 bring float32[6]",
        ),
        (
            all_reduce_of_different_dtypes,
            "different dtypes in all_reduce #1: rank 0 brings float32[4], ranks 1-3 bring float64[4]",
        ),
        (
            broadcast_of_different_shapes,
            "different shapes in broadcast #1: rank 0 brings float32[4], ranks 1-3 bring float32[6]",
        ),
        (
            broadcast_of_different_dtypes,
            "different dtypes in broadcast #1: rank 0 brings float32[4], ranks 1-3 bring int32[4]",
        ),
        (
            different_roots,
            "different roots in broadcast #1: ranks 0 and 2 name rank 0 as root, ranks 1 and 3 name rank 1 as root",
        ),
        (different_reduce_ops, "different reduce ops in all_reduce #1: rank 0 asks for max, ranks 1-3 ask for sum"),
        (all_to_all_of_parts_that_do_not_fit, "different sizes in all_to_all #1: rank "),
        (all_to_all_with_the_other_sides_splits, "different sizes in all_to_all #1: rank "),
        (
            a_scatter_of_parts_that_are_too_long,
            "different sizes in scatter #1: rank 0 sends 3 elements to rank 2, which expects 1 element from rank 0",
        ),
        (
            a_gather_into_too_little_room,
            "different sizes in gather #1: rank 3 sends 2 elements to rank 0, which expects 1 element from rank 3",
        ),
        (
            a_longer_receive,
            "rank 0 sends float32[2] to rank 1, which receives float32[4]: the receive is longer than the send",
        ),
        (
            a_shorter_receive,
            "rank 0 sends float32[4] to rank 1, which receives float32[2]: the receive is shorter than the send",
        ),
        (one_returns_early, "rank 2 returned and never joined all_reduce #3, in which ranks 0, 1 and 3 wait"),
        (two_send_first, "ranks 0 and 1 each wait to send to the other"),
        (all_send_first, "ranks 0 → 1 → 2 → 3 → 0 wait in a circle, each to send to the next"),
        (two_receive_first, "ranks 0 and 1 each wait to receive from the other"),
        (all_receive_first, "ranks 0 → 3 → 2 → 1 → 0 wait in a circle, each to receive from the next"),
        (all_receive_from_anyone, "ranks 0-3 wait to receive from any rank, and nobody sends"),
        (wrong_tag, "rank 0 sends to rank 1 with tag 1, which receives from it with tag 2: the tags differ"),
        (wrong_peer, "rank 0 sends to rank 1, but rank 1 receives from rank 2, which returned: the wrong peer"),
        (a_member_never_joins_its_group, "rank 2 returned and never joined all_reduce #1, in which ranks 0 and 1 wait"),
        (a_member_never_makes_its_group, "rank 1 returned and never joined new_group, in which ranks 0 and 2 wait"),
        (groups_in_different_order, "groups made in different order: as group 1, ranks 0 and 1 made ranks 0 and 1"),
        (an_isend_nobody_waited_for, "rank 0 returned before its isend to rank 1 was waited for"),
        (isends_dropped_on_a_ring, ("rank 0 dropped", "rank 1 dropped", "rank 2 dropped", "rank 3 dropped")),
        (ddp_with_uneven_batches, "rank 1 returned and never joined all_reduce #"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_went_wrong_is_named(fn, words):
    started = time.monotonic()
    with pytest.raises(RankError) as caught:
        run(fn, ranks=4, timeout=60)
    assert caught.value.verdict.startswith(words), str(caught.value)
    assert "tests/ranks/test_diagnosis.py, line" in str(caught.value)
    assert time.monotonic() - started < 20


def test_every_waiting_rank_is_described_with_its_line_and_source():
    with pytest.raises(RankError) as caught:
        run(wrong_tag, ranks=2)
    text = str(caught.value)
    assert "rank 0 waits in send to rank 1 of float32[1], tag 1:" in text
    assert "rank 1 waits in recv from rank 0 of float32[1], tag 2 at tests/ranks/test_diagnosis.py, line" in text
    assert text.endswith("dist.recv(torch.ones(1), 0, tag=2)")


def test_an_exception_is_blamed_before_the_ranks_that_wait_for_it():
    def fail():
        if rank() == 1:
            raise ValueError("bad batch")
        dist.all_reduce(torch.ones(1))

    with pytest.raises(RankError, match="rank 1 raised ValueError: bad batch"):
        run(fail, ranks=3)


@pytest.mark.parametrize("call", [dist.send, dist.recv, dist.isend, dist.irecv])
def test_a_message_to_oneself_is_refused(call):
    with pytest.raises(RankError, match="raised ValueError: .*rank"):
        run(lambda: call(torch.ones(1), rank()), ranks=2)


def test_a_second_wait_for_a_message_is_an_error_and_no_hang():
    def wait_twice():
        work = dist.isend(torch.ones(1), 1) if rank() == 0 else dist.irecv(torch.ones(1), 0)
        work.wait()
        work.wait()

    with pytest.raises(RankError, match="raised RuntimeError: the Work of this (send|recv) was waited for before"):
        run(wait_twice, ranks=2)


def test_slow_is_not_stuck():
    def slow():
        if rank() == 0:
            time.sleep(1.2)  # four times as long as a deadlock is watched before it is called one
        dist.all_reduce(torch.ones(1))
        return True

    assert run(slow, ranks=3).values == [True] * 3


def test_a_deadlock_is_named_while_another_rank_still_computes():
    def stuck_beside_work():
        if rank() < 2:
            dist.recv(torch.ones(1), 1 - rank())
        time.sleep(20)

    started = time.monotonic()
    with pytest.raises(RankError, match="ranks 0 and 1 each wait to receive from the other"):
        run(stuck_beside_work, ranks=3)
    assert time.monotonic() - started < 10


def test_a_program_that_gloo_lets_pass_by_luck_is_no_error_but_noted():
    def by_luck():
        x = torch.ones(1)
        if rank() == 0:
            dist.broadcast(x, 0)
            dist.send(x, 3)
        elif rank() == 3:
            dist.recv(x, 0)
            dist.broadcast(x, 0)
        else:
            dist.broadcast(x, 0)

    assert any("relies on buffering" in note for note in run(by_luck, ranks=4).recording.notes)


def test_a_call_on_a_group_that_the_rank_is_not_in_is_noted():
    def foreign():
        group = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(1), group=group)

    notes = run(foreign, ranks=3).recording.notes
    assert notes == ("rank 2 called all_reduce on a group that it is not in: nothing happened there",)


def test_a_hang_behind_a_receive_from_anyone_is_named():
    def race():
        if rank() == 2:
            dist.recv(torch.ones(1), tag=5)
            dist.recv(torch.ones(1), src=0, tag=6)
        else:
            time.sleep(0.5 * (1 - rank()))
            dist.send(torch.ones(1), dst=2, tag=5)

    with pytest.raises(RankError, match="rank 0 sends to rank 2 with tag 5, which receives from it with tag 6"):
        run(race, ranks=3, timeout=20)


def test_a_peer_that_does_not_exist_is_named():
    def off_by_one():
        dist.recv(torch.ones(1), src=rank() - 1)

    with pytest.raises(
        RankError, match="rank 0 raised ValueError: recv expects a rank of the group, from 0 to 2, got -1"
    ):
        run(off_by_one, ranks=3, timeout=20)


def random_program(seed: int):
    """A correct program of collectives, sub-groups, sends with tags, and async operations, the same on every rank."""
    choose = random.Random(seed)
    size = dist.get_world_size()
    groups = [dist.new_group(sorted(choose.sample(range(size), choose.randint(2, size)))) for _ in range(2)]
    works = []
    for _ in range(30):
        kind = choose.choice(["all_reduce", "async", "group", "pair", "any", "barrier", "gather", "batch"])
        a, b = choose.sample(range(size), 2)
        length, group = choose.randint(1, 50), choose.choice(groups)
        x = torch.ones(length)
        if kind == "all_reduce":
            dist.all_reduce(x)
        elif kind == "async":
            works.append(dist.all_reduce(x, async_op=True))
        elif kind == "group" and group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.all_reduce(x, group=group)
        elif kind == "pair" and rank() in (a, b):
            dist.send(x, b, tag=length) if rank() == a else dist.recv(x, a, tag=length)
        elif kind == "any" and rank() in (a, b):
            y = torch.ones(5)
            dist.send(y, b, tag=1000) if rank() == a else dist.recv(y, tag=1000)
        elif kind == "barrier":
            dist.barrier()
        elif kind == "gather":
            dist.all_gather([torch.zeros(length) for _ in range(size)], x)
        elif kind == "batch":
            send = dist.P2POp(dist.isend, x, next_rank(), tag=2000)
            receive = dist.P2POp(dist.irecv, torch.zeros(length), previous_rank(), tag=2000)
            for work in dist.batch_isend_irecv([send, receive]):
                work.wait()
        if kind == "any":
            dist.barrier()  # or two senders could race for one receive
        if works and choose.random() < 0.5:
            works.pop().wait()
    for work in works:
        work.wait()
    return True


@pytest.mark.parametrize("seed", range(24))
def test_correct_random_programs_raise_nothing(seed):
    assert run(random_program, seed, ranks=3 + seed % 2, timeout=30).values == [True] * (3 + seed % 2)
