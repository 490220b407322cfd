"""Machines: named profiles, what they say about themselves, and what they refuse."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from distlab import run
from distlab.machine import collectives, machines
from distlab.machine.machines import FREE_LINK, PROFILES, Link, Machine
from distlab.machine.units import quantity


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("peak_flops", 0),
        ("achieved_flops", -1.0),
        ("achieved_flops", math.nan),
        ("memory_bytes_per_s", 0),
        ("operator_overhead_s", -1e-9),
        ("operator_overhead_s", math.nan),
        ("ranks_per_node", 0),
        ("ranks_per_node", 2.5),
        ("ranks_per_node", True),
        ("collectives", "rings"),
    ],
)
def test_a_machine_names_the_field_that_is_wrong(field, value):
    with pytest.raises(ValueError, match=f"^{field} must be"):
        replace(machines.classroom, **{field: value})


def test_a_machine_does_not_achieve_more_than_its_peak():
    with pytest.raises(ValueError, match="achieved_flops .* is above peak_flops"):
        replace(machines.classroom, achieved_flops=3e9)


@pytest.mark.parametrize(
    ("field", "value"), [("latency_s", -1e-6), ("latency_s", math.inf), ("bytes_per_s", 0), ("bytes_per_s", -1.0)]
)
def test_a_link_names_the_field_that_is_wrong(field, value):
    with pytest.raises(ValueError, match=f"^{field} must be"):
        replace(Link(0.0, 1.0), **{field: value})


@pytest.mark.parametrize("machine", PROFILES, ids=lambda machine: machine.name)
def test_every_profile_achieves_less_than_its_peak_and_says_where_its_numbers_are_from(machine):
    assert machine.achieved_flops < machine.peak_flops
    assert machine.source
    assert quantity(machine.achieved_flops, "FLOP/s") in machine.describe()
    assert quantity(machine.operator_overhead_s, "s") in machine.describe()


def test_profiles_are_all_listed_under_names_of_their_own():
    named = [thing for thing in vars(machines).values() if isinstance(thing, Machine)]
    assert sorted(machine.name for machine in named) == sorted(machine.name for machine in PROFILES)
    assert len({machine.name for machine in PROFILES}) == len(PROFILES)


def test_a_faster_network_is_a_faster_profile():
    seconds = [collectives.seconds("all_reduce", 1e9, range(8), machine) for machine in (
        machines.h100_node, machines.a100_node, machines.pcie_node, machines.ethernet_100g, machines.ethernet_10g
    )]  # fmt: skip
    assert seconds == sorted(seconds) and len(set(seconds)) == 5


def training(machine, tokens, width, bytes_an_element):
    """Communication over computation of data parallelism, for a model of any size, on the eight ranks of a node."""
    parameters = width**2
    computation = 6 * parameters * tokens / machine.achieved_flops
    communication = collectives.seconds("all_reduce", bytes_an_element * parameters, range(8), machine)
    return (communication - 14 * machine.inside.latency_s) / computation


def test_the_classroom_has_a_real_nodes_ratios_at_the_size_of_a_lab():
    real, lab = machines.a100_node, machines.classroom
    sizes = {real: (2048, 4096, 2), lab: (32, 64, 4)}
    assert training(lab, *sizes[lab]) == pytest.approx(training(real, *sizes[real]), rel=0.02)

    def moving(machine):
        _, width, bytes_an_element = sizes[machine]
        return bytes_an_element / machine.memory_bytes_per_s / (width / machine.achieved_flops)

    def overhead(machine):
        tokens, width, _ = sizes[machine]
        return machine.operator_overhead_s / (2 * tokens * width**2 / machine.achieved_flops)

    def latency(machine, bucket):
        return machine.inside.latency_s / (bucket / machine.inside.bytes_per_s)

    def between(machine):
        return machine.between.bytes_per_s / machine.inside.bytes_per_s

    assert moving(lab) == pytest.approx(moving(real), rel=0.05)
    assert overhead(lab) == pytest.approx(overhead(real), rel=0.15)
    assert latency(lab, 19_240) == pytest.approx(latency(real, 25e6), rel=0.05)
    assert between(lab) == pytest.approx(between(real), rel=0.05)


def test_a_description_names_rates_and_the_links_that_the_ranks_use():
    assert machines.h100_node.describe() == (
        "H100 node (400 TFLOP/s achieved of 989 TFLOP/s, memory 3.35 TB/s, 5 µs an operator, "
        "NVLink 450 GB/s + 3 µs inside a node of 8, InfiniBand NDR 50 GB/s + 5 µs between nodes, ring collectives)"
    )
    assert "InfiniBand" not in machines.h100_node.describe(ranks=8)
    assert "InfiniBand" in machines.h100_node.describe(ranks=9)
    assert "inside" not in machines.ethernet_10g.describe(ranks=4)


def test_what_is_free_is_called_free():
    bare = machines.classroom.flops_only().with_free_links()
    assert bare.describe().endswith(" achieved of 2.2 GFLOP/s, memory, operators and links free, ring collectives)")
    assert bare.achieved_flops == machines.classroom.achieved_flops
    assert (bare.inside, bare.between) == (FREE_LINK, FREE_LINK)
    assert machines.classroom.flops_only().inside == machines.classroom.inside


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (0.0, "s", "0 s"),
        (3e-6, "s", "3 µs"),
        (0.0065291, "s", "6.529 ms"),
        (12.5e9, "B/s", "12.5 GB/s"),
        (999.96e-6, "s", "1 ms"),
        (1234.0, "s", "1.234 ks"),
        (4e-11, "s", "0.04 ns"),
        (math.inf, "B/s", "inf B/s"),
    ],
)
def test_quantities_have_four_digits_and_a_prefix(value, unit, words):
    assert quantity(value, unit) == words


def test_this_computer_can_be_measured():
    machine = machines.measure(run)
    assert 1e8 < machine.achieved_flops <= machine.peak_flops < 1e15
    assert 1e8 < machine.memory_bytes_per_s < 1e13
    assert 1e-8 < machine.operator_overhead_s < 1e-2
    assert 1e-7 < machine.inside.latency_s < 1e-1
    assert 1e6 < machine.inside.bytes_per_s < 1e12
    assert machine.link([0, 63]) == machine.inside


def test_a_machine_as_measured_has_the_links_that_collectives_reached():
    reached = machines.h100_node.reached()
    assert reached.name == "H100 node as measured" and reached.between.bytes_per_s == 47e9
    assert reached.inside.bytes_per_s < machines.h100_node.inside.bytes_per_s
    assert replace(reached, name="", inside=FREE_LINK, between=FREE_LINK) == replace(
        machines.h100_node, name="", inside=FREE_LINK, between=FREE_LINK
    )


@pytest.mark.parametrize("machine", [machines.classroom, machines.ethernet_100g], ids=lambda machine: machine.name)
def test_links_that_nobody_measured_are_not_made_up(machine):
    with pytest.raises(ValueError, match=f"nobody is known to have measured the links of {machine.name}"):
        machine.reached()


@pytest.mark.parametrize(
    ("changes", "ranks", "words"),
    [
        ({}, 64, "hierarchical collectives, levels added)"),
        ({"overlaps_levels": True}, 64, "hierarchical collectives, levels overlapped)"),
        ({}, 8, "hierarchical collectives)"),
        ({"collectives": "auto"}, 64, "the cheapest collectives, levels added)"),
        ({"collectives": "two_way_ring"}, 64, "two way ring collectives)"),
    ],
)
def test_a_description_says_how_collectives_work_and_what_becomes_of_levels(changes, ranks, words):
    assert replace(machines.h100_cluster, **changes).describe(ranks).endswith(words)
