"""Lab 07's schedules give the numbers of the books, and torch's losses, gradients and messages."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

from distlab import from_lab, machines, run
from distlab.course.notebook import Notebook
from distlab.course.patches import patches_of
from distlab.course.places import ROOT
from distlab.events import Memory
from distlab.machine.replay import replay

WHOLE, CHUNK = {"F": 1.0, "B": 2.0}, {"F": 0.5, "B": 1.0}
EQUAL, SPLIT = {"F": 1.0, "B": 1.0}, {"F": 1.0, "B": 1.0, "W": 1.0}
SMALL_CASES = [(2, 1, 0.5), (2, 4, 0.2), (4, 4, 0.4286), (4, 8, 0.2727), (4, 16, 0.1579), (8, 32, 0.1795)]
PLAIN = ["gpipe_schedule", "one_f_one_b_schedule"]


@pytest.fixture(scope="module")
def lab() -> SimpleNamespace:
    return from_lab("pipeline", solution=True)


def patched(exercise: str, mistake: str) -> list:
    """An exercise with a mistake in it, in each way in which it is known."""
    notebook = Notebook(ROOT / "solutions" / "07_pipeline.ipynb")
    patches = [patch for patch in patches_of("07_pipeline", exercise) if patch.id == mistake]
    texts = [patch.applied(notebook.exercises[exercise]) for patch in patches]
    return [notebook.definitions({exercise: text})[exercise] for text in texts]


def timeline(lab, schedule: str, *sizes: int, flops=WHOLE, **how):
    return lab.on_paper(lab.for_all(getattr(lab, schedule), *sizes), flops, **how)


@pytest.mark.parametrize(("p", "m", "bubble"), SMALL_CASES)
@pytest.mark.parametrize("schedule", PLAIN)
def test_the_bubble_of_wall_time_on_free_links_is_exact(lab, schedule, p, m, bubble):
    found = timeline(lab, schedule, p, m)
    assert found.bubbles == pytest.approx([(p - 1) / (m + p - 1)] * p, abs=1e-12)
    assert found.bubble == pytest.approx(bubble, abs=5e-5)
    assert lab.bubble_fraction(p, m) == pytest.approx(found.bubble, abs=1e-12)


@pytest.mark.parametrize(("p", "m", "bubble"), [(4, 4, 0.2727), (4, 8, 0.1579), (4, 16, 0.0857), (8, 32, 0.0986)])
def test_two_chunks_a_rank_shrink_the_bubble_to_the_formula(lab, p, m, bubble):
    found = timeline(lab, "interleaved_schedule", p, m, 2, flops=CHUNK)
    assert found.bubbles == pytest.approx([(p - 1) / (2 * m + p - 1)] * p, abs=1e-12)
    assert found.bubble == pytest.approx(bubble, abs=5e-5)


@pytest.mark.parametrize(
    ("schedule", "how", "bubble"),
    [
        ("gpipe_schedule", {}, 0.360),
        ("one_f_one_b_schedule", {}, 0.467),
        ("gpipe_schedule", {"early": False}, 0.500),
        ("gpipe_schedule", {"early": False, "blocking": True}, 0.590),
    ],
)
def test_a_latency_of_half_a_forward_costs_one_f_one_b_more_than_gpipe(lab, schedule, how, bubble):
    link = machines.Link(0.5, math.inf)
    slow = replace(lab.UNIT, inside=link, between=link)
    found = timeline(lab, schedule, 4, 8, flops=EQUAL, machine=slow, **how)
    assert found.bubble == pytest.approx(bubble, abs=0.005)


@pytest.mark.parametrize(("p", "measured"), [(2, 1.8), (4, 3.4), (8, 6.3)])
def test_gpipes_table_2_is_between_92_and_97_percent_of_the_ideal_for_32_micro_batches(lab, p, measured):
    ideal, base = (k * (1 - lab.bubble_fraction(k, m)) for k, m in ((p, 32), (2, 1)))
    assert 0.92 < measured / (ideal / base) < 0.97


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 4), (8, 9), (8, 32)])
def test_zb_h1_idles_a_third_of_one_f_one_b_and_holds_what_the_paper_says(lab, p, m):
    whole, split = timeline(lab, "one_f_one_b_schedule", p, m), timeline(lab, "zb_h1_schedule", p, m, flops=SPLIT)
    assert [whole.wall - busy for busy in whole.busy] == pytest.approx([3 * (p - 1)] * p)
    assert [split.wall - busy for busy in split.busy] == pytest.approx([p - 1] * p)
    assert [held_in_halves(spans) for spans in split.spans] == [(p - s, s) for s in range(p)]


def held_in_halves(spans) -> tuple[int, int]:
    """The most micro-batches that a rank holds, as a pair: from F until B, and from B until W."""
    most, f_until_b, b_until_w = (0, 0), 0, 0
    for kind in [step.name[0] for step in spans]:
        most = max(most, (f_until_b + (kind == "F"), b_until_w), key=sum)
        f_until_b += (kind == "F") - (kind == "B")
        b_until_w += (kind == "B") - (kind == "W")
    return most


def test_p_minus_s_minus_1_warm_up_forwards_are_the_fewest_that_keep_the_bubble_and_more_cost_memory(lab):
    def found(schedule_of):
        on_paper = lab.on_paper(lab.for_all(schedule_of, 4, 8), WHOLE)
        return round(on_paper.bubble, 3), lab.most_held(on_paper, 0)

    assert found(lab.one_f_one_b_schedule) == (0.273, 4)
    assert [found(short) for short in patched("one_f_one_b_schedule", "short-warm-up")] == [(0.556, 3)] * 2
    assert [found(long) for long in patched("one_f_one_b_schedule", "long-warm-up")] == [(0.273, 5)]
    assert [found(same) for same in patched("one_f_one_b_schedule", "same-everywhere")] == [(0.652, 4)]


@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 1), (4, 8), (4, 2), (8, 32)])
def test_gpipe_holds_m_micro_batches_and_one_f_one_b_at_most_p_minus_s(lab, p, m):
    gpipe, one_f_one_b = (timeline(lab, schedule, p, m) for schedule in PLAIN)
    assert [lab.most_held(gpipe, rank) for rank in range(p)] == [m] * p
    assert [lab.most_held(one_f_one_b, rank) for rank in range(p)] == [min(m, p - rank) for rank in range(p)]


@pytest.mark.parametrize("m", [1, 2, 5, 8])
@pytest.mark.parametrize("p", [1, 2, 4])
def test_the_checker_and_replay_agree_on_what_deadlocks(lab, p, m):
    for schedule in PLAIN:
        steps = lab.with_messages(lab.for_all(getattr(lab, schedule), p, m))
        assert lab.walk(steps) == {}
        is_stuck = lab.walk(steps, blocking=True) != {}
        recording = lab.to_recording(steps, WHOLE, blocking=True)
        if is_stuck:
            with pytest.raises(ValueError, match="cannot finish"):
                replay(recording, lab.UNIT)
        else:
            replay(recording, lab.UNIT)
        assert is_stuck == (schedule == "one_f_one_b_schedule" and p > 1 and m > 1)


def test_what_comes_too_late_is_waited_for_by_all(lab):
    right = lab.with_messages(lab.for_all(lab.gpipe_schedule, 3, 2))
    late = [*right[0][1:], right[0][0]]
    stuck = {rank: repr(step) for rank, step in lab.walk([late, *right[1:]]).items()}
    assert stuck == {0: "SendF0", 1: "F0", 2: "F0"}


@pytest.mark.parametrize("more", [-1, 0, 1, 2, 3, 4])
def test_a_shorter_warm_up_costs_time_and_a_longer_one_memory(lab, more):
    found = lab.on_paper([lab.in_turn(max(0, 3 - stage + more), 8) for stage in range(4)])
    assert round(found.bubble, 4) == (0.5556 if more < 0 else 0.2727)
    assert [lab.most_held(found, rank) for rank in range(4)] == [max(1, 4 - rank + more) for rank in range(4)]
    if not more:
        assert [lab.in_turn(3 - stage, 8) for stage in range(4)] == lab.for_all(lab.one_f_one_b_schedule, 4, 8)


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (4, 8, 2), (3, 6, 3)])
def test_a_chunk_with_all_micro_batches_before_the_next_chunk_deadlocks(lab, p, m, v):
    (all_of_a_chunk,) = patched("interleaved_schedule", "all-of-a-chunk")
    schedule = lab.with_messages([all_of_a_chunk(rank, p, m, v) for rank in range(p)])
    assert lab.walk(schedule)


def two_steps_with_one_mail(lab, steps):
    stages, mail = lab.make_stages(1), lab.AsyncMail()
    batches = lab.split_microbatches(*lab.first_rows(16), 4)
    for _ in range(2):
        lab.execute(stages, steps[torch.distributed.get_rank()], batches, mail)
    return len(mail.boxes) + len(mail.arriving) + len(mail.leaving)


def test_a_step_leaves_nothing_in_the_mail(lab):
    steps = lab.with_messages(lab.for_all(lab.one_f_one_b_schedule, 3, 4), early=True)
    assert run(two_steps_with_one_mail, lab, steps, ranks=3, record=False).values == [0, 0, 0]


@pytest.mark.parametrize("p", [1, 2, 3, 4])
@pytest.mark.parametrize(("num_rows", "m"), [(32, 8), (7, 5), (9, 2)])
def test_gradients_equal_the_whole_batchs_by_any_schedule(lab, p, num_rows, m):
    for schedule, mail, early in ((PLAIN[0], lab.Mail, False), (PLAIN[1], lab.AsyncMail, True)):
        steps = lab.with_messages(lab.for_all(getattr(lab, schedule), p, m), early)
        done = run(lab.pipeline_step, steps, num_rows, m, mail, ranks=p, record=False)
        assert lab.largest_difference(done, num_rows) < 1e-12


@pytest.mark.parametrize("p", [2, 3])
def test_gradients_equal_the_whole_batchs_with_two_chunks_a_rank(lab, p):
    steps = lab.with_messages(lab.for_all(lab.interleaved_schedule, p, 2 * p, 2), early=True)
    done = run(lab.pipeline_step, steps, 17, 2 * p, lab.AsyncMail, ranks=p, record=False)
    assert lab.largest_difference(done, 17) < 1e-12


@pytest.mark.parametrize(
    ("kind", "schedule", "held"),
    [(ScheduleGPipe, PLAIN[0], [8, 8, 8, 8]), (Schedule1F1B, PLAIN[1], [4, 3, 2, 1])],
)
def test_torchs_own_schedules_have_the_same_losses_gradients_and_messages(lab, kind, schedule, held):
    steps = lab.with_messages(lab.for_all(getattr(lab, schedule), 4, 8), early=True)
    mine = run(lab.pipeline_step, steps, 64, 8, lab.AsyncMail, ranks=4)
    theirs = run(lab.with_torch, kind, 64, 8, ranks=4)
    assert lab.largest_difference(mine, 64) < 1e-12 > lab.largest_difference(theirs, 64)
    (loss, _), (their_loss, _) = mine.values[-1], theirs.values[-1]
    assert loss == pytest.approx(their_loss, abs=1e-12)
    sent, theirs_sent = (lab.sends(r, 8 * 64 * 8) for r in (mine, theirs))
    assert sent == theirs_sent == [8, 16, 16, 8]
    replayed = replay(mine.recording, machines.classroom.flops_only().with_free_links())
    assert [lab.most_held(replayed, rank) for rank in range(4)] == held
    one = 8 * 64 * 8 * 3  # rows × width × bytes × tensors that a stage of two layers keeps
    peaks = [max(event.activations for event in mine.recording.events(Memory, rank)) for rank in (1, 2)]
    assert peaks == [one * count for count in held[1:3]]


def test_recomputation_keeps_inputs_and_one_micro_batchs_insides(lab):
    steps = lab.with_messages(lab.for_all(lab.gpipe_schedule, 4, 8))
    light = {"forward": lab.forward_keeping_input, "backward": lab.backward_from_input}
    full, less = (run(lab.pipeline_step, steps, 64, 8, lab.Mail, how, ranks=4) for how in ({}, light))
    assert lab.largest_difference(less, 64) < 1e-12
    assert lab.peak(full, 1) == 8 * lab.peak(less, 1)
    assert less.recording.flops(1) == pytest.approx(4 / 3 * full.recording.flops(1))


@pytest.mark.parametrize(
    ("schedule", "more", "flops", "bubble"),
    [
        ("gpipe_schedule", (), WHOLE, 63 / 575),
        ("one_f_one_b_schedule", (), WHOLE, 63 / 575),
        ("interleaved_schedule", (2,), CHUNK, 63 / (2 * 512 + 63)),
        ("zb_h1_schedule", (), SPLIT, 63 / (3 * 512 + 63)),
    ],
)
def test_a_schedule_may_have_64_stages_and_512_micro_batches(lab, schedule, more, flops, bubble):
    found = timeline(lab, schedule, 64, 512, *more, flops=flops)
    assert found.bubble == pytest.approx(bubble, abs=1e-9)


def test_a_first_stage_may_take_token_ids(lab):
    stage = lab.Stage(torch.nn.Embedding(5, 4), 0, 2, width=4)
    assert lab.run_forward(stage, 0, torch.tensor([1, 2]), torch.tensor([0, 1]), 2).shape == (2, 4)
