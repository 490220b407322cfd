"""Replay against closed forms, exactly, and what it says where it cannot go on."""

from __future__ import annotations

import gc
import math
import random
from dataclasses import replace

import pytest

from distlab.events import ANY_SOURCE, Compute, Done, Message, Span, Wait
from distlab.machine import machines
from distlab.machine.machines import Link
from distlab.machine.reasons import ReplayError
from distlab.machine.replay import replay
from distlab.recording import Group, History, Recording
from tests.machine.recordings import (
    FREE,
    blocking_ring,
    built_in_all_reduce,
    each,
    gpipe,
    hand_written_ring,
    pipeline,
    random_program,
    record,
    renumbered,
    with_links,
)

# Sums of these are exact in binary.
ALPHA, BETA = 2.0**-10, 2.0**-20
LINK = Link(ALPHA, 1 / BETA)
MACHINE = with_links(LINK)
SIZE = 24 * 1024


def all_reduce_seconds(n, size=SIZE):
    return 2 * (n - 1) * ALPHA + 2 * (n - 1) / n * size * BETA


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_a_built_in_all_reduce_lasts_its_closed_form(n):
    timeline = replay(built_in_all_reduce(n, SIZE), MACHINE)
    assert timeline.wall == pytest.approx(all_reduce_seconds(n), rel=1e-15)
    assert timeline.exposed == [timeline.wall] * n


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_a_hand_written_ring_lasts_the_same(n):
    timeline = replay(hand_written_ring(n, SIZE), MACHINE)
    assert timeline.wall == pytest.approx(all_reduce_seconds(n), rel=1e-15)
    assert timeline.communication == [timeline.wall] * n
    assert len(timeline.arrows) == 2 * n * (n - 1)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_a_ring_by_blocking_calls_takes_twice_as_long_for_it_sends_and_receives_in_turn(n):
    assert replay(blocking_ring(n, SIZE), MACHINE).wall == pytest.approx(2 * all_reduce_seconds(n), rel=1e-15)


def test_a_blocking_ring_of_an_odd_number_still_goes_round():
    """Ranks 0 and 2 both send first: a step takes the time of two messages at least and of three at most."""
    one_message = ALPHA + SIZE // 3 * BETA
    wall = replay(blocking_ring(3, SIZE), MACHINE).wall
    assert 4 * 2 * one_message <= wall <= 4 * 3 * one_message


@pytest.mark.parametrize(("compute", "wall"), [(6.0, 6.0), (2.0, 4.0)])
def test_perfect_overlap_hides_the_shorter_of_computation_and_communication(compute, wall):
    def write(rank, history):
        reducing = history.issue("all_reduce", 2 << 20)
        history.compute(compute).wait(reducing)

    timeline = replay(each(2, write), with_links(Link(1.0, float(1 << 20))))
    assert timeline.communication == [4.0, 4.0]
    assert timeline.hidden == [min(compute, 4.0)] * 2
    assert timeline.exposed == [4.0 - min(compute, 4.0)] * 2
    assert timeline.wall == wall == max(compute, 4.0)


def test_a_blocking_call_hides_nothing():
    timeline = replay(each(2, lambda rank, history: history.collective("all_reduce", 64).compute(3.0)), MACHINE)
    assert timeline.hidden == [0.0, 0.0]
    assert timeline.wall == all_reduce_seconds(2, 64) + 3.0


def test_work_is_the_sum_of_its_operators_each_the_larger_of_its_flops_and_its_bytes():
    machine = replace(machines.classroom, achieved_flops=100.0, memory_bytes_per_s=10.0, operator_overhead_s=0.5)
    work = [
        (Compute(300.0, 20.0, 4), 3 + 2 + 2),  # the bytes of other operators; those of the products are not known
        (Compute(300.0, 20.0, 4, products=((300.0, 10.0, 1),)), 3 + 2 + 2),
        (Compute(300.0, 20.0, 4, products=((300.0, 50.0, 1),)), 5 + 2 + 2),
        (Compute(200.0, 0.0, 0, products=((100.0, 5.0, 1), (50.0, 20.0, 2))), 1 + 2 * 2),
    ]
    for event, seconds in work:
        assert replay(Recording([[event]]), machine).wall == pytest.approx(seconds)
        assert replay(Recording([[event]]), machine.flops_only()).wall == event.flops / 100


