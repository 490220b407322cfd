"""Tensors that a backend would misread are refused, in words; what it reads rightly passes."""

from __future__ import annotations

import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from distlab import RankError, run

cloudpickle.register_pickle_by_value(sys.modules[__name__])
W = 3


def rank() -> int:
    return dist.get_rank()


def rows() -> torch.Tensor:
    """A 2 × 3 matrix of its own on each rank."""
    return torch.arange(6.0).reshape(2, 3) + 100 * rank()


def column() -> torch.Tensor:
    return torch.arange(12.0).reshape(4, 3)[:, 1]


# refused


def all_reduces_a_column():
    dist.all_reduce(column())


def all_reduces_every_other_element():
    dist.all_reduce(torch.ones(8)[::2])


def all_reduces_one_number_expanded():
    dist.all_reduce(torch.ones(1).expand(4))


def broadcasts_column_chunks():
    for chunk in torch.ones(4, 6).chunk(3, dim=1):
        dist.broadcast(chunk, 0)


def reduces_a_diagonal():
    dist.reduce(torch.eye(3).diagonal(), 0)


def scatters_column_chunks():
    chunks = list(torch.ones(4, 6).chunk(3, dim=1)) if rank() == 0 else None
    dist.scatter(torch.empty(4, 2), chunks, 0)


def scatters_into_a_column():
    dist.scatter(column(), [torch.ones(4) for _ in range(W)] if rank() == 0 else None, 0)


def exchanges_into_a_transposed_matrix():
    dist.all_to_all_single(torch.empty(2, 3).t(), torch.ones(3, 2))


def reduce_scatters_into_a_transposed_matrix():
    dist.reduce_scatter(torch.empty(2, 3).t(), [torch.ones(3, 2) for _ in range(W)])


@pytest.mark.parametrize(
    ("program", "kind", "remedy"),
    [
        (all_reduces_a_column, "all_reduce", "send y = x.contiguous()"),
        (all_reduces_every_other_element, "all_reduce", "send y = x.contiguous()"),
        (all_reduces_one_number_expanded, "all_reduce", "send y = x.contiguous()"),
        (broadcasts_column_chunks, "broadcast", "send y = x.contiguous()"),
        (reduces_a_diagonal, "reduce", "send y = x.contiguous()"),
        (scatters_column_chunks, "scatter", "send y = x.contiguous()"),
        (scatters_into_a_column, "scatter", "send y = x.contiguous()"),
        (exchanges_into_a_transposed_matrix, "all_to_all", "write into a new tensor y"),
        (reduce_scatters_into_a_transposed_matrix, "reduce_scatter", "write into a new tensor y"),
    ],
)
def test_what_the_backend_would_misread_is_refused_with_the_line_and_what_to_write(program, kind, remedy):
    with pytest.raises(RankError) as caught:
        run(program, ranks=W, device="cpu", record="messages")
    error = caught.value
    assert f"raised ValueError: {kind} got a tensor x whose elements do not lie in a row" in error.verdict
    assert remedy in error.verdict
    assert f"in {program.__name__}" in str(error)


def scatters_transposed_parts_into_a_row():
    dist.scatter(torch.empty(3, 2), [rows().t() for _ in range(W)] if rank() == 0 else None, 0)


def all_reduces_other_strides_on_rank_1():
    dist.all_reduce(torch.ones(3, 2) if rank() != 1 else torch.ones(2, 3).t())


def broadcasts_channels_last_from_rank_0():
    x = torch.ones(2, 3, 4, 4)
    dist.broadcast(x.contiguous(memory_format=torch.channels_last) if rank() == 0 else x, 0)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (
            all_reduces_other_strides_on_rank_1,
            "different strides in all_reduce #1: ranks 0 and 2 bring float32[3, 2] row by row, rank 1 brings "
            "float32[3, 2] with strides [1, 3]. The backend combines elements as they lie in memory: let every rank "
            "send x.contiguous(), and copy what comes back into x",
        ),
        (broadcasts_channels_last_from_rank_0, "rank 0 brings float32[2, 3, 4, 4] with strides [48, 1, 12, 3]"),
    ],
)
def test_strides_that_differ_between_ranks_are_named(program, words):
    with pytest.raises(RankError) as caught:
        run(program, ranks=W, device="cpu")
    assert words in caught.value.verdict


def test_parts_that_lie_otherwise_than_their_room_are_refused_on_the_root():
    with pytest.raises(RankError) as caught:
        run(scatters_transposed_parts_into_a_row, ranks=W, device="cpu")
    assert "scatter got tensors of which some lie in memory row by row and others do not" in caught.value.verdict


# one memory for several outputs


def all_gathers_into_one_tensor():
    dist.all_gather([torch.zeros(2)] * W, torch.ones(2))


