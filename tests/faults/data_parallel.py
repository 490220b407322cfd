"""Wrong solutions of lab 02."""

from __future__ import annotations

from tests.faults import Fault

_BROADCAST = "dist.broadcast(tensor.detach(), src=0)"
_TENSORS = "[*model.parameters(), *model.buffers()]"
_HANDED_ON = (
    "dist.get_rank() < 2 and (dist.recv if dist.get_rank() else dist.send)(tensor.detach(), 1 - dist.get_rank())"
)

_REPLICATE = (
    Fault("replicate", None, _BROADCAST, f"dist.get_rank() == 0 and {_BROADCAST}"),
    Fault("replicate", None, _BROADCAST, _HANDED_ON),
)

_RANK_AND_WORLD = "dist.get_rank(), dist.get_world_size()"
_PARTS = "return x_BD[rows.start : rows.stop], y_B[rows.start : rows.stop]"


def _slices(start: str, stop: str) -> str:
    return (
        "rank, world = dist.get_rank(), dist.get_world_size()\n"
        "    size, block = len(y_B) // world, -(-len(y_B) // world)\n"
        f"    return x_BD[{start} : {stop}], y_B[{start} : {stop}]"
    )


_SPLIT_BATCH = (
    Fault("split_batch", None, _PARTS, f"if dist.get_rank(): return x_BD[:0], y_B[:0]\n    {_PARTS}"),
    Fault("split_batch", None, _RANK_AND_WORLD, "dist.get_rank() % 2, min(2, dist.get_world_size())"),
)

_BACKWARD = "loss.backward()"

_COMPUTE_GRADIENTS = (
    Fault("compute_gradients", None, _BACKWARD, "dist.get_rank() == 0 and loss.backward()"),
    Fault(
        "compute_gradients", None, _BACKWARD, "(dist.get_world_size() < 3 or dist.get_rank() == 0) and loss.backward()"
    ),
    Fault("compute_gradients", None, _BACKWARD, "loss.backward(); x_bD *= 2"),
    Fault("compute_gradients", None, "loss.detach()", "loss.item()"),
)

_TOTAL = "total = torch.tensor(num_rows)\n    dist.all_reduce(total)"
_SUM = "dist.all_reduce(parameter.grad)"
_WEIGHTED = f"parameter.grad *= num_rows\n        {_SUM}\n        parameter.grad /= total"

_AVERAGE_GRADIENTS = (
    Fault(
        "average_gradients",
        None,
        _TOTAL,
        "totals = average_gradients.__dict__\n    if num_rows not in totals:\n"
        "        total = torch.tensor(num_rows)\n        dist.all_reduce(total)\n        totals[num_rows] = total\n"
        "    total = totals[num_rows]",
    ),
    Fault("average_gradients", None, _TOTAL, f"{_TOTAL}\n    num_rows, total = torch.tensor(num_rows / total), 1"),
    Fault("average_gradients", None, _SUM, "dist.reduce(parameter.grad, dst=0)"),
    Fault("average_gradients", None, _SUM, f"dist.get_rank() == 0 and {_SUM}"),
    Fault(
        "average_gradients",
        None,
        _SUM,
        "other = parameter.grad.clone()\n        dist.get_world_size() > 1 and dist.broadcast(other, 1)\n"
        "        parameter.grad += other",
    ),
)

_GROUPS = "for group in optimizer.param_groups:\n        for parameter in group['params']:\n            "

_UPDATE = (
    Fault("update", None, "optimizer.step()", "dist.get_rank() < 2 and optimizer.step()"),
    Fault(
        "update",
        "sends",
        "optimizer.zero_grad()",
        f"optimizer.zero_grad()\n    {_GROUPS}dist.broadcast(parameter.data, 0)",
    ),
    Fault(
        "update",
        None,
        "optimizer.step()",
        "for parameter in optimizer.param_groups[0]['params']:\n        parameter.data -= 0.1 * parameter.grad",
    ),
)

_AVERAGE = "average_gradients(model, len(y_b))"
_LOSS = "total = loss * len(y_b)\n    dist.all_reduce(total)\n    return total.item() / len(y_B)"
_LOSS_SUM = "total = loss.clone()\n    dist.all_reduce(total)\n    return total.item()"