@pytest.mark.parametrize(
    ("flops", "bytes", "seconds"), [(300.0, 20.0, 3), (300.0, 60.0, 6), (0.0, 60.0, 6), (300, 0, 3)]
)
def test_work_by_hand_is_one_operator(flops, bytes, seconds):
    machine = replace(machines.classroom, achieved_flops=100.0, memory_bytes_per_s=10.0, operator_overhead_s=0.0)
    assert replay(record(History().compute(flops, bytes=bytes)), machine).wall == pytest.approx(seconds)


def test_scaled_products_stay_bound_by_what_they_were():
    machine = replace(machines.classroom, achieved_flops=100.0, memory_bytes_per_s=10.0, operator_overhead_s=0.0)
    recording = record(History().compute(300.0, bytes=60.0))
    assert replay(recording.scaled(flops=5), machine).wall == pytest.approx(30)


def test_a_send_starts_no_sooner_than_its_receive_is_issued():
    timeline = replay(record(History().send(1, 1024), History().compute(5.0).recv(0, 1024)), MACHINE)
    (arrow,) = timeline.arrows
    assert (arrow.source, arrow.target, arrow.start, arrow.end) == (0, 1, 5.0, 5.0 + ALPHA + 1024 * BETA)
    assert timeline.idle[0] == 5.0


def test_links_carry_both_ways_at_once_but_one_message_each_way():
    one = ALPHA + 1024 * BETA

    def write(rank, history):
        sends = [history.issue("send", 1024, peer=1 - rank) for _ in range(3)]
        receives = [history.issue("recv", 1024, peer=1 - rank) for _ in range(3)]
        for id in sends + receives:
            history.wait(id)

    assert replay(each(2, write), MACHINE).wall == 3 * one


@pytest.mark.parametrize("hub", ["send", "recv"])
def test_messages_from_one_rank_or_to_one_rank_take_turns(hub):
    one = ALPHA + 1024 * BETA

    def write(rank, history):
        peers = (1, 2, 3) if rank == 0 else (0,)
        kind = hub if rank == 0 else {"send": "recv", "recv": "send"}[hub]
        for id in [history.issue(kind, 1024, peer=peer) for peer in peers]:
            history.wait(id)

    timeline = replay(each(4, write), MACHINE)
    assert [arrow.end for arrow in timeline.arrows] == pytest.approx([one, 2 * one, 3 * one], rel=1e-15)


def test_a_node_talks_inside_while_it_talks_to_another():
    machine = with_links(Link(1.0, math.inf), Link(5.0, math.inf), ranks_per_node=2)

    def write(rank, history):
        peers = {0: (1, 2), 1: (0,), 2: (0,)}[rank]
        for id in [history.issue("send" if rank == 0 else "recv", 4, peer=peer) for peer in peers]:
            history.wait(id)

    inside, between = replay(each(3, write), machine).arrows
    assert (inside.start, inside.end, between.start, between.end) == (0.0, 1.0, 0.0, 5.0)


def test_a_subgroup_pays_for_the_links_that_its_members_need():
    machine = with_links(Link(1.0, math.inf), Link(10.0, math.inf), ranks_per_node=2)
    groups = [Group("node 0", (0, 1)), Group("across", (1, 2)), Group("all", (0, 1, 2, 3))]
    histories = [History() for _ in range(4)]
    for rank in (0, 1):
        histories[rank].collective("all_gather", 4, group=0)
    for rank in (1, 2):
        histories[rank].collective("all_gather", 4, group=1)
    for history in histories:
        history.collective("all_gather", 4, group=2)
    timeline = replay(record(*histories, groups=groups), machine)
    on_links = [[(s.start, s.end) for s in segments if s.kind == "communication"] for segments in timeline.segments]
    node, across, everyone = (0.0, 1.0), (1.0, 11.0), (11.0, 41.0)
    assert on_links == [[node, everyone], [node, across, everyone], [across, everyone], [everyone]]


