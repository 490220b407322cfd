"""Time limits that end by themselves, later worlds, groups of the same ranks, rings that miss each other, lines and
shapes that differ: each is told apart from a hang or a mismatch, and named as what it is."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from datetime import timedelta

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from distlab import RankError, run
from distlab.machine.machines import classroom
from distlab.machine.replay import replay
from distlab.ranks import launch
from distlab.traffic import count_traffic

cloudpickle.register_pickle_by_value(sys.modules[__name__])
PAUSE = 0.8  # seconds: longer than the quiet after which waiting ranks are looked at
SHORT = timedelta(seconds=PAUSE)


def rank() -> int:
    return dist.get_rank()


def run_rank() -> int:
    """This process's rank in the run, whatever world it is in now."""
    return int(os.environ["RANK"])


# a wait that gives up by itself is no deadlock


def catches_the_limit_of_a_receive():
    group = dist.new_group(timeout=SHORT)
    if rank() == 0:
        try:
            dist.recv(torch.zeros(1), 1, group=group)
        except RuntimeError:
            pass
    return rank()


def catches_the_limit_of_a_monitored_barrier():
    group = dist.new_group()
    if rank() == 0:
        try:
            dist.monitored_barrier(group, timeout=SHORT)
        except RuntimeError as error:
            return "rank 1" in str(error).lower() or str(error)
    time.sleep(PAUSE)
    return True


def catches_the_limit_of_a_wait():
    work = dist.irecv(torch.zeros(1), 1 - rank(), group=dist.new_group())
    try:
        work.wait(SHORT)
    except RuntimeError:
        return rank()


def catches_the_limit_of_a_barrier():
    group = dist.new_group(timeout=SHORT)
    if rank() == 0:
        try:
            dist.barrier(group)
        except RuntimeError:
            pass
    return rank()


@pytest.mark.parametrize("record", [True, "messages", False])
@pytest.mark.parametrize(
    "program",
    [
        catches_the_limit_of_a_receive,
        catches_the_limit_of_a_monitored_barrier,
        catches_the_limit_of_a_wait,
        catches_the_limit_of_a_barrier,
    ],
)
def test_a_time_limit_that_the_program_catches_ends_nothing(program, record):
    finished = run(program, ranks=2, device="cpu", timeout=30, record=record)
    assert finished.values in ([0, 1], [True, True])
    if record:
        replay(finished.recording, classroom)  # what was given up holds up no modelled clock


def receives_first_with_a_limit():
    dist.recv(torch.zeros(1), 1 - rank(), group=dist.new_group(timeout=SHORT))


def misses_a_barrier_with_a_limit():
    group = dist.new_group(timeout=SHORT)
    if rank() == 0:
        dist.barrier(group)
    else:
        dist.recv(torch.zeros(1), 0, group=group)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (receives_first_with_a_limit, "ranks 0 and 1 each wait to receive from the other"),
        (misses_a_barrier_with_a_limit, "ranks 0 and 1 each wait for the other"),
    ],
)
@pytest.mark.parametrize("poll", [launch._POLL, 10.0])  # a notebook so busy that it looks when all is over
def test_a_limit_that_nobody_catches_is_explained_by_who_waited_for_whom(program, words, poll, monkeypatch):
    monkeypatch.setattr(launch, "_POLL", poll)
    with pytest.raises(RankError) as caught:
        run(program, ranks=2, device="cpu", timeout=30)
    assert words in caught.value.verdict


def mixes_two_kinds_of_barrier():
    if rank() == 0:
        dist.monitored_barrier(timeout=SHORT)
    else:
        dist.barrier()


def test_a_monitored_barrier_is_not_called_a_barrier():
    with pytest.raises(RankError, match="rank 0 calls monitored_barrier, rank 1 calls barrier"):
        run(mixes_two_kinds_of_barrier, ranks=2, device="cpu", timeout=30)


# worlds after the first


def begin_world(path: str, name: str, members: list[int]) -> None:
    """Leaves the world of the run for one of some of its ranks."""
    dist.destroy_process_group()
    store = dist.FileStore(os.path.join(path, name), len(members))
    dist.init_process_group("gloo", store=store, rank=members.index(run_rank()), world_size=len(members))


