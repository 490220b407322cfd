"""Programs that can never go on, in plain calls and inside frameworks: who waits for whom, and at which line."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import time

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from distlab import run
from tests.faults.runner import Cases

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cases = Cases()
LIMIT = {"timeout": 1}
UNSEEN = {"record": False}


def rank() -> int:
    return dist.get_rank()


def neighbours() -> tuple[int, int]:
    return (rank() - 1) % dist.get_world_size(), (rank() + 1) % dist.get_world_size()


@cases.fails("rank 1 returned and never joined barrier #2, in which ranks 0 and 2 wait", line="dist.barrier()")
def stops_early_on_its_own_loss():
    for step in range(3):
        if rank() == 1 and step == 1:
            break
        dist.barrier()


@cases.fails("different collectives at #1: rank 0 calls all_reduce, ranks 1 and 2 call barrier", line="dist.all_reduce")
def logs_on_rank_0_only():
    if rank() == 0:
        dist.all_reduce(torch.ones(1))
    dist.barrier()


@cases.fails("ranks 1 and 2 returned and never joined all_gather #", line="full_tensor()")
def saves_on_rank_0_only():
    from torch.distributed.fsdp import fully_shard

    model = nn.Linear(4, 4)
    fully_shard(model)
    if rank() == 0:
        print({name: tensor.full_tensor() for name, tensor in model.state_dict().items()})


@cases.fails("returned and never joined (all_gather|gather|broadcast)", line="dist.all_gather_object")
def gathers_objects_on_two_ranks_of_three():
    if rank() < 2:
        dist.all_gather_object([None] * 3, {"loss": 1.0})


@cases.fails("different (collectives|roots|shapes|dtypes)", line="dist.broadcast_object_list")
def broadcasts_an_object_to_ranks_that_reduce():
    if rank() == 0:
        dist.broadcast_object_list(["config"], src=0)
    else:
        dist.all_reduce(torch.ones(1))


@cases.fails("(?s)Expected to have finished reduction.*: unused.bias, unused.weight", line="model(torch.ones(2, 4))")
def leaves_a_parameter_out_of_the_loss():
    class TwoLayers(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.used(x)

    model = DistributedDataParallel(TwoLayers())
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()


@cases.fails("never joined all_reduce #|different", line="backward()")
def trains_on_uneven_batches():
    model = DistributedDataParallel(nn.Linear(4, 4))
    for _ in range(3 - (rank() == 2)):
        model(torch.ones(2, 4)).sum().backward()


@cases.fails("SyncBatchNorm", line="model(torch.ones(2, 4, 3))")
def synchronises_a_batch_norm_on_cpus():
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(4))
    model(torch.ones(2, 4, 3))


@cases.fails("raised RuntimeError: FSDP needs a non-CPU", line="What this means: this class refuses CPU tensors")
def wraps_in_the_first_fsdp_on_cpus():
    from torch.distributed.fsdp import FullyShardedDataParallel

    FullyShardedDataParallel(nn.Linear(2, 2))


@cases.fails("each wait to receive from the other", line="dist.recv", ranks=2)
def receives_first_in_an_autograd_function():
    class Swap(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = torch.empty_like(x)
            dist.recv(y, 1 - rank())
            dist.send(x, 1 - rank())
            return y

        @staticmethod
        def backward(ctx, grad):
            return grad

    Swap.apply(torch.ones(2, requires_grad=True))


@cases.fails("each wait to receive from the other", line="dist.recv", ranks=2)
def receives_first_in_the_backward_pass():
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda grad: dist.recv(torch.empty_like(grad), 1 - rank()))
    x.sum().backward()


@cases.fails("with tag 0, which receives from it with tag 1: the tags differ", line="dist.irecv")
def starts_messages_with_tags_that_differ():
    left, right = neighbours()
    works = [dist.isend(torch.ones(1), right), dist.irecv(torch.ones(1), left, tag=1)]
    for work in works:
        work.wait()


@cases.fails("the tags differ", line="dist.batch_isend_irecv", ranks=2)
def batches_messages_with_tags_that_differ():
    other = 1 - rank()
    operations = [
        dist.P2POp(dist.isend, torch.ones(1), other, tag=rank()),
        dist.P2POp(dist.irecv, torch.ones(1), other, tag=rank()),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


@cases.fails("rank 2 returned and never joined new_group", line="dist.new_group([0, 2])")
def makes_a_group_without_one_member():
    if rank() != 2:
        dist.new_group([0, 2]) if rank() == 0 else time.sleep(20)


@cases.fails("rank 0 waits in all_reduce #1 of group .* two groups of the same ranks", line="dist.all_reduce")
def reduces_in_two_groups_in_another_order():
    one, other = dist.new_group([0, 1, 2]), dist.new_group([0, 1, 2])
    for group in (one, other) if rank() else (other, one):
        dist.all_reduce(torch.ones(1), group=group)


@cases.fails("rank 1 returned and never joined monitored_barrier #1", line="dist.monitored_barrier()")
def misses_a_monitored_barrier():
    if rank() != 1:
        dist.monitored_barrier()


@cases.fails("rank 2 sends float32.2. to rank 0, which receives float64.2.: the dtypes differ")
def sends_another_dtype():
    if rank() == 2:
        dist.send(torch.ones(2), 0)
    if rank() == 0:
        dist.recv(torch.ones(2, dtype=torch.float64), 2)


@cases.fails("different shapes in broadcast #1", line="dist.broadcast")
def hides_its_error_from_itself():
    try:
        dist.broadcast(torch.ones(4 if rank() == 0 else 6), 0)
    except RuntimeError:
        return


@cases.fails("different dtypes in all_gather #1", line="dist.all_gather")
def gathers_what_another_dtype_brings():
    x = torch.ones(2, dtype=torch.float16 if rank() == 1 else torch.float32)
    dist.all_gather([torch.empty_like(x) for _ in range(3)], x)


@cases.fails("raised RuntimeError: .*invalid tensor size at index", line="dist.all_gather(parts")
def gathers_parts_of_uneven_length():
    parts = [torch.zeros(length) for length in (1, 2, 3)]
    dist.all_gather(parts, torch.ones(rank() + 1))


@cases.fails("raised RuntimeError: Cannot use ReduceOp.PREMUL_SUM with Gloo", line="dist.all_reduce")
def reduces_as_gloo_cannot():
    dist.all_reduce(torch.ones(1), op=dist._make_nccl_premul_sum(2.0))


@cases.fails("raised ValueError: send expects a rank of the group, from 0 to 2, got 7|rank 7", line="dist.send")
def sends_to_a_rank_that_does_not_exist():
    dist.send(torch.ones(1), 7)


@cases.fails("not finished after 1 s .*still busy", line="time.sleep(60)", settings=LIMIT)
def sleeps():
    time.sleep(60)


@cases.fails("not finished after 1 s", line="while True", settings=LIMIT)
def never_ends():
    while True:
        pass


@cases.fails("not finished after 1 s", line="lock.acquire()", settings=LIMIT)
def waits_for_a_lock_it_holds():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


@cases.fails("not finished after 1 s", line="time.sleep(60)", settings=LIMIT)
def catches_whatever_would_end_it():
    while True:
        try:
            time.sleep(60)
        except BaseException:  # noqa: BLE001 - what the case is about
            continue


@cases.fails("each wait to receive from the other", line="dist.recv", ranks=2)
def ignores_being_asked_to_end():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.recv(torch.ones(1), 1 - rank())


@cases.fails("not finished after 1 s", settings=LIMIT)
def holds_pythons_lock_in_native_code():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pause = ctypes.PyDLL(None).sleep
    for _ in range(100):
        pause(60)


@cases.fails(
    "returned while others still needed it: rank 0 lost its connection in recv", line="dist.recv", settings=UNSEEN
)
def hangs_where_nothing_is_recorded():
    if rank() == 0:
        dist.recv(torch.ones(1), 1)
    else:
        time.sleep(0.2)


@pytest.mark.parametrize("case", cases.each())
def test_who_waits_for_whom_is_named(case):
    case.try_it()


def test_slow_is_not_stuck_while_others_wait_in_a_barrier():
    def slow():
        if rank() == 1:
            until = time.monotonic() + 1.5  # five times as long as a deadlock is watched before it is called one
            while time.monotonic() < until:
                torch.ones(64, 64) @ torch.ones(64, 64)
        dist.barrier()
        return rank()

    assert run(slow, ranks=3, device="cpu").values == [0, 1, 2]


def test_uneven_batches_inside_join_finish():
    def train():
        from torch.distributed.algorithms.join import Join

        model = DistributedDataParallel(nn.Linear(4, 4))
        with Join([model]):
            for _ in range(3 - rank()):
                model(torch.ones(2, 4)).sum().backward()
        return rank()

    assert run(train, ranks=2, device="cpu").values == [0, 1]
