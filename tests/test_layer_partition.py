"""Lab 06's numbers: a model cut by layers trains as one process does, sends little, and works one rank at a time."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import cloudpickle
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from distlab import machines, run, span
from distlab.course.checks.layer_partition import head_in_layers
from distlab.course.checks.layer_partition.partition_layers import all_cuts, largest
from distlab.course.notebook import Notebook
from distlab.course.places import ROOT
from distlab.data import digits
from distlab.events import Memory
from distlab.machine.replay import replay

cloudpickle.register_pickle_by_value(sys.modules[__name__])

IDEAL = machines.classroom.flops_only().with_free_links()
PARAMETERS = 29_770


@cache
def lab() -> SimpleNamespace:
    """What the solved lab itself defines; its imports would be imported again on every rank."""
    definitions = Notebook(ROOT / "solutions" / "06_layer_partition.ipynb").definitions()
    own = {k: v for k, v in definitions.items() if getattr(v, "__module__", "__main__") == "__main__"}
    return SimpleNamespace(**{k: v for k, v in own.items() if callable(v) or isinstance(v, int)})


def batches(sizes: list[int], dtype: torch.dtype) -> list[tuple[torch.Tensor, torch.Tensor]]:
    x, y = digits("train", dtype)
    return list(zip(x[: sum(sizes)].split(sizes), y[: sum(sizes)].split(sizes)))


def history(step, stage: nn.Module, data: list, *arguments) -> list[tuple]:
    """Of every step: the loss, and copies of gradients and weights."""
    optimizer, steps, gradients = torch.optim.SGD(stage.parameters(), lr=0.02, momentum=0.9), [], []
    optimizer.register_step_pre_hook(lambda *_: gradients.append([p.grad.clone() for p in stage.parameters()]))
    for x, y in data:
        loss = step(stage, optimizer, x, y, *arguments)
        steps.append((loss, gradients[-1], [p.detach().clone() for p in stage.parameters()]))
    return steps


def on_ranks(lab: SimpleNamespace, data: list, dtype: torch.dtype) -> list[tuple]:
    stage = lab.make_stage(lambda i: lab.make_layer(i, dtype), lab.NUM_LAYERS)
    no_rows = lab.agree_on_shapes(stage, data[0][0][:0])
    with span("steps"):
        return history(lab.partitioned_step, stage, data, no_rows)


def in_one_process(data: list, dtype: torch.dtype) -> list[tuple]:
    def step(model, optimizer, x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return history(step, nn.Sequential(*(lab().make_layer(i, dtype) for i in range(lab().NUM_LAYERS))), data)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_training_equals_one_process_at_every_step(ranks, dtype, tolerance):
    data = batches([32] * 9 + [29, 1], dtype)
    by_rank = run(on_ranks, lab(), data, dtype, ranks=ranks, record="messages").values
    for number, (loss, gradients, weights) in enumerate(in_one_process(data, dtype)):
        came = [steps[number] for steps in by_rank]
        assert [notes[0] for notes in came] == [None] * (ranks - 1) + [pytest.approx(loss, abs=tolerance)]
        for i, want in ((1, gradients), (2, weights)):
            mine = [tensor for notes in came for tensor in notes[i]]
            torch.testing.assert_close(mine, want, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_step_sends_8192_bytes_each_way_over_each_cut_and_nothing_else(ranks):
    steps = 3
    recording = run(on_ranks, lab(), batches([32] * steps, torch.float32), torch.float32, ranks=ranks).recording
    for rank in range(ranks):
        sends = [m for m in recording.messages(rank, "send") if m.dtype == "float32"]
        sizes = {peer: [m.bytes for m in sends if m.peer == peer] for peer in {m.peer for m in sends}}
        neighbours = [peer for peer in (rank - 1, rank + 1) if 0 <= peer < ranks]
        assert sizes == {peer: [4 * 32 * 64] * steps for peer in neighbours}
        assert {m.kind for m in recording.messages(rank)} == {"send", "recv"}


def test_shapes_are_agreed_on_once_however_many_steps_follow():
    counts = []
    for steps in (1, 4):
        recording = run(on_ranks, lab(), batches([32] * steps, torch.float32), torch.float32, ranks=3).recording
        counts.append([[m.bytes for m in recording.messages(rank) if m.dtype != "float32"] for rank in range(3)])
    assert counts[0] == counts[1] and any(counts[0])


def test_each_rank_holds_its_own_layers_and_never_more():
    for ranks in (1, 2, 3, 4):
        recording = run(on_ranks, lab(), batches([32], torch.float32), torch.float32, ranks=ranks).recording
        held = [max(memory.parameters for memory in recording.events(Memory, rank)) for rank in range(ranks)]
        assert sum(held) == 4 * PARAMETERS
        assert max(held) == 4 * 4_160 * -(-8 // ranks) - (4 * (4_160 - 650) if ranks == 1 else 0)


def equal_stages(lab: SimpleNamespace, num_layers: int) -> None:
    """A forward and a backward pass of equal layers, the first of which works out the gradient of its input too."""
    stage = lab.make_stage(lambda i: nn.Linear(16, 16), num_layers)
    x = torch.ones(8, 16).requires_grad_()
    inputs, outputs = lab.forward_stage(stage, x, 8, x.detach()[:0])
    is_last = dist.get_rank() == dist.get_world_size() - 1
    lab.backward_stage(inputs, outputs, outputs.sum() if is_last else None)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_equal_stages_are_each_busy_for_exactly_one_pth_of_the_time(ranks):
    timeline = replay(run(equal_stages, lab(), 12, ranks=ranks).recording, IDEAL)
    assert timeline.bubbles == pytest.approx([1 - 1 / ranks] * ranks, abs=1e-12)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_on_free_links_the_mean_utilisation_is_one_pth_however_uneven_the_stages(ranks):
    data = batches([32], torch.float32)
    timeline = replay(run(on_ranks, lab(), data, torch.float32, ranks=ranks).recording, IDEAL).during("steps")
    assert 1 - timeline.bubble == pytest.approx(1 / ranks, abs=1e-12)
    assert timeline.wall == pytest.approx(sum(timeline.busy), rel=1e-12)


def test_wall_time_grows_by_the_transfers_and_not_with_the_number_of_ranks():
    near, walls = machines.classroom.flops_only(), {}
    far = replace(near, ranks_per_node=1)
    for ranks in (1, 2, 3, 4):
        recording = run(on_ranks, lab(), batches([32], torch.float32), torch.float32, ranks=ranks).recording
        for name, machine in (("near", near), ("far", far)):
            walls[name, ranks] = replay(recording, machine).during("steps").wall
    for name, link in (("near", near.inside), ("far", near.between)):
        for ranks in (2, 3, 4):
            transfers = 2 * (ranks - 1) * link.seconds(8192)
            assert walls[name, ranks] == pytest.approx(walls[name, 1] + transfers, rel=1e-9)


def tied_steps(lab: SimpleNamespace, shades: torch.Tensor, ties) -> tuple[list, torch.Tensor | None]:
    """Trains the lab's model of pixels; the losses, and this rank's copy of the table after every step."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    group = dist.new_group(sorted({0, last}))
    stage = lab.make_stage(lab.make_part, 4)
    tied = next((part.weight for part in stage if isinstance(part, lab.Embed | lab.Score)), None)
    optimizer, copies = torch.optim.SGD(stage.parameters(), lr=0.1, momentum=0.9), []
    no_rows = lab.agree_on_shapes(stage, shades[:0, :-1])
    for batch in shades.split(8):
        inputs, outputs = lab.forward_stage(stage, batch[:, :-1], len(batch), no_rows)
        loss = F.cross_entropy(outputs.flatten(0, 1), batch[:, 1:].flatten()) if rank == last else None
        lab.backward_stage(inputs, outputs, loss)
        ties(tied, group)
        optimizer.step()
        optimizer.zero_grad()
        copies.append(None if tied is None else tied.detach().clone())
    return copies


