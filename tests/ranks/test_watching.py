"""Ordinary code is recorded as it is, a learner's own like DDP, FSDP, DTensor and pipelining."""

from __future__ import annotations

import sys
from collections import Counter

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn

from distlab import RankError, run, span
from distlab.events import Compute, Done, MakeGroup, Memory, Message, Span, Wait
from distlab.machine.machines import a100_node
from distlab.machine.replay import replay

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def recorded(fn, *args, ranks=3, **options):
    return run(fn, *args, ranks=ranks, **options).recording


def messages(recording, rank: int = 0) -> Counter:
    return Counter((m.kind, m.bytes) for m in recording.messages(rank))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 4))


SIZE = (8 * 12 + 12 + 12 * 4 + 4) * 4


def test_a_message_carries_all_that_there_is_to_know():
    def one():
        dist.all_reduce(torch.ones(3, 2, dtype=torch.float64), op=dist.ReduceOp.MAX)

    recording = recorded(one)
    (message,) = recording.messages(1)
    assert (message.kind, message.shape, message.dtype, message.elements, message.bytes) == (
        "all_reduce",
        (3, 2),
        "float64",
        6,
        48,
    )
    assert (message.reduce_op, message.group, message.sequence, message.is_async) == ("max", 0, 1, False)
    assert recording.places[message.place].startswith("tests/ranks/test_watching.py, line")
    assert [type(e) for e in recording.ranks[1] if isinstance(e, Wait | Done)] == [Wait, Done]


def test_sends_know_their_peer_tag_and_number():
    def exchange():
        if dist.get_rank() == 0:
            for tag in (0, 0, 7):
                dist.send(torch.ones(2), dst=2, tag=tag)
        if dist.get_rank() == 2:
            for tag in (0, 0, 7):
                dist.recv(torch.ones(2), src=0, tag=tag)

    recording = recorded(exchange)
    assert [(m.kind, m.peer, m.tag, m.sequence) for m in recording.messages(0)] == [
        ("send", 2, 0, 1),
        ("send", 2, 0, 2),
        ("send", 2, 7, 1),
    ]
    assert [(m.kind, m.peer) for m in recording.messages(2)] == [("recv", 0)] * 3


def test_a_receive_from_anyone_learns_who_it_was():
    def anyone():
        if dist.get_rank() == 2:
            dist.send(torch.ones(1), dst=0)
        if dist.get_rank() == 0:
            return dist.recv(torch.ones(1))

    recording = recorded(anyone)
    assert [done.source for done in recording.events(Done, 0) if done.source is not None] == [2]


def test_who_it_was_is_a_rank_of_the_run_in_a_group_of_some_ranks_too():
    def anyone():
        group = dist.new_group([1, 2])
        if dist.get_rank() == 1:
            dist.send(torch.ones(1), 2, group=group)
        if dist.get_rank() == 2:
            return dist.recv(torch.ones(1), group=group)

    recording = recorded(anyone)
    assert [done.source for done in recording.events(Done, 2) if done.source is not None] == [1]
    assert [(arrow.source, arrow.target) for arrow in replay(recording, a100_node).arrows] == [(1, 2)]


def test_sub_groups_have_members_and_peers_are_ranks_of_the_world():
    def sub():
        group = dist.new_group([1, 2])
        if dist.get_rank():
            dist.broadcast(torch.ones(1), src=2, group=group)
            dist.send(torch.ones(1), 2, group=group) if dist.get_rank() == 1 else dist.recv(
                torch.ones(1), 1, group=group
            )

    recording = recorded(sub)
    broadcast, send = recording.messages(1)
    assert recording.groups[broadcast.group].members == (1, 2)
    assert broadcast.root == 2 and send.peer == 2
    assert len([e for e in recording.events(MakeGroup, 0) if recording.groups[e.group].members == (1, 2)]) == 2


def test_all_forms_of_collectives_are_seen():
    is_new = hasattr(dist, "all_gather_single")  # from torch 2.13 on
    into_one = dist.all_gather_single if is_new else dist.all_gather_into_tensor
    from_one = dist.reduce_scatter_single if is_new else dist.reduce_scatter_tensor

    def forms():
        n, r = dist.get_world_size(), dist.get_rank()
        dist.all_gather([torch.zeros(2) for _ in range(n)], torch.ones(2))
        into_one(torch.zeros(2 * n), torch.ones(2))
        dist.reduce_scatter(torch.zeros(2), [torch.ones(2)] * n)
        from_one(torch.zeros(2), torch.ones(2 * n))
        dist.all_to_all_single(torch.zeros(n), torch.ones(n))
        dist.gather(torch.ones(2), [torch.zeros(2) for _ in range(n)] if r == 0 else None, dst=0)
        dist.scatter(torch.zeros(2), [torch.zeros(2) for _ in range(n)] if r == 1 else None, src=1)
        dist.reduce(torch.ones(2), dst=1)
        dist.barrier()
        dist.monitored_barrier()
        dist.broadcast_object_list([{"a": 1}], src=0)

    recording = recorded(forms)
    kinds = [m.kind for m in recording.messages(0)]
    assert kinds[:10] == [
        "all_gather", "all_gather", "reduce_scatter", "reduce_scatter", "all_to_all",
        "gather", "scatter", "reduce", "barrier", "monitored_barrier",
    ]  # fmt: skip
    assert kinds[10:] == ["broadcast", "broadcast"]
    assert [m.bytes for m in recording.messages(0)][:8] == [24, 24, 24, 24, 12, 24, 24, 8]


