"""Lab 05's own code, measured: bytes by kind, elements sent, equality with one process, and beside PyTorch's own."""

from __future__ import annotations

import pytest
import torch

from distlab import from_lab, machines, run
from distlab.course.kit.outcome import Outcome
from distlab.machine.memory import FP32, MIXED, bytes_by_kind
from distlab.machine.replay import replay
from distlab.ranks.outcome import Run

RECIPES = {torch.float32: FP32, torch.bfloat16: MIXED}
STATES = ("parameters", "gradients", "optimizer")


@pytest.fixture(scope="module")
def lab():
    """The definitions of the solved lab."""
    return from_lab("zero", solution=True)


def padded_units(lab, stage: int, ranks: int) -> list[int]:
    """The numbers of each unit's flat tensor, padding included."""
    sizes = [(a + 1) * b for a, b in zip(lab.WIDTHS, lab.WIDTHS[1:])]
    return [size + -size % ranks for size in ([sum(sizes)] if stage < 2 else sizes)]


def trained(lab, stage: int, ranks: int, dtype=torch.float32, step_1=None) -> Run:
    return run(lab.train, stage, 2, 32, dtype, step_1, ranks=ranks)


@pytest.mark.parametrize("dtype", list(RECIPES), ids=str)
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_bytes_a_parameter_are_those_of_the_formulas(lab, ranks, dtype):
    for stage in range(4):
        numbers = sum(padded_units(lab, stage, ranks))
        want = [numbers * size for size in bytes_by_kind(stage, ranks, RECIPES[dtype])]
        for held in trained(lab, stage, ranks, dtype).memory().ends:
            assert [held[kind] for kind in STATES] == want, stage
        assert lab.PSI <= numbers < lab.PSI + ranks * len(padded_units(lab, stage, ranks))


@pytest.mark.parametrize("dtype", list(RECIPES), ids=str)
def test_stage_2_peaks_at_its_share_and_a_bucket_and_stage_3_at_one_gathered_layer(lab, dtype):
    ranks, width = 4, RECIPES[dtype].parameters
    units = padded_units(lab, 2, ranks)
    second, third = (trained(lab, stage, ranks, dtype).memory().during("step2").peaks[0] for stage in (2, 3))
    shares = width * sum(units) / ranks
    assert second["gradients"] <= shares and second["parameters"] == width * sum(units)
    assert width * max(units) <= second["buffers"] <= width * (max(units) + max(units) / ranks)
    assert third["parameters"] == shares + width * max(units)
    assert third["gradients"] == shares and third["buffers"] == second["buffers"]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_elements_sent_are_those_of_the_formulas(lab, ranks):
    forms = [(0, None, 2), (1, lab.zero1_by_all_reduce, 3), (1, None, 2), (2, None, 2), (3, None, 3)]
    rounds = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}
    for stage, step_1, times in forms:
        recording = trained(lab, stage, ranks, step_1=step_1).recording
        for rank in range(ranks):
            sent = sum(rounds[m.kind] * m.elements for m in recording.messages(rank)) * (ranks - 1) / ranks
            assert sent / 2 == times * sum(padded_units(lab, stage, ranks)) * (ranks - 1) / ranks, stage


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_stage_trains_as_one_process_does_with_tied_and_frozen_parameters_and_batches_of_any_size(lab, ranks):
    want = run(lab.alone, ranks=1).values[0]
    for stage in range(4):
        for history in run(lab.together, stage, ranks=ranks).values:
            for (loss, weights), (right_loss, right_weights) in zip(history, want, strict=True):
                assert loss == pytest.approx(right_loss, abs=1e-10)
                torch.testing.assert_close(weights, right_weights, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("stage", range(4))
def test_in_mixed_precision_losses_stay_with_those_of_one_process(lab, stage):
    one = trained(lab, 0, 1, torch.bfloat16).values[0]
    four = [sum(parts) / 4 for parts in zip(*trained(lab, stage, 4, torch.bfloat16).values)]
    assert four == pytest.approx(one, abs=0.01)


def test_tied_weights_are_one_unit_whose_numbers_are_gathered_and_reduced_once(lab):
    recording = run(lab.together, 3, ranks=2, record="messages").recording
    tied = 16 * 16 + 16 + 16  # a weight and two biases
    sizes = [m.elements for m in recording.messages(0, "reduce_scatter")]
    assert sizes.count(tied) == len(lab.BATCHES) and len(sizes) == 3 * len(lab.BATCHES)


def test_beside_fully_shard_losses_and_messages_are_the_same_and_the_peak_is_no_higher(lab):
    mine, theirs = trained(lab, 3, 4), run(lab.with_fully_shard, ranks=4)
    assert [sum(parts) for parts in zip(*mine.values)] == pytest.approx([sum(p) for p in zip(*theirs.values)], abs=1e-5)
    assert mine.recording.counts(0) == theirs.recording.counts(0)
    assert mine.memory().during("step2").peaks[0]["all together"] <= theirs.memory().during("step2").peaks[0][
        "all together"
    ]  # fmt: skip


def test_beside_zero_redundancy_optimizer_losses_are_the_same_and_it_is_of_the_first_form(lab):
    mine, theirs = run(lab.train, 1, ranks=4), run(lab.with_zro, ranks=4)
    assert [sum(parts) for parts in zip(*mine.values)] == pytest.approx([sum(p) for p in zip(*theirs.values)], abs=1e-5)
    assert set(theirs.recording.counts(0)) == {"all_reduce", "broadcast"}
    assert lab.volume(theirs) == pytest.approx(3)


@pytest.mark.parametrize("stage", [1, 2])
def test_the_update_and_the_gathers_after_it_are_drawn_as_the_update(lab, stage):
    recording = trained(lab, stage, 2).recording
    outcome = Outcome([], [], recording.ranks, recording.groups)
    gathers = len(recording.messages(0, "all_gather"))
    assert len([m for m in outcome.messages(0, "U") if m.kind == "all_gather"]) == gathers > 0
    assert not [m for m in outcome.messages(0, "B") if m.kind == "all_gather"]


def stage_seen(picture) -> int:
    """What a reader tells from one step's picture in float32, where Adam's states are twice the weights."""
    looks, peak = picture.noted[0], picture.peaks[0]
    if min(look.parameters for look in looks) < peak["parameters"]:
        return 3  # the saw
    if peak["gradients"] < peak["parameters"]:
        return 2
    return 1 if peak["optimizer"] < 2 * peak["parameters"] else 0


def test_the_picture_alone_tells_the_stage(lab):
    assert [stage_seen(trained(lab, stage, 4).memory().during("step2")) for stage in range(4)] == [0, 1, 2, 3]


def test_prefetch_hides_gathers_behind_computation_on_the_modelled_clock(lab):
    plain, ahead = (
        replay(run(lab.one_sharded_step, call, ranks=4).recording, machines.classroom).during("step")
        for call in (None, lab.prefetch)
    )
    assert plain.hidden[0] == 0 and ahead.hidden[0] > 0.4 * plain.exposed[0] and ahead.wall < plain.wall
