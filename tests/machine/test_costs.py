"""What collectives cost, against reference values and against each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from distlab.machine import collectives, costs
from distlab.machine.hardware import ALGORITHMS as ALGORITHM_NAMES
from distlab.machine.machines import FREE_LINK, Link
from tests.machine.recordings import with_links

LINK = Link(5e-6, 100e9)
ALGORITHMS = {
    "ring": costs.ring_all_reduce,
    "recursive doubling": costs.recursive_doubling_all_reduce,
    "halving-doubling": costs.halving_doubling_all_reduce,
    "tree": costs.tree_all_reduce,
    "star": costs.star_all_reduce,
}
KINDS = [*collectives.PLAIN]


@pytest.mark.parametrize(
    ("ranks", "bytes", "microseconds"),
    [
        (8, 10e3, (70.175, 15.3, 30.175, 30.6, 71.4)),
        (8, 1e6, (87.5, 45, 47.5, 90, 210)),
        (8, 100e6, (1820, 3015, 1780, 6030, 14070)),
        (64, 10e3, (630.196875, 30.6, 60.196875, 61.2, 642.6)),
        (64, 100e6, (2598.75, 6030, 2028.75, 12060, 126630)),
    ],
)
def test_all_reduces_cost_what_the_papers_formulas_say(ranks, bytes, microseconds):
    found = [1e6 * cost(bytes, ranks, LINK) for cost in ALGORITHMS.values()]
    assert found == pytest.approx(microseconds, abs=1e-6)


def crossing(one, other, ranks, low=1.0, high=1e9):
    """The bytes at which two algorithms cost the same, the first being the dearer below."""
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if one(middle, ranks, LINK) > other(middle, ranks, LINK) else (low, middle)
    return middle


def test_ring_beats_tree_from_a_megabyte_and_recursive_doubling_from_four():
    assert crossing(costs.ring_all_reduce, costs.tree_all_reduce, 8) == pytest.approx(0.941e6, rel=1e-3)
    for ranks, bytes in ((4, 4.0e6), (8, 4.4e6), (16, 6.12e6), (64, 14.88e6)):
        found = crossing(costs.ring_all_reduce, costs.recursive_doubling_all_reduce, ranks)
        assert found == pytest.approx(bytes, rel=1e-3)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(ranks):
    parts = costs.reduce_scatter(9e6, ranks, LINK) + costs.all_gather(9e6, ranks, LINK)
    assert costs.ring_all_reduce(9e6, ranks, LINK) == parts


@pytest.mark.parametrize(
    ("kind", "messages", "share"),
    [
        ("reduce_scatter", 4, 4 / 5),
        ("all_gather", 4, 4 / 5),
        ("all_to_all", 4, 4 / 5),
        ("gather", 3, 4 / 5),
        ("scatter", 3, 4 / 5),
        ("broadcast", 3, 3),
        ("reduce", 3, 3),
        ("barrier", 3, 0),
        ("all_reduce", 8, 8 / 5),
    ],
)
def test_each_collective_of_five_ranks_is_so_many_messages_and_so_much_of_the_bytes(kind, messages, share):
    assert collectives.seconds(kind, 1e6, range(5), with_links(Link(1.0, 1e6))) == pytest.approx(messages + share)


def test_recursive_doubling_takes_two_more_steps_where_ranks_are_no_power_of_two():
    steps = [costs.recursive_doubling_all_reduce(0, ranks, Link(1.0, 1.0)) for ranks in range(1, 10)]
    assert steps == [0, 1, 3, 2, 4, 4, 4, 3, 5]


@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_alone_pays_nothing_and_free_links_cost_nothing(kind):
    for algorithm in collectives.ALGORITHMS:
        assert collectives.seconds(kind, 1e6, [3], with_links(LINK, collectives=algorithm)) == 0
        assert collectives.seconds(kind, 1e6, range(6), with_links(FREE_LINK, collectives=algorithm)) == 0


def test_a_group_that_spans_nodes_pays_for_the_link_between_them():
    machine = with_links(Link(1.0, 1e6), Link(10.0, 1e5), ranks_per_node=4)
    assert collectives.seconds("all_gather", 1e6, [4, 5, 6, 7], machine) == 3 * 1 + 3 / 4 * 1
    assert collectives.seconds("all_gather", 1e6, [3, 4, 5, 6], machine) == 3 * 10 + 3 / 4 * 10
    assert collectives.seconds("send", 1e6, [0, 3], machine) == 2
    assert collectives.seconds("recv", 1e6, [4, 3], machine) == 20


def test_the_machine_says_which_algorithm_all_reduces():
    found = [
        collectives.seconds("all_reduce", 1e6, range(8), with_links(LINK, collectives=algorithm))
        for algorithm in ("ring", "tree", "recursive_doubling", "hierarchical", "halving_doubling", "auto")
    ]
    assert found == pytest.approx([87.5e-6, 90e-6, 45e-6, 87.5e-6, 47.5e-6, 45e-6])


@pytest.mark.parametrize(
    ("algorithm", "steps", "share"), [("ring", 7, 1), ("recursive_doubling", 3, 1), ("two_way_ring", 4, 1 / 2)]
)
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_an_all_gather_or_reduce_scatter_takes_the_steps_and_bytes_of_its_algorithm(kind, algorithm, steps, share):
    found = collectives.seconds(kind, 8e6, range(8), with_links(Link(1.0, 1e6), collectives=algorithm))
    assert found == pytest.approx(steps + share * 7)


def test_every_algorithm_that_a_machine_may_name_has_its_costs():
    assert [*collectives.ALGORITHMS, "auto"] == [*ALGORITHM_NAMES]


@pytest.mark.parametrize(("ranks", "falls_back"), [(8, False), (6, True)])
def test_halving_and_doubling_all_reduces_powers_of_two_only(ranks, falls_back):
    machine = with_links(LINK, collectives="halving_doubling")
    assert (collectives.algorithm_of("all_reduce", 1e6, range(ranks), machine) == "ring") is falls_back


@pytest.mark.parametrize("ranks", [5, 8, 16])
@pytest.mark.parametrize("bytes", [1e2, 1e5, 1e8])
@pytest.mark.parametrize("kind", [*collectives.PLAIN])
def test_the_cheapest_algorithm_is_as_cheap_as_the_cheapest_of_all(kind, bytes, ranks):
    def machine(algorithm):
        return with_links(Link(3e-6, 450e9), Link(5e-6, 50e9), 4, collectives=algorithm)

    ways = [name for name in collectives.ALGORITHMS if name != "two_way_ring"]
    every = [collectives.seconds(kind, bytes, range(ranks), machine(name)) for name in ways]
    assert collectives.seconds(kind, bytes, range(ranks), machine("auto")) == min(every)


def hierarchical(inside, between, ranks_per_node=4):
    return with_links(inside, between, ranks_per_node, collectives="hierarchical")


def test_a_hierarchical_all_reduce_works_inside_nodes_then_between_them_then_inside():
    inside, between = Link(1.0, 10e6), Link(10.0, 1e6)
    found = collectives.seconds("all_reduce", 8e6, range(12), hierarchical(inside, between))
    reduce_scatter = all_gather = 3 * 1.0 + 3 / 4 * 8e6 / 10e6
    between_nodes = 2 * 2 * 10.0 + 2 * 2 / 3 * 2e6 / 1e6
    assert found == pytest.approx(reduce_scatter + between_nodes + all_gather)
    ring = collectives.seconds("all_reduce", 8e6, range(12), with_links(inside, between, 4))
    assert found < ring == pytest.approx(2 * 11 * 10.0 + 2 * 11 / 12 * 8.0)


def test_a_hierarchical_all_reduce_over_uneven_nodes_waits_for_the_fullest_and_for_the_largest_shares():
    machine = hierarchical(Link(1.0, 1e6), Link(10.0, 1e6))
    inside = 2 * (2 * 1.0 + 2 / 3 * 6.0)
    between = 2 * 1 * 10.0 + 2 * 1 / 2 * 6.0
    assert collectives.seconds("all_reduce", 6e6, [1, 2, 3, 4], machine) == pytest.approx(inside + between)


def test_a_hierarchical_machine_uses_one_ring_where_no_node_has_two_members():
    machine = hierarchical(Link(1.0, 1e6), Link(10.0, 1e6))
    assert not collectives.uses_both_links("all_reduce", 3e6, [0, 4, 8], machine)
    assert collectives.seconds("all_reduce", 3e6, [0, 4, 8], machine) == pytest.approx(4 * 10 + 4 / 3 * 3)


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("members", [range(12), [0, 1, 2, 3, 4], [3, 4, 5, 9]])
def test_a_hierarchical_all_reduce_is_its_two_halves(members, overlapped):
    machine = replace(hierarchical(Link(1.0, 10e6), Link(10.0, 1e6)), overlaps_levels=overlapped)
    whole, *halves = (
        collectives.seconds(kind, 8e6, members, machine) for kind in ("all_reduce", "reduce_scatter", "all_gather")
    )
    assert whole == pytest.approx(sum(halves)) and halves[0] == halves[1]


def test_levels_that_overlap_pay_for_the_slower_link_only():
    added = hierarchical(Link(1.0, 10e6), Link(10.0, 1e6))
    latency, inside, between = 3 * 1.0 + 2 * 10.0, 3 / 4 * 0.8, 2 / 3 * 2.0
    found = [
        collectives.seconds("all_gather", 8e6, range(12), m) for m in (added, replace(added, overlaps_levels=True))
    ]
    assert found == pytest.approx([latency + inside + between, latency + max(inside, between)])


def test_an_all_to_all_charges_each_byte_to_the_link_that_it_uses():
    machine = with_links(Link(1.0, 1e6), Link(10.0, 1e6), ranks_per_node=4)
    assert collectives.seconds("all_to_all", 8e6, range(4), machine) == pytest.approx(3 * 1.0 + 3 * 2.0)
    assert collectives.seconds("all_to_all", 8e6, range(8), machine) == pytest.approx(4 * 10.0 + 4 * 1.0)
    slow_inside = with_links(Link(1.0, 5e4), Link(10.0, 1e6), ranks_per_node=4)
    assert collectives.seconds("all_to_all", 8e6, range(8), slow_inside) == pytest.approx(3 * 1.0 + 3 * 20.0)


@pytest.mark.parametrize("members", [range(1), range(3), range(8), [0, 1, 2, 5, 9]])
def test_an_even_all_to_all_costs_what_one_of_equal_parts_does(members):
    machine = with_links(Link(1.0, 1e6), Link(10.0, 3e5), ranks_per_node=4)
    parts = [[7e6 / len(members)] * len(members)] * len(members)
    assert collectives.seconds("all_to_all", 7e6, members, machine) == pytest.approx(
        collectives.all_to_all(parts, members, machine)
    )


def test_an_all_to_all_waits_for_the_busiest_link_of_any_rank():
    machine = with_links(Link(0.0, 1.0), Link(0.0, 1.0), ranks_per_node=2)
    to_next_node = [[0, 5, 7, 0], [0, 0, 9, 0], [0, 0, 0, 1], [0, 0, 0, 0]]
    assert collectives.all_to_all(to_next_node, range(4), machine) == 16.0


def test_an_uneven_all_to_all_takes_as_long_as_its_busiest_rank():
    even = [[100.0] * 4 for _ in range(4)]
    assert costs.uneven_all_to_all(even, LINK) == pytest.approx(costs.all_to_all(400.0, 4, LINK))
    all_to_one = [[0.0, 0.0, 700.0], [0.0, 50.0, 800.0], [0.0, 0.0, 900.0]]
    assert costs.uneven_all_to_all(all_to_one, Link(1.0, 100.0)) == 2 * 1.0 + 15.0


def test_a_kind_without_a_formula_is_named():
    with pytest.raises(ValueError, match="no cost is known for 'all_reduse'; known are send, recv, all_reduce"):
        collectives.seconds("all_reduse", 4, [0, 1], with_links(LINK))