def test_uneven_all_to_all_knows_its_parts():
    def uneven():
        splits = [1, 2, 3]
        rank = dist.get_rank()
        dist.all_to_all_single(torch.zeros(3 * splits[rank]), torch.ones(6), [splits[rank]] * 3, splits)

    assert recorded(uneven).messages(1)[0].parts == (1, 2, 3)


def test_sizes_that_are_tensors_are_taken_as_torch_takes_them():
    def counted():
        counts = torch.tensor([1, 2])
        x = torch.arange(3.0)
        y = torch.empty(2 * (dist.get_rank() + 1))
        dist.all_to_all_single(y, x, [counts[dist.get_rank()]] * 2, list(counts))
        return y.tolist()

    watched, unwatched = (run(counted, ranks=2, record=record) for record in (True, False))
    assert watched.values == unwatched.values == [[0, 0], [1, 2, 1, 2]]
    assert watched.recording.messages(0)[0].parts == (1, 2)


def test_async_work_is_waited_for_where_the_learner_waits():
    def later():
        work = dist.all_reduce(torch.ones(1), async_op=True)
        torch.ones(8, 8) @ torch.ones(8, 8)
        work.wait()

    history = [
        e
        for e in recorded(later).ranks[0]
        if isinstance(e, Message | Wait | Done | Compute) and not (isinstance(e, Compute) and not e.operators)
    ]
    assert [type(e).__name__ for e in history[-5:]][-4:] == ["Message", "Compute", "Wait", "Done"]
    assert history[-4].is_async and history[-3].flops == 2 * 8**3


def test_ddp_is_recorded_with_its_gradient_bytes():
    def train():
        model = nn.parallel.DistributedDataParallel(net())
        model(torch.ones(3, 8)).sum().backward()

    recording = recorded(train)
    assert messages(recording)["all_reduce", SIZE] == 1
    waits = [e for e in recording.events(Wait, 0) if e.when == "backward"]
    assert len(waits) == 1


def test_fully_shard_is_recorded_layer_by_layer():
    from torch.distributed.fsdp import fully_shard

    def train():
        model = net()
        for layer in (model[0], model[2]):
            fully_shard(layer)
        fully_shard(model)
        model(torch.ones(3, 8)).sum().backward()

    first, second = (8 * 12 + 12) * 4, (12 * 4 + 4 + 2) * 4
    counted = messages(recorded(train))
    assert counted["all_gather", first] == 2 and counted["reduce_scatter", first] == 1
    assert sum(n for (kind, _), n in counted.items() if kind == "all_gather") == 4 and second


def test_reduce_scatters_of_fsdp_are_waited_for_at_the_end_of_the_backward_pass():
    from torch.distributed.fsdp import fully_shard

    def train():
        model = net()
        fully_shard(model)
        model(torch.ones(3, 8)).sum().backward()

    recording = recorded(train)
    (scatter,) = recording.messages(0, "reduce_scatter")
    waits = [event for event in recording.events(Wait, 0) if event.id == scatter.id]
    assert [wait.when for wait in waits] == ["stream", "backward"]
    assert recording.events(Compute, 0)[-1].end > waits[0].start


def test_a_learners_own_reduce_scatter_in_a_backward_pass_is_waited_for_where_it_waits():
    def train():
        x = torch.ones(4, requires_grad=True)
        x.register_hook(lambda grad: dist.reduce_scatter(torch.zeros(2), list(grad.split(2))))
        x.sum().backward()

    assert [event.when for event in recorded(train, ranks=2).events(Wait, 0)] == ["now"]