def test_a_hierarchical_all_reduce_takes_the_links_inside_and_between():
    inside, between = Link(1.0, math.inf), Link(10.0, math.inf)
    machine = with_links(inside, between, ranks_per_node=2, collectives="hierarchical")

    def write(rank, history):
        reducing = history.issue("all_reduce", 4)
        neighbour = history.issue("send" if rank % 2 == 0 else "recv", 4, peer=rank ^ 1)
        history.wait(reducing).wait(neighbour)

    timeline = replay(each(4, write), machine)
    assert [arrow.start for arrow in timeline.arrows] == [22.0, 22.0]
    assert timeline.wall == 2 * 1 + 2 * 10 + 1

    ring = replay(each(4, write), replace(machine, collectives="ring"))
    assert [arrow.start for arrow in ring.arrows] == [0.0, 0.0]
    assert ring.wall == 2 * 3 * 10


def test_the_largest_size_among_the_members_counts():
    histories = [History().collective("all_gather", bytes) for bytes in (1024, 2048)]
    assert replay(record(*histories), MACHINE).wall == ALPHA + 1024 * BETA


def test_an_all_to_all_lasts_as_long_as_its_busiest_rank():
    parts = [(0, 0, 1024), (0, 512, 1024), (0, 0, 2048)]
    histories = [
        History().collective("all_to_all", 4 * sum(sent), parts=sent)
        for sent in parts
    ]  # fmt: skip
    assert replay(record(*histories), MACHINE).wall == 2 * ALPHA + 4 * 2048 * BETA


def test_messages_of_one_channel_match_in_order_and_tags_and_groups_are_channels_of_their_own():
    groups = [Group("world", (0, 1)), Group("again", (0, 1))]
    sender = History()
    for bytes, fields in ((8, {}), (16, {}), (32, {"tag": 7}), (64, {"group": 1})):
        sender.issue("send", bytes, peer=1, **fields)
    receiver = History().recv(0, 64, group=1).recv(0, 32, tag=7).recv(0, 8).recv(0, 16)
    timeline = replay(record(sender, receiver, groups=groups), MACHINE)
    assert [arrow.message.bytes for arrow in timeline.arrows] == [64, 32, 8, 16]


def test_a_receive_of_any_source_takes_what_is_sent_first():
    receiver = History().recv(ANY_SOURCE, 8).recv(ANY_SOURCE, 8)
    timeline = replay(record(receiver, History().compute(2.0).send(0, 8), History().compute(1.0).send(0, 8)), FREE)
    assert [(arrow.source, arrow.start) for arrow in timeline.arrows] == [(2, 1.0), (1, 2.0)]


def test_a_receive_of_any_source_takes_what_has_waited_longest():
    receiver = History().compute(5.0).recv(ANY_SOURCE, 8).recv(ANY_SOURCE, 8)
    timeline = replay(record(receiver, History().compute(2.0).send(0, 8), History().compute(1.0).send(0, 8)), FREE)
    assert [arrow.source for arrow in timeline.arrows] == [2, 1]


def test_a_receive_of_any_source_takes_whom_the_recording_says():
    def receive(id, source):
        return [Message(id, "recv", peer=ANY_SOURCE, bytes=8), Wait(id), Done(id, source=source)]

    senders = [History().compute(2.0).send(0, 8).events, History().compute(1.0).send(0, 8).events]
    timeline = replay(Recording([receive(1, 1) + receive(2, 2), *senders]), FREE)
    assert [(arrow.source, arrow.start) for arrow in timeline.arrows] == [(1, 2.0), (2, 2.0)]


def test_a_receive_that_names_its_source_leaves_the_others_to_one_of_any_source():
    receiver = History()
    anyone, named = receiver.issue("recv", 8, peer=ANY_SOURCE), receiver.issue("recv", 8, peer=1)
    receiver.wait(named).wait(anyone)
    timeline = replay(record(receiver, History().send(0, 8).send(0, 8)), MACHINE)
    assert [arrow.message.id for arrow in timeline.arrows] == [1, 2]
    assert timeline.wall == 2 * (ALPHA + 8 * BETA)


@pytest.mark.parametrize("receives_first", [True, False])
def test_a_receive_that_names_its_source_is_passed_over_by_the_sends_of_others(receives_first):
    receiver = History().compute(0.0 if receives_first else 9.0)
    named, anyone = receiver.issue("recv", 8, peer=2), receiver.issue("recv", 8, peer=ANY_SOURCE)
    receiver.wait(named).wait(anyone)
    senders = [History().compute(1.0).send(0, 64), History().compute(2.0).send(0, 128)]
    timeline = replay(record(receiver, *senders), MACHINE)
    seconds = {s.message.peer: s.end - s.start for s in timeline.segments[0] if s.kind == "communication"}
    assert seconds == pytest.approx({ANY_SOURCE: ALPHA + 64 * BETA, 2: ALPHA + 128 * BETA}, rel=1e-9)