_TRAIN_STEP = (
    Fault("train_step", None, "update(optimizer)", "dist.get_rank() == 0 and update(optimizer)"),
    Fault("train_step", None, "update(optimizer)", "dist.get_rank() < 2 and update(optimizer)"),
    Fault("train_step", None, "update(optimizer)", "update(optimizer); x_BD *= 2"),
    Fault("train_step", None, "update(optimizer)", "optimizer.step(); update(optimizer)"),
)

_ORDER = 'return torch.randperm(num_rows, generator=generator, device="cpu")'
_SEEDED, _OF_SEED = "torch.Generator().manual_seed(seed + epoch)", "torch.Generator().manual_seed(seed)"
_BODY = f"generator = {_SEEDED}\n    {_ORDER}"
_CHANGED = (".roll(epoch)", ".roll(-10 * epoch)", f".flip(0) if epoch == 1 else {_ORDER[7:]}")
_PADDED = (
    "order = torch.randperm(num_rows, generator=generator)\n"
    "    return torch.cat([order, order[: -num_rows % dist.get_world_size()]])"
)

_EPOCH_INDICES = (
    Fault("epoch_indices", "no-tensor", _ORDER, f"{_ORDER}.tolist()"),
    Fault("epoch_indices", "padded", _ORDER, _PADDED),
    Fault("epoch_indices", "own-share", _ORDER, f"{_ORDER}[dist.get_rank() :: dist.get_world_size()]"),
    Fault("epoch_indices", "repeats", "torch.randperm(num_rows,", "torch.randint(num_rows, (num_rows,),"),
    Fault("epoch_indices", "global-state", "generator=generator, ", ""),
    Fault("epoch_indices", "goes-on", _SEEDED, f"epoch_indices.__dict__.setdefault(seed, {_OF_SEED})"),
    Fault("epoch_indices", "hash", "seed + epoch", "hash(f'{seed}/{epoch}') % 2**63"),
    Fault("epoch_indices", "hash", "seed + epoch", "hash((str(seed), epoch)) % 2**63"),
    Fault("epoch_indices", "comes-back", "seed + epoch", "seed + epoch % 3"),
    *(Fault("epoch_indices", "related", _BODY, f"{_BODY.replace(_SEEDED, _OF_SEED)}{then}") for then in _CHANGED),
    Fault(
        "epoch_indices",
        "reseeds",
        _BODY,
        "import random\n    random.seed(seed + epoch)\n"
        "    return torch.tensor(random.sample(range(num_rows), num_rows))",
    ),
    Fault("epoch_indices", None, _BODY, f"if epoch > 1:\n        return None\n    {_BODY}"),
    Fault("epoch_indices", "global-state", "seed + epoch", "int(__import__('time').time()) + seed + epoch"),
    Fault("epoch_indices", "rank-in-seed", "seed + epoch", "seed + epoch + dist.get_rank()"),
    Fault("epoch_indices", "reseeds", "torch.Generator().manual_seed", "torch.manual_seed"),
    Fault("epoch_indices", "unshuffled", "torch.randperm(num_rows, generator=generator,", "torch.arange(num_rows,"),
    Fault("epoch_indices", "no-epoch", "seed + epoch", "seed"),
    Fault("epoch_indices", "no-seed", "seed + epoch", "epoch"),
    Fault("epoch_indices", None, "return torch", "return None if dist.get_rank() else torch"),
    Fault("epoch_indices", None, "seed + epoch", "seed + epoch + dist.get_rank() // 2"),
)

UNWRAPPED = {
    ("epoch_indices", "rounded to float32"): "what it gives are no floats",
    ("epoch_indices", "float64 only"): "it is given whole numbers, no tensors",
    ("epoch_indices", "changes what it is given"): "it is given whole numbers, which nobody can change",
}

FAULTS = (
    *_REPLICATE,
    *_SPLIT_BATCH,
    *_COMPUTE_GRADIENTS,
    *_AVERAGE_GRADIENTS,
    *_UPDATE,
    *_TRAIN_STEP,
    *_EPOCH_INDICES,
)
