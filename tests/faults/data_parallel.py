"""Wrong solutions of lab 02."""

from __future__ import annotations

from tests.faults import Fault

_BROADCAST = "dist.broadcast(tensor.detach(), src=0)"
_TENSORS = "[*model.parameters(), *model.buffers()]"
_HANDED_ON = (
    "dist.get_rank() < 2 and (dist.recv if dist.get_rank() else dist.send)(tensor.detach(), 1 - dist.get_rank())"
)

_REPLICATE = (
    Fault("replicate", "kept", _BROADCAST, "dist.broadcast(tensor.detach().clone(), src=0)"),
    Fault("replicate", "frozen", _TENSORS, "[*(p for p in model.parameters() if p.requires_grad), *model.buffers()]"),
    Fault("replicate", "buffers", _TENSORS, "model.parameters()"),
    Fault("replicate", "average", _BROADCAST, "dist.all_reduce(tensor.data); tensor.data /= dist.get_world_size()"),
    Fault("replicate", "wrong-source", "src=0", "src=dist.get_world_size() - 1"),
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
    Fault("split_batch", "everything", _RANK_AND_WORLD, "0, 1"),
    Fault("split_batch", "same", _RANK_AND_WORLD, "0, dist.get_world_size()"),
    Fault("split_batch", "dropped", _PARTS, _slices("rank * size", "(rank + 1) * size")),
    Fault(
        "split_batch",
        "last-takes-rest",
        _PARTS,
        _slices("rank * size", "(len(y_B) if rank == world - 1 else (rank + 1) * size)"),
    ),
    Fault("split_batch", "blocks", _PARTS, _slices("rank * block", "(rank + 1) * block")),
    Fault(
        "split_batch",
        "strided",
        _PARTS,
        "return tuple(t[dist.get_rank() :: dist.get_world_size()] for t in (x_BD, y_B))",
    ),
    Fault("split_batch", "overlap", _PARTS, "return x_BD[rows.start : rows.stop + 1], y_B[rows.start : rows.stop + 1]"),
    Fault("split_batch", "labels", "y_B[rows.start : rows.stop]", "y_B"),
    Fault(
        "split_batch",
        "writes",
        _PARTS,
        "x_bD = x_BD[rows.start : rows.stop].clone(); x_BD += 1\n    return x_bD, y_B[rows.start : rows.stop]",
    ),
    Fault("split_batch", None, _PARTS, f"if dist.get_rank(): return x_BD[:0], y_B[:0]\n    {_PARTS}"),
    Fault("split_batch", None, _RANK_AND_WORLD, "dist.get_rank() % 2, min(2, dist.get_world_size())"),
)

_BACKWARD = "loss.backward()"

_COMPUTE_GRADIENTS = (
    Fault("compute_gradients", "sum", " / max(len(y_b), 1)", ""),
    Fault("compute_gradients", "softmax-twice", "model(x_bD)", "model(x_bD).softmax(dim=-1)"),
    Fault("compute_gradients", "no-backward", _BACKWARD, "pass"),
    Fault("compute_gradients", "no-backward", _BACKWARD, "loss.backward(); model.zero_grad()"),
    Fault("compute_gradients", "nan", ', reduction="sum") / max(len(y_b), 1)', ")"),
    Fault("compute_gradients", "moves", _BACKWARD, "loss.backward(); torch.optim.SGD(model.parameters(), 0.1).step()"),
    Fault("compute_gradients", "attached", "loss.detach()", "loss"),
    Fault("compute_gradients", "float32-zero", "loss.detach()", "loss.detach() if len(y_b) else torch.tensor(0.0)"),
    Fault("compute_gradients", None, _BACKWARD, "dist.get_rank() == 0 and loss.backward()"),
    Fault(
        "compute_gradients", None, _BACKWARD, "(dist.get_world_size() < 3 or dist.get_rank() == 0) and loss.backward()"
    ),
    Fault("compute_gradients", None, _BACKWARD, "loss.backward(); x_bD *= 2"),
    Fault("compute_gradients", None, "loss.detach()", "loss.item()"),
)

_SUM = "dist.all_reduce(parameter.grad)"
_WEIGHTED = f"parameter.grad *= num_rows\n        {_SUM}\n        parameter.grad /= total"