def begins_the_same_world_again(path):
    dist.all_reduce(torch.ones(1), group=dist.new_group([0, 1]))
    begin_world(path, "again", [0, 1, 2, 3])
    for members in ([2, 3], [0, 1]):  # another order than before
        group = dist.new_group(members)
        if rank() in members:
            dist.all_reduce(torch.ones(5), group=group)
    return rank()


def splits_into_two_worlds(path):
    members = [0, 2] if run_rank() % 2 == 0 else [1, 3]
    begin_world(path, str(members[0]), members)
    group = dist.new_group([1, 0])
    if rank() == 0:
        dist.send(torch.ones(6), 1, group=group)
    else:
        dist.recv(torch.ones(6), 0, group=group)
    dist.all_reduce(torch.ones(3))
    return run_rank()


def leaves_one_rank_out(path):
    if run_rank() == 0:
        return 0
    begin_world(path, "rest", [3, 2, 1])
    x = torch.full((2,), float(rank()))
    dist.broadcast(x, 0)
    return run_rank() if x[0] == 0 else None


@pytest.mark.parametrize("record", [True, "messages", False])
@pytest.mark.parametrize("program", [begins_the_same_world_again, splits_into_two_worlds, leaves_one_rank_out])
def test_later_worlds_run(program, record):
    with tempfile.TemporaryDirectory() as path:
        finished = run(program, path, ranks=4, device="cpu", timeout=30, record=record)
    assert finished.values == [0, 1, 2, 3]


def test_messages_of_a_later_world_are_between_ranks_of_the_run():
    with tempfile.TemporaryDirectory() as path:
        recording = run(splits_into_two_worlds, path, ranks=4, device="cpu").recording
    assert dict(count_traffic(recording).observed) == {(0, 2): 24, (1, 3): 24}
    assert [len(recording.messages(rank, "all_reduce")) for rank in range(4)] == [1] * 4
    assert {recording.groups[message.group].members for message in recording.messages(kind="all_reduce")} == {
        (0, 2),
        (1, 3),
    }


def hangs_in_a_later_world(path):
    members = [0, 2] if run_rank() % 2 == 0 else [1, 3]
    begin_world(path, str(members[0]), members)
    if run_rank() % 2:
        dist.recv(torch.ones(1), 1 - rank())


def test_a_hang_in_a_later_world_names_ranks_of_the_run():
    with tempfile.TemporaryDirectory() as path:
        with pytest.raises(RankError, match="ranks 1 and 3 each wait to receive from the other"):
            run(hangs_in_a_later_world, path, ranks=4, device="cpu", timeout=30)


# groups of the same ranks, and rings


def waits_in_two_groups_of_the_same_ranks():
    first, second = dist.new_group(), dist.new_group()
    dist.all_reduce(torch.ones(1), group=first if rank() == 0 else second)


def waits_in_a_copy_of_the_world():
    copy = dist.new_group()
    dist.barrier(copy) if rank() == 1 else dist.barrier()


@pytest.mark.parametrize("program", [waits_in_two_groups_of_the_same_ranks, waits_in_a_copy_of_the_world])
def test_groups_of_the_same_ranks_are_told_apart_by_name(program):
    with pytest.raises(RankError) as caught:
        run(program, ranks=3, device="cpu", timeout=30)
    assert "two groups of the same ranks, and an operation of one never meets one of the other" in caught.value.verdict
    assert "in the group '" in str(caught.value)


def ring_with_the_wrong_source():
    size = dist.get_world_size()
    work = dist.isend(torch.ones(1), (rank() + 1) % size)
    dist.recv(torch.zeros(1), (rank() + 1) % size)
    work.wait()


def ring_with_the_wrong_target():
    size = dist.get_world_size()
    works = [dist.isend(torch.ones(1), (rank() + 2) % size), dist.irecv(torch.zeros(1), (rank() - 1) % size)]
    works[1].wait()


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (ring_with_the_wrong_source, "rank 0 sends to rank 1, but rank 1 receives from rank 2, which sends to rank 3"),
        (ring_with_the_wrong_target, "rank 0 sends to rank 2, but rank 2 receives from rank 1, which sends to rank 3"),
    ],
)
def test_a_ring_that_misses_itself_names_the_peer(program, words):
    with pytest.raises(RankError) as caught:
        run(program, ranks=4, device="cpu", timeout=30)
    assert f"{words}: the wrong peer, in the send or in the receive" in caught.value.verdict


