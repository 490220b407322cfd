"""Bytes are counted as the formulas say."""

from __future__ import annotations

import pytest

from distlab.machine import collectives
from distlab.machine.hardware import Link
from distlab.recording import Group, History, Recording
from distlab.traffic import ASSUMPTIONS, count_sent, count_traffic
from tests.machine.recordings import built_in_all_reduce, each, hand_written_ring, record, with_links

SIZE = 840 * 4
BYTE_A_SECOND = with_links(Link(0.0, 1.0))


def collective(kind: str, num_ranks: int, **fields) -> Recording:
    """One collective of SIZE bytes."""
    return each(num_ranks, lambda rank, history: history.collective(kind, SIZE, **fields))


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 7, 8])
def test_an_all_reduce_is_assumed_to_send_what_a_hand_written_ring_is_seen_to_send(num_ranks):
    built_in = count_traffic(built_in_all_reduce(num_ranks, SIZE))
    by_hand = count_traffic(hand_written_ring(num_ranks, SIZE))
    assert built_in.sent() == by_hand.sent() == [2 * (num_ranks - 1) * SIZE / num_ranks] * num_ranks
    assert built_in.assumed == by_hand.observed
    assert not built_in.observed and not by_hand.assumed


@pytest.mark.parametrize("kind", ["reduce_scatter", "all_gather", "all_to_all"])
@pytest.mark.parametrize("num_ranks", [2, 3, 5, 8])
def test_every_rank_sends_all_parts_but_one(kind, num_ranks):
    traffic = count_traffic(collective(kind, num_ranks))
    assert traffic.sent() == pytest.approx([(num_ranks - 1) * SIZE / num_ranks] * num_ranks)
    assert traffic.sent() == pytest.approx(
        [collectives.seconds(kind, SIZE, range(num_ranks), BYTE_A_SECOND)] * num_ranks
    )


@pytest.mark.parametrize("num_ranks", [2, 3, 5, 8, 13])
@pytest.mark.parametrize("root", [None, 0, 1])
def test_trees_reach_every_rank_once_and_come_from_every_rank_once(num_ranks, root):
    down = count_traffic(collective("broadcast", num_ranks, root=root))
    up = count_traffic(collective("reduce", num_ranks, root=root))
    others = [0.0 if rank == (root or 0) else SIZE for rank in range(num_ranks)]
    assert down.received() == up.sent() == others
    assert {(target, source) for source, target in down.assumed} == set(up.assumed)


@pytest.mark.parametrize("num_ranks", [2, 3, 5, 8, 13])
@pytest.mark.parametrize("root", [0, 1])
def test_a_scattered_part_goes_down_only_where_it_must(num_ranks, root):
    traffic = count_traffic(collective("scatter", num_ranks, root=root))
    back = count_traffic(collective("gather", num_ranks, root=root))
    kept = [received - sent for received, sent in zip(traffic.received(), traffic.sent())]
    part = SIZE / num_ranks
    assert kept == pytest.approx([part - SIZE if rank == root else part for rank in range(num_ranks)])
    assert back.sent() == traffic.received() and back.received() == traffic.sent()


def test_a_broadcast_among_four_goes_along_this_tree():
    assert dict(count_traffic(collective("broadcast", 4, root=1)).assumed) == {(1, 2): SIZE, (1, 3): SIZE, (3, 0): SIZE}


def test_uneven_parts_go_where_they_are_meant_for_and_what_stays_is_not_sent():
    parts = [(1, 2, 3), (4, 5, 6), (0, 8, 9)]
    histories = [History().collective("all_to_all", 4 * sum(mine), parts=mine) for mine in parts]
    assert dict(count_traffic(record(*histories)).assumed) == {
        (0, 1): 8,
        (0, 2): 12,
        (1, 0): 16,
        (1, 2): 24,
        (2, 1): 32,
    }


def test_a_group_is_a_ring_of_its_own_members_and_a_group_of_one_sends_nothing():
    groups = [Group("world", (0, 1, 2, 3)), Group("odd", (1, 3)), Group("alone", (2,))]
    histories = [History(), *(History().collective("all_gather", SIZE, group=g) for g in (1, 2, 1))]
    traffic = count_traffic(record(*histories, groups=groups))
    assert dict(traffic.assumed) == {(1, 3): SIZE / 2, (3, 1): SIZE / 2}


def test_sends_are_counted_where_they_are_issued_and_scaled_bytes_as_scaled():
    recording = record(History().send(1, 100).send(1, 20), History().recv(0, 100).recv(0, 20))
    assert dict(count_traffic(recording).observed) == {(0, 1): 120}
    assert count_traffic(recording.scaled(bytes=10)).total == 1200


def test_a_barrier_sends_nothing_and_an_unknown_kind_is_named():
    assert count_traffic(collective("barrier", 4)).total == 0
    with pytest.raises(ValueError, match="no traffic is known for 'all_shuffle'; known are all_reduce"):
        count_traffic(collective("all_shuffle", 4))


def test_every_kind_that_has_a_cost_has_a_traffic():
    assert set(collectives.PLAIN) <= set(ASSUMPTIONS)


def test_what_is_sent_is_counted_by_kind_on_each_rank_and_nothing_for_a_receive():
    first = History().collective("all_reduce", 80).send(1, 8).send(1, 12).collective("broadcast", 40, root=0)
    second = History().collective("all_reduce", 80).recv(0, 8).recv(0, 12).collective("broadcast", 40, root=0)
    recording = record(first, second)
    by_rank = count_sent(recording)
    assert by_rank[0] == {"send": (2, 20), "all_reduce": (1, 80), "broadcast": (1, 40)}
    assert by_rank[1] == {"all_reduce": (1, 80), "broadcast": (1, 0)}
    assert [sum(sent.bytes for sent in of_rank.values()) for of_rank in by_rank] == count_traffic(recording).sent()