def test_parallelize_module_is_recorded():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def forward():
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        model = parallelize_module(net(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        with span("forward"):
            model(torch.ones(3, 8))

    recording = recorded(forward)
    assert messages(recording)["all_reduce", 3 * 4 * 4] == 1


def test_pipelining_is_recorded_message_by_message():
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    def step():
        rank, size = dist.get_rank(), dist.get_world_size()
        stage = PipelineStage(nn.Linear(8, 8), rank, size, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, 4, loss_fn=lambda output, target: ((output - target) ** 2).mean())
        if rank == 0:
            schedule.step(torch.randn(8, 8))
        elif rank == size - 1:
            schedule.step(target=torch.zeros(8, 8), losses=[])
        else:
            schedule.step()

    recording = recorded(step)
    size = 2 * 8 * 4
    assert messages(recording, 1)["send", size] == messages(recording, 1)["recv", size] == 8
    assert messages(recording, 0)["send", size] == messages(recording, 2)["recv", size] == 4


def test_a_checkpoint_is_saved_and_recorded(tmp_path):
    import torch.distributed.checkpoint as checkpoint

    def save(path):
        checkpoint.save({"weight": torch.ones(4)}, checkpoint_id=path)

    assert recorded(save, str(tmp_path / "c")).messages(0)


def test_flops_equal_torchs_own_count():
    from torch.utils.flop_counter import FlopCounterMode

    def train():
        net()(torch.ones(3, 8)).sum().backward()

    with FlopCounterMode(display=False) as expected:
        train()
    assert recorded(train, ranks=1).flops(0) == expected.get_total_flops()


def test_attention_on_a_cpu_is_counted():
    def attend():
        q = torch.ones(2, 3, 16, 8)
        nn.functional.scaled_dot_product_attention(q, q, q)

    assert recorded(attend, ranks=1).flops(0) == 4 * 2 * 3 * 16 * 16 * 8


def test_views_cost_nothing_and_other_operators_count_bytes():
    def look():
        x = torch.ones(10)
        x.view(2, 5).t()
        return x + x

    (work,) = [e for e in recorded(look, ranks=1).events(Compute) if e.operators]
    assert work.operators == 2 and work.flops == 0 and work.bytes == 40 + 3 * 40


def test_spans_name_stretches_and_are_silent_outside_ranks():
    def work():
        with span("F", 3):
            torch.ones(2, 2) @ torch.ones(2, 2)

    names = [e.name for e in recorded(work, ranks=1).events(Span)]
    assert names == ["F3", ""]
    with span("outside"):
        pass
    with pytest.raises(TypeError, match="name must be a text"):
        with span(3):
            pass


def test_messages_only_counts_no_compute():
    def work():
        torch.ones(8, 8) @ torch.ones(8, 8)
        dist.all_reduce(torch.ones(1))

    recording = recorded(work, record="messages")
    assert recording.flops(0) == 0 and len(recording.messages(0)) == 1
    assert run(work, record=False).recording is None


def dropped_isend():
    """The learner lets the Work go while the message is under way."""
    if dist.get_rank() == 0:
        dist.isend(torch.ones(1_000_000), 1)
        dist.barrier()
    else:
        dist.barrier()
        x = torch.zeros(1_000_000)
        dist.recv(x, 0)
        return x.sum().item()


def kept_isend():
    if dist.get_rank() == 0:
        work = dist.isend(torch.ones(1000), 1)
        work.wait()
    else:
        x = torch.zeros(1000)
        dist.recv(x, 0)
        return x.sum().item()


def dropped_all_reduce():
    x = torch.ones(100)
    dist.all_reduce(x, async_op=True)
    dist.barrier()
    return x.sum().item()


def half_precision_average():
    x = torch.ones(4, dtype=torch.bfloat16) * dist.get_rank()
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    return x.tolist()


def outcome(fn, record):
    try:
        return run(fn, ranks=2, record=record, timeout=20).values
    except RankError:
        return "failed"


@pytest.mark.parametrize("fn", [dropped_isend, kept_isend, dropped_all_reduce, half_precision_average])
def test_a_watched_program_does_what_the_unwatched_one_does(fn):
    assert outcome(fn, True) == outcome(fn, "messages") == outcome(fn, False)


def test_recordings_are_capped_and_say_so(monkeypatch):
    monkeypatch.setattr("distlab.ranks.verdicts.listening.EVENT_LIMIT", 50)

    def many():
        for _ in range(40):
            dist.barrier()

    recording = recorded(many)
    assert sum(map(len, recording.ranks)) == 50 and recording.notes == ("cut after 50 events",)


def test_memory_is_seen_by_kind_where_spans_begin_and_end():
    def train():
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        optimizer = torch.optim.Adam(model.parameters())
        x = torch.ones(32, 64)
        with span("forward"):
            loss = model(x).sum()
        with span("backward"):
            loss.backward()
        with span("update"):
            optimizer.step()

    memory = recorded(train, ranks=2).events(Memory, 0)
    size = 4 * (64 * 64 + 64 + 64 * 10 + 10)
    assert [m.parameters for m in memory] == [size] * 6
    assert [m.gradients for m in memory] == [0, 0, 0, size, size, size]
    assert [m.optimizer for m in memory] == [0] * 5 + [2 * size]
    rows = 4 * 32 * 64
    assert memory[0].other == rows and memory[1].activations >= 2 * rows and memory[3].activations == 0


def test_looking_at_memory_does_not_run_a_checkpoint_again():
    from torch.utils.checkpoint import checkpoint

    def train():
        calls = []
        layer = nn.Linear(4, 4)

        def forward(x):
            calls.append(1)
            return layer(x).relu()

        with span("F"):
            loss = checkpoint(forward, torch.ones(2, 4, requires_grad=True), use_reentrant=False).sum()
        forward_calls = len(calls)
        loss.backward()
        return forward_calls, len(calls)

    assert run(train, ranks=1).values == [(1, 2)]