def ring_that_receives_first():
    dist.recv(torch.zeros(1), (rank() - 1) % dist.get_world_size())
    dist.send(torch.ones(1), (rank() + 1) % dist.get_world_size())


def test_a_ring_that_only_receives_is_still_a_circle():
    with pytest.raises(RankError, match="wait in a circle, each to receive from the next"):
        run(ring_that_receives_first, ranks=3, device="cpu", timeout=30)


# what fits and may be a mistake


def reduces_in_another_order():
    a, b = torch.ones(2), torch.ones(2)
    if rank() == 0:
        dist.all_reduce(a)
        dist.all_reduce(b)
    else:
        dist.all_reduce(b)
        dist.all_reduce(a)


def broadcasts_from_two_branches():
    if rank() == 0:
        dist.broadcast(torch.ones(1), 0)
    else:
        dist.broadcast(torch.empty(1), 0)


@pytest.mark.parametrize(
    ("program", "first", "second"), [(reduces_in_another_order, 3, 6), (broadcasts_from_two_branches, 2, 4)]
)
def test_collectives_that_meet_from_several_lines_are_noted(program, first, second):
    notes = run(program, ranks=3, device="cpu").recording.notes
    line = program.__code__.co_firstlineno
    assert any(
        f"line {line + first} on rank 0, at " in note and f"line {line + second} on ranks 1 and 2" in note
        for note in notes
    ), notes


def test_collectives_from_one_line_are_not():
    def reduces():
        for _ in range(3):
            dist.all_reduce(torch.ones(1))

    assert run(reduces, ranks=3, device="cpu").recording.notes == ()


def sums_a_number_and_a_vector_of_one():
    x = torch.tensor(5.0) if rank() == 0 else torch.full((1,), 2.0)
    dist.all_reduce(x)
    return x.item()


def broadcasts_into_another_shape():
    x = torch.arange(6.0).reshape(2, 3) if rank() == 0 else torch.empty(6)
    dist.broadcast(x, 0)
    return x.flatten()[4].item()


@pytest.mark.parametrize(
    ("program", "value"), [(sums_a_number_and_a_vector_of_one, 9.0), (broadcasts_into_another_shape, 4.0)]
)
def test_as_many_elements_of_another_shape_are_a_note_and_no_error(program, value):
    finished = run(program, ranks=3, device="cpu")
    assert finished.values == [value] * 3
    assert any("takes elements as they lie, but the shapes differ" in note for note in finished.recording.notes)


# what the recording knows comes before what the backend says


def exchanges_parts_that_do_not_fit():
    dist.all_to_all([torch.zeros(2) for _ in range(3)], [torch.ones(1 + (rank() == 1)) for _ in range(3)])


def reduce_scatters_less_on_rank_0():
    dist.reduce_scatter_single(torch.zeros(2), torch.ones(6 if rank() else 4))


def exchanges_by_the_other_sides_sizes():
    sizes = [[1, 2, 3], [3, 2, 1], [1, 1, 1]][rank()]
    dist.all_to_all_single(torch.empty(sum(sizes)), torch.ones(sum(sizes)), sizes, sizes)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (exchanges_parts_that_do_not_fit, "rank 0 sends 1 element to rank 0, which expects 2 elements from rank 0"),
        (reduce_scatters_less_on_rank_0, "different shapes in reduce_scatter #1: rank 0 brings float32[4]"),
        (exchanges_by_the_other_sides_sizes, "rank 0 sends 2 elements to rank 1, which expects 3 elements from rank 0"),
    ],
)
def test_sizes_that_do_not_fit_are_named_before_the_backends_words(program, words):
    with pytest.raises(RankError) as caught:
        run(program, ranks=3, device="cpu", timeout=30)
    assert words in caught.value.verdict


def raises_while_others_do_not_fit():
    if rank() == 0:
        raise KeyError("mine")
    dist.all_reduce(torch.ones(2 + rank()))


def test_what_a_rank_raises_by_itself_comes_before_what_does_not_fit():
    with pytest.raises(RankError, match="rank 0 raised KeyError"):
        run(raises_while_others_do_not_fit, ranks=3, device="cpu", timeout=30)