def test_what_is_waited_for_in_a_hook_ends_the_backward_pass():
    def history():
        return [
            Compute(1.0),
            Message(1, "all_reduce", bytes=SIZE, is_async=True),
            Compute(0.001),
            Wait(1, when="backward"),
            Done(1),
            Compute(1.0),
        ]

    timeline = replay(Recording([history(), history()]), MACHINE)
    assert timeline.wall == pytest.approx(2 + all_reduce_seconds(2), rel=1e-15)
    assert timeline.hidden == pytest.approx([0.001] * 2, rel=1e-9)


def test_waiting_again_for_what_was_waited_for_changes_nothing():
    once, twice = (
        each(2, lambda rank, history, again=again: again(history.collective("all_reduce", 64).compute(1.0)))
        for again in (lambda history: history, lambda history: history.wait(1))
    )
    assert replay(twice, MACHINE).wall == replay(once, MACHINE).wall
    assert replay(twice, MACHINE).notes == ()


def test_what_is_never_waited_for_moves_no_clock_and_is_named():
    recording = each(2, lambda rank, history: (history.issue("all_reduce", SIZE, place=1), history.compute(0.001)))
    timeline = replay(replace(recording, places=("", "cell 3, line 7")), MACHINE)
    assert timeline.wall == 0.001
    note = "rank 1 never waits for all_reduce (cell 3, line 7): its clock does not move for that."
    assert timeline.notes[1] == note
    assert f"note: {note}" in repr(timeline)


def test_what_is_never_waited_for_still_takes_its_link():
    def write(rank, history):
        history.issue("all_reduce", SIZE)
        history.collective("all_reduce", SIZE)

    assert replay(each(2, write), MACHINE).wall == 2 * all_reduce_seconds(2)


def test_an_isend_that_nobody_receives_and_nobody_waits_for_is_named_and_stops_nothing():
    sender = History()
    sender.issue("send", 8, peer=1)
    sender.issue("send", 8, peer=1, tag=5)
    timeline = replay(record(sender, History().recv(0, 8, tag=5)), FREE)
    assert timeline.notes == (
        "rank 0 never waits for 2 operations, the first of them send to rank 1, tag 0, 8 bytes "
        "(1 never found the other side): its clock does not move for that.",
    )


def test_the_recordings_notes_come_first():
    recording = replace(built_in_all_reduce(2, 8), notes=("cut after 6 events",))
    assert replay(recording, FREE).notes == ("cut after 6 events",)


def test_two_ranks_that_both_send_first_are_named_with_whom_they_wait_for():
    recording = each(2, lambda rank, history: history.send(1 - rank, 4096, place=rank).recv(1 - rank, 4096))
    with pytest.raises(ReplayError) as error:
        replay(replace(recording, places=("line 1", "line 2")), MACHINE)
    assert str(error.value).splitlines() == [
        "This recording cannot finish:",
        "rank 0 waits in send to rank 1, tag 0, 4,096 bytes (line 1): rank 1 waits before it issues the receive.",
        "rank 1 waits in send to rank 0, tag 0, 4,096 bytes (line 2): rank 0 waits before it issues the receive.",
    ]


def test_who_never_joins_and_who_waits_before_joining_are_told_apart():
    histories = [
        History().collective("all_reduce", 8),
        History().recv(2, 8).collective("all_reduce", 8),
        History(),
    ]
    with pytest.raises(ReplayError) as error:
        replay(record(*histories), MACHINE)
    assert str(error.value).splitlines()[1:] == [
        "rank 0 waits in all_reduce of group world: rank 2 never joins, rank 1 waits before joining.",
        "rank 1 waits in recv from rank 2, tag 0, 8 bytes: rank 2 never sends it.",
    ]


def test_a_send_to_nobody_is_named():
    with pytest.raises(ReplayError, match="rank 0 sends message 1 to nobody"):
        replay(Recording([History().collective("send", 8).events, []]), MACHINE)