def gathers_into_views_that_overlap():
    room = torch.zeros(4)
    dist.gather(torch.ones(2), [room[i : i + 2] for i in range(W)] if rank() == 0 else None, 0)


def exchanges_into_one_tensor():
    dist.all_to_all([torch.zeros(1)] * W, [torch.ones(1) for _ in range(W)])


@pytest.mark.parametrize(
    "program", [all_gathers_into_one_tensor, gathers_into_views_that_overlap, exchanges_into_one_tensor]
)
def test_one_memory_for_several_outputs_is_refused(program):
    with pytest.raises(RankError, match="got several outputs that share memory"):
        run(program, ranks=W, device="cpu", record="messages")


# right


def all_reduces_a_transposed_matrix():
    x = rows().t()
    dist.all_reduce(x)
    return torch.equal(x, (W * torch.arange(6.0).reshape(2, 3) + 300).t())


def scatters_transposed_parts_into_transposed_room():
    x = torch.empty(2, 3).t()
    dist.scatter(x, [torch.full((2, 3), float(r)).t() for r in range(W)] if rank() == 0 else None, 0)
    return torch.equal(x, torch.full((3, 2), float(rank())))


def all_gathers_into_columns():
    room = torch.zeros(4, W)
    dist.all_gather(list(room.unbind(1)), torch.full((4,), float(rank())))
    return torch.equal(room, torch.arange(float(W)).expand(4, W))


def all_gathers_a_column_into_parts_of_one_tensor():
    room = torch.zeros(W, 4)
    dist.all_gather(list(room), column() + rank())
    return torch.equal(room, column() + torch.arange(float(W))[:, None])


def all_reduces_a_column_of_one_row():
    x = torch.ones(1, 5)[:, 2]
    dist.all_reduce(x)
    return x.item() == W


def gathers_in_place():
    room = torch.zeros(W, 2)
    room[rank()] = rank()
    dist.all_gather_into_tensor(room, room[rank() : rank() + 1])
    return torch.equal(room, torch.arange(float(W))[:, None].expand(W, 2))


def coalesces_columns():
    x = torch.ones(3, 2)
    dist.all_reduce_coalesced([x[:, 0], x[:, 1]])
    return torch.equal(x, torch.full((3, 2), float(W)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "program",
    [
        all_reduces_a_transposed_matrix,
        scatters_transposed_parts_into_transposed_room,
        all_gathers_into_columns,
        all_gathers_a_column_into_parts_of_one_tensor,
        all_reduces_a_column_of_one_row,
        gathers_in_place,
        coalesces_columns,
    ],
)
def test_what_the_backend_reads_rightly_passes(program):
    assert run(program, ranks=W, device="cpu").values == [True] * W


# what a message writes counts for autograd


def receives_into_what_a_forward_used():
    x = torch.ones(2)
    weight = torch.ones(2, requires_grad=True)
    y = (weight * x).sum()
    dist.broadcast(x, 0)
    y.backward()


def sums_an_output_that_backward_needs():
    y = torch.sigmoid(torch.ones(2, requires_grad=True))
    dist.all_reduce(y.detach())
    y.sum().backward()


def receives_into_a_saved_buffer():
    x, weight = torch.ones(2), torch.ones(2, requires_grad=True)
    y = (weight * x).sum()
    if rank() == 0:
        dist.send(x, 1)
    if rank() == 1:
        dist.recv(x, 0)
    y.backward()


@pytest.mark.parametrize("record", [True, "messages"])
@pytest.mark.parametrize(
    "program", [receives_into_what_a_forward_used, sums_an_output_that_backward_needs, receives_into_a_saved_buffer]
)
def test_backward_after_a_message_wrote_into_what_it_needs_raises(program, record):
    with pytest.raises(RankError, match="modified by an inplace operation") as caught:
        run(program, ranks=2, device="cpu", record=record)
    assert "a message writes into its tensors in place" in str(caught.value)


def root_broadcasts_what_its_backward_needs():
    y = torch.sigmoid(torch.zeros(2, requires_grad=True)) if rank() == 0 else torch.empty(2)
    dist.broadcast(y.detach(), 0)
    if rank() == 0:
        y.sum().backward()


def sends_what_its_backward_needs():
    y = torch.sigmoid(torch.zeros(2, requires_grad=True))
    if rank() == 0:
        dist.send(y.detach(), 1)
    else:
        dist.recv(torch.empty(2), 0)
    y.sum().backward()


def sums_gradients_between_two_backwards():
    weight = torch.ones(2, requires_grad=True)
    for _ in range(2):
        (weight**2).sum().backward()
        dist.all_reduce(weight.grad)


@pytest.mark.parametrize(
    "program",
    [root_broadcasts_what_its_backward_needs, sends_what_its_backward_needs, sums_gradients_between_two_backwards],
)
def test_backward_after_a_message_that_wrote_nothing_it_needs_runs(program):
    run(program, ranks=2, device="cpu")
