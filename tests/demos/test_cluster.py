"""The demo that replays a run on other clusters, against replay and the costs of links."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from distlab import run, span
from distlab.demos.cluster import cluster, draw, machine, of_the_labs
from distlab.machine import collectives
from distlab.machine.replay import replay
from distlab.recording import Group
from distlab.show.marks import Lines
from tests.demos.pictures import assert_legible, size_of

SETTING = {"flops": 1, "bytes": 1, "speed": 1e14, "nodes": 2, "latency": 5e-6, "bandwidth": 50e9}


def one_all_reduce():
    with span("a step"):
        dist.all_reduce(torch.ones(1_000_000))


@pytest.fixture(scope="module")
def recording():
    return run(one_all_reduce, ranks=4).recording


def test_the_time_on_a_cluster_is_that_of_replay(recording):
    board = draw(recording, "a run", **SETTING)
    here = machine(4, 1e14, 2, 5e-6, 50e9)
    timeline = replay(recording, here).during("a step")
    assert f"{timeline.wall * 1e6:.4g} µs" in board.title
    communication = sum(timeline.communication) / 4
    assert communication == pytest.approx(collectives.seconds("all_reduce", 4e6, range(4), here))


def test_slower_networks_and_larger_messages_take_longer_and_faster_gpus_do_not_help_a_link(recording):
    def wall(**change):
        setting = SETTING | change
        scaled = recording.scaled(flops=setting["flops"], bytes=setting["bytes"])
        here = machine(4, *(setting[name] for name in ("speed", "nodes", "latency", "bandwidth")))
        return replay(scaled, here).during("a step").wall

    assert wall(bandwidth=1.25e9) > 10 * wall()
    assert wall(latency=1e-3) - wall() == pytest.approx(2 * (1e-3 - 5e-6))  # a ring over two nodes
    assert wall(bytes=100) > 50 * wall()
    assert wall(nodes=1) < wall()
    assert wall(nodes=1, bandwidth=1.25e9) == wall(nodes=1)


def test_the_words_name_machine_and_scale_and_change_with_the_controls(recording):
    panel = cluster({"mine": recording})
    panel.set(nodes=2, flops=100, bytes=10_000, bandwidth=1.25e9)
    words = " ".join(panel.picture.words)
    assert "1.25 GB/s and 5 µs between nodes" in words and "every FLOP were 100 and every byte 10,000" in words
    panel.set(nodes=1)
    words = " ".join(panel.picture.words)
    assert "no network" in words and "1.25" not in words


def test_a_single_recording_can_be_given_and_none_at_all_is_refused(recording):
    assert cluster(recording).values["name"] == "your run"
    with pytest.raises(ValueError, match="at least one recording"):
        cluster({})


@pytest.mark.parametrize("name", list(of_the_labs()))
def test_runs_of_the_labs_draw_at_every_size(name):
    recording = of_the_labs()[name]()
    extremes = [{}, {"nodes": 4, "bandwidth": 1.25e9, "latency": 1e-3}, {"nodes": 1, "flops": 10**6, "bytes": 10**6}]
    boards = [draw(recording, name, **SETTING | change) for change in extremes]
    assert len(set(map(size_of, boards))) == 1
    for board in boards:
        assert_legible(board)


def test_a_run_of_many_ranks_is_legible(recording):
    many = replace(recording, ranks=list(recording.ranks) * 8, groups=[Group("world", tuple(range(32)))])
    board = draw(many, "many", **SETTING)
    assert_legible(board)
    assert sum(text.startswith("rank ") for text in board.written) >= 8


def test_waits_are_drawn_and_named():
    board = draw(of_the_labs()["ring all-reduce"](), "ring", **SETTING)
    assert {"recv", "send", "waits"} <= set(board.written)
    assert any(isinstance(mark, Lines) and mark.style == ":" for mark in board.marks)