def test_a_receive_of_any_source_that_nobody_sends_to_is_named():
    with pytest.raises(ReplayError, match="rank 0 waits in recv from any rank, tag 0, 8 bytes: any rank never sends"):
        replay(record(History().recv(ANY_SOURCE, 8), History()), MACHINE)


def test_a_deadlock_of_many_ranks_is_told_in_a_dozen_lines():
    recording = each(40, lambda rank, history: history.recv((rank + 1) % 40, 8))
    with pytest.raises(ReplayError) as error:
        replay(recording, MACHINE)
    assert str(error.value).endswith("\n… and 28 ranks more")
    assert len(str(error.value).splitlines()) == 14


def test_a_recording_that_was_cut_says_so_where_it_cannot_finish():
    recording = replace(record(History().recv(1, 8), History()), notes=("cut after 1,000,000 events",))
    with pytest.raises(ReplayError, match="cut after 1,000,000 events"):
        replay(recording, MACHINE)


def test_different_collectives_are_named():
    histories = [History().collective("barrier", 0).collective("all_reduce", 8) for _ in range(2)]
    histories.append(History().collective("barrier", 0).collective("broadcast", 8))
    with pytest.raises(ReplayError) as error:
        replay(record(*histories), MACHINE)
    assert str(error.value) == (
        "collective #2 of group world is not the same everywhere: rank 0 issues all_reduce, rank 2 issues broadcast."
    )


def test_a_wait_for_nothing_is_named():
    with pytest.raises(ReplayError, match="rank 0 waits for message 9, which it has not issued"):
        replay(Recording([[Wait(9)]]), MACHINE)


def test_a_collective_that_nobody_knows_the_cost_of_is_named():
    with pytest.raises(ValueError, match="no cost is known for 'shuffle'"):
        replay(each(2, lambda rank, history: history.collective("shuffle", 8)), MACHINE)


def span(flops, *inside):
    return [Span("F", flops), *inside, Span("")]


@pytest.mark.parametrize(
    "history",
    [
        span(6.0, Compute(100.0, 100.0, 100)),
        span(6.0, Compute(1.0), Compute(99.0)),
        span(6.0, Compute(0.0, 7.0, 1)),
        span(6.0, Compute(0.0, 0.0, 3)),
        span(6.0),
        span(6.0)[:-1],
        span(6.0, *span(50.0, Compute(3.0))),
        span(None, *span(6.0, Compute(3.0))),
        [*span(1.0, Compute(3.0)), *span(5.0, Compute(3.0))],
    ],
)
def test_the_flops_of_a_span_replace_all_that_is_counted_in_it(history):
    machine = replace(FREE, memory_bytes_per_s=1.0, operator_overhead_s=1.0)
    assert replay(Recording([history]), machine).wall == pytest.approx(6.0, rel=1e-15)


def test_the_flops_of_a_span_are_shared_out_as_its_work_was():
    alone = [Span("F", 8.0), Compute(1.0), *History().send(1, 0).events, Compute(3.0), Span("")]
    timeline = replay(Recording([alone, History().recv(0, 0).events]), FREE)
    assert timeline.arrows[0].start == 2.0
    assert timeline.wall == 8.0


def test_messages_of_floating_point_numbers_can_be_replayed_in_another_dtype():
    histories = [
        History().collective("all_reduce", SIZE).collective("all_gather", SIZE, dtype="int64") for _ in range(2)
    ]
    half, full = replay(record(*histories), MACHINE, dtype="bfloat16"), replay(record(*histories), MACHINE)
    assert full.wall - half.wall == SIZE / 2 * BETA
    assert half.as_if == "messages as if in bfloat16"
    assert half.as_if in repr(half)
    with pytest.raises(ValueError, match="dtype must be one of float64, .* not 'bf16'"):
        replay(record(*histories), MACHINE, dtype="bf16")


def test_a_scaled_recording_takes_that_many_times_as_long_and_says_so():
    recording = each(4, lambda rank, history: history.compute(3.0).collective("all_reduce", SIZE))
    timeline = replay(recording.scaled(flops=100.0, bytes=1000.0), MACHINE)
    assert timeline.wall == pytest.approx(300.0 + all_reduce_seconds(4, 1000 * SIZE), rel=1e-15)
    assert "as if 100 × the FLOPs, 1000 × the bytes" in repr(timeline)