def tables_of_one_process(shades: torch.Tensor) -> list[torch.Tensor]:
    parts, copies = nn.Sequential(*(lab().make_part(i) for i in range(4))), []
    parts[3].weight = parts[0].weight
    optimizer = torch.optim.SGD(parts.parameters(), lr=0.1, momentum=0.9)
    for batch in shades.split(8):
        optimizer.zero_grad()
        F.cross_entropy(parts(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()).backward()
        optimizer.step()
        copies.append(parts[0].weight.detach().clone())
    return copies


def test_copies_of_a_tied_weight_stay_equal_and_are_those_of_one_process():
    shades = (digits("train")[0][:40] * 16).long()
    right = tables_of_one_process(shades)
    for ranks in (2, 3, 4):
        by_rank = run(tied_steps, lab(), shades, lab().add_tied_gradients, ranks=ranks, record="messages").values
        for first, last, want in zip(by_rank[0], by_rank[-1], right, strict=True):
            assert torch.equal(first, last)
            torch.testing.assert_close(first, want, atol=1e-10, rtol=1e-10)


def test_copies_of_a_tied_weight_drift_apart_if_nobody_adds_their_gradients():
    shades = (digits("train")[0][:40] * 16).long()
    by_rank = run(tied_steps, lab(), shades, lambda weight, group: None, ranks=2, record="messages").values
    apart = [(first - last).abs().max().item() for first, last in zip(*by_rank)]
    assert 0.001 < apart[0] < apart[-1]


def test_partition_layers_finds_what_trying_all_cuts_finds():
    draw = random.Random(7)
    for _ in range(200):
        num_layers = draw.randint(1, 9)
        costs, num_stages = [draw.choice([0, 1, 2, 5, 9]) for _ in range(num_layers)], draw.randint(1, num_layers)
        best = min(largest(costs, cut) for cut in all_cuts(num_layers, num_stages))
        found = lab().partition_layers(costs, num_stages)
        assert largest(costs, found) == best
        assert [layer for stage in found for layer in stage] == list(range(num_layers)) and all(found)


def test_llama_3_is_cut_as_its_paper_says():
    table, layer = 128_256 * 16_384, 2 * 16_384**2 + 2 * 16_384 * 1_024 + 3 * 16_384 * 53_248
    cut = lab().partition_layers([table, *[layer] * 126, table], 16)
    assert [sum(0 < part < 127 for part in stage) for stage in cut] == [7, *[8] * 14, 7]


def test_the_head_of_the_smallest_gpt_2_costs_four_and_a_half_layers():
    assert head_in_layers(hidden=768, tokens=1024, vocabulary=50_257) == pytest.approx(50_257 / (12 * 768 + 2 * 1024))
    assert sum([50_257 * 768 + 1024 * 768, *[12 * 768**2 + 13 * 768] * 12, 2 * 768]) == 124_439_808


def test_pytorchs_schedule_with_one_micro_batch_gives_the_same_losses_and_sends_the_same_activations():
    runs = [run(f, 3, torch.float64, ranks=3, record="messages") for f in (lab().train, lab().train_torch)]
    mine, theirs = ([r.values[rank] for rank in range(3)] for r in runs)
    assert mine[-1][0] == pytest.approx(theirs[-1][0], abs=1e-10)
    for (_, a), (_, b) in zip(mine, theirs):
        torch.testing.assert_close([p.detach() for p in a], [p.detach() for p in b], atol=1e-10, rtol=1e-10)
    activations = [
        [[m.bytes for m in r.recording.messages(rank, "send") if m.dtype == "float64"] for rank in range(3)]
        for r in runs
    ]
    assert activations[0] == activations[1] == [[16_384] * 3, [16_384] * 6, [16_384] * 3]