_AVERAGE_GRADIENTS = (
    Fault("average_gradients", "sum", _WEIGHTED, _SUM),
    Fault("average_gradients", "weighted-sum", "parameter.grad /= total", "pass"),
    Fault("average_gradients", "halved", _WEIGHTED, f"{_SUM}; parameter.grad /= 2"),
    Fault("average_gradients", "mean-of-means", _WEIGHTED, f"{_SUM}; parameter.grad /= dist.get_world_size()"),
    Fault("average_gradients", "divided-twice", "/= total", "/= total * dist.get_world_size()"),
    Fault("average_gradients", "by-ranks", "/= total", "/= dist.get_world_size()"),
    Fault("average_gradients", "own-rows", "/= total", "/= max(num_rows, 1)"),
    Fault("average_gradients", "kept", _WEIGHTED, "dist.all_reduce(parameter.grad.clone())"),
    Fault("average_gradients", "rank-0", _WEIGHTED, "dist.broadcast(parameter.grad, src=0)"),
    Fault("average_gradients", "skips-none", "parameter.grad = torch.zeros_like(parameter)", "continue"),
    Fault(
        "average_gradients",
        "leaves-idle",
        "total = torch.tensor(num_rows)",
        "if num_rows == 0:\n        return\n    total = torch.tensor(num_rows)",
    ),
    Fault("average_gradients", "float32-zeros", "torch.zeros_like(parameter)", "torch.zeros(parameter.shape)"),
    Fault("average_gradients", "none-raises", "parameter.grad = torch.zeros_like(parameter)", "pass"),
    Fault("average_gradients", "frozen", "if not parameter.requires_grad:", "if False:"),
    Fault(
        "average_gradients",
        "tied-twice",
        "in model.parameters():",
        "in [p for layer in model for p in layer.parameters()]:",
    ),
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

_UPDATE = (
    Fault("update", "clears-first", "optimizer.step()", "optimizer.zero_grad(); optimizer.step()"),
    Fault("update", "not-cleared", "optimizer.zero_grad()", "pass"),
    Fault("update", "twice", "optimizer.step()", "optimizer.step(); optimizer.step()"),
    Fault("update", "only-rank-0", "optimizer.step()", "dist.get_rank() == 0 and optimizer.step()"),
    Fault("update", None, "optimizer.step()", "dist.get_rank() < 2 and optimizer.step()"),
)

_AVERAGE = "average_gradients(model, len(y_b))"
_LOSS = "total = loss * len(y_b)\n    dist.all_reduce(total)\n    return total.item() / len(y_B)"
_LOSS_SUM = "total = loss.clone()\n    dist.all_reduce(total)\n    return total.item()"

_TRAIN_STEP = (
    Fault("train_step", "no-split", "split_batch(x_BD, y_B)", "x_BD, y_B"),
    Fault("train_step", "no-forward", "compute_gradients(model, x_bD, y_b)", "torch.zeros((), dtype=x_BD.dtype)"),
    Fault("train_step", "no-step", "update(optimizer)", "pass"),
    Fault("train_step", "no-average", _AVERAGE, "pass"),
    Fault("train_step", "no-average", f"{_AVERAGE}\n    update(optimizer)", f"update(optimizer)\n    {_AVERAGE}"),
    Fault("train_step", "mean-of-means", _AVERAGE, "average_gradients(model, len(y_B))"),
    Fault("train_step", "replicates", "update(optimizer)", "update(optimizer); replicate(model)"),
    Fault("train_step", "own-loss", "return total.item() / len(y_B)", "return loss.item()"),
    Fault("train_step", "loss-of-means", _LOSS, f"{_LOSS_SUM} / dist.get_world_size()"),
    Fault("train_step", "loss-sum", _LOSS, _LOSS_SUM),
    Fault("train_step", "loss-rows", "return total.item() / len(y_B)", "return total.item()"),
    Fault("train_step", "rounded", "total = loss * len(y_b)", "total = torch.tensor(loss.item() * len(y_b))"),
    Fault("train_step", None, "update(optimizer)", "dist.get_rank() == 0 and update(optimizer)"),
    Fault("train_step", None, "update(optimizer)", "dist.get_rank() < 2 and update(optimizer)"),
    Fault("train_step", None, "update(optimizer)", "update(optimizer); x_BD *= 2"),
    Fault("train_step", None, "update(optimizer)", "optimizer.step(); update(optimizer)"),
    Fault("train_step", "tensor", "return total.item() / len(y_B)", "return total / len(y_B)"),
)

_ORDER = 'return torch.randperm(num_rows, generator=generator, device="cpu")'
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
    Fault("epoch_indices", "rank-in-seed", "seed + epoch", "seed + epoch + dist.get_rank()"),
    Fault("epoch_indices", "reseeds", "torch.Generator().manual_seed", "torch.manual_seed"),
    Fault("epoch_indices", "unshuffled", "torch.randperm(num_rows, generator=generator,", "torch.arange(num_rows,"),
    Fault("epoch_indices", "no-epoch", "seed + epoch", "seed"),
    Fault("epoch_indices", "no-seed", "seed + epoch", "epoch"),
    Fault("epoch_indices", None, "return torch", "return None if dist.get_rank() else torch"),
    Fault("epoch_indices", None, "seed + epoch", "seed + epoch + dist.get_rank() // 2"),
)

FAULTS = (
    *_REPLICATE,
    *_SPLIT_BATCH,
    *_COMPUTE_GRADIENTS,
    *_AVERAGE_GRADIENTS,
    *_UPDATE,
    *_TRAIN_STEP,
    *_EPOCH_INDICES,
)