def everything(timeline, new=None):
    """All that a timeline shows, by the rank's old number."""
    of_rank = [
        [(s.start, s.end, s.kind, s.message and s.message.id) for s in segments] for segments in timeline.segments
    ]
    return of_rank if new is None else [of_rank[new[rank]] for rank in range(len(of_rank))]


@pytest.mark.parametrize("seed", range(40))
def test_the_numbering_of_ranks_changes_nothing(seed):
    recording = random_program(seed)
    draw = random.Random(seed)
    timeline = replay(recording, with_links(Link(1.0, 4.0)))
    for _ in range(3):
        new = draw.sample(range(6), 6)
        other = replay(renumbered(recording, new), with_links(Link(1.0, 4.0)))
        assert everything(other, new) == everything(timeline)


@pytest.mark.parametrize("seed", range(10))
def test_the_numbering_of_nodes_changes_nothing(seed):
    recording = random_program(seed)
    machine = with_links(Link(1.0, 4.0), Link(3.0, 2.0), ranks_per_node=2, collectives="hierarchical")
    pairs = random.Random(seed).sample([(0, 1), (3, 2), (4, 5)], 3)
    new = [rank for pair in pairs for rank in pair]
    assert everything(replay(renumbered(recording, new), machine), new) == everything(replay(recording, machine))


def test_everyone_to_everyone_at_once_takes_the_turns_that_the_ranks_wrote():
    """Rank r sends to r + 1, r + 2, …: in every turn each rank sends once and receives once."""

    def write(rank, history):
        peers = [(rank + turn) % 6 for turn in range(1, 6)]
        sends = [history.issue("send", 1024, peer=peer) for peer in peers]
        receives = [history.issue("recv", 1024, peer=(rank - turn) % 6) for turn in range(1, 6)]
        for id in sends + receives:
            history.wait(id)

    assert replay(each(6, write), MACHINE).wall == pytest.approx(5 * (ALPHA + 1024 * BETA), rel=1e-15)


@pytest.mark.parametrize("machine", machines.PROFILES, ids=lambda machine: machine.name)
def test_a_recording_gives_the_same_text_each_time_also_when_saved_and_loaded(machine, tmp_path):
    recording = pipeline(gpipe(4, 8)).scaled(flops=1e9, bytes=1e6)
    recording.save(tmp_path / "recording.json")
    texts = {
        repr(replay(copy, machine)) for copy in (recording, recording, Recording.load(tmp_path / "recording.json"))
    }
    assert len(texts) == 1


def test_replay_leaves_the_recording_and_the_garbage_collector_as_they_were():
    recording = random_program(1)
    before = [list(history) for history in recording.ranks]
    replay(recording, MACHINE)
    assert [list(history) for history in recording.ranks] == before
    assert gc.isenabled()
    gc.disable()
    try:
        replay(recording, MACHINE)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_empty_recording_takes_no_time():
    assert replay(Recording([]), MACHINE).wall == 0.0
    assert replay(Recording([[], []]), MACHINE).bubble == 0.0


def test_a_machine_that_takes_the_cheapest_says_which_it_took():
    def write(rank: int, history: History) -> None:
        history.collective("all_reduce", 1000).collective("all_reduce", 10**9, sequence=2)
        history.collective("all_gather", 10**9, sequence=3)

    timeline = replay(each(16, write), replace(machines.h100_cluster, collectives="auto"))
    said = "the cheapest collectives: all gather by hierarchical, all reduce by hierarchical and recursive doubling"
    assert said in timeline.notes
    assert said not in replay(each(16, write), machines.h100_cluster).notes


def test_a_reduce_scatter_and_an_all_gather_over_nodes_take_what_the_all_reduce_takes():
    whole = replay(each(64, lambda rank, history: history.collective("all_reduce", 15 * 10**9)), machines.h100_cluster)
    halves = replay(
        each(
            64,
            lambda rank, history: history.collective("reduce_scatter", 15 * 10**9).collective(
                "all_gather", 15 * 10**9, sequence=2
            ),
        ),
        machines.h100_cluster,
    )
    assert whole.wall == pytest.approx(0.124, abs=0.001) and halves.wall == pytest.approx(whole.wall)
