"""Mistakes in lab 02."""

from __future__ import annotations

from distlab.course.patches import Patch

_BROADCAST = "dist.broadcast(tensor.detach(), src=0)"
_TENSORS = "[*model.parameters(), *model.buffers()]"

_BUCKET = (
    f"tensors = {_TENSORS}\n"
    "    flat = torch.cat([tensor.detach().flatten() for tensor in tensors])\n"
    "    dist.broadcast(flat, src=0)\n"
    "    for tensor, piece in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):\n"
    "        tensor.data.copy_(piece.view_as(tensor))"
)

_REPLICATE = (
    Patch("kept", _BROADCAST, "dist.broadcast(tensor.detach().clone(), src=0)"),
    Patch("frozen", _TENSORS, "[*(p for p in model.parameters() if p.requires_grad), *model.buffers()]"),
    Patch("buffers", _TENSORS, "model.parameters()"),
    Patch("state-dict", _TENSORS, "model.state_dict().values()"),
    Patch("integers", _BROADCAST, f"tensor.is_floating_point() and {_BROADCAST}"),
    Patch("rounded", f"for tensor in {_TENSORS}:\n        {_BROADCAST}", _BUCKET),
    Patch(
        "times-zero",
        _BROADCAST,
        "tensor.data *= int(dist.get_rank() == 0); dist.all_reduce(tensor.data)",
    ),
    Patch("average", _BROADCAST, "dist.all_reduce(tensor.data); tensor.data /= dist.get_world_size()"),
    Patch("wrong-source", "src=0", "src=dist.get_world_size() - 1"),
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
    Patch("everything", _RANK_AND_WORLD, "0, 1"),
    Patch("same", _RANK_AND_WORLD, "0, dist.get_world_size()"),
    Patch("dropped", _PARTS, _slices("rank * size", "(rank + 1) * size")),
    Patch(
        "last-takes-rest",
        _PARTS,
        _slices("rank * size", "(len(y_B) if rank == world - 1 else (rank + 1) * size)"),
    ),
    Patch("blocks", _PARTS, _slices("rank * block", "(rank + 1) * block")),
    Patch(
        "strided",
        _PARTS,
        "return tuple(t[dist.get_rank() :: dist.get_world_size()] for t in (x_BD, y_B))",
    ),
    Patch("overlap", _PARTS, "return x_BD[rows.start : rows.stop + 1], y_B[rows.start : rows.stop + 1]"),
    Patch("labels", "y_B[rows.start : rows.stop]", "y_B"),
    Patch(
        "writes",
        _PARTS,
        "x_bD = x_BD[rows.start : rows.stop].clone(); x_BD += 1\n    return x_bD, y_B[rows.start : rows.stop]",
    ),
)

_BACKWARD = "loss.backward()"

_COMPUTE_GRADIENTS = (
    Patch("sum", " / max(len(y_b), 1)", ""),
    Patch("clears", _BACKWARD, "model.zero_grad(); loss.backward()"),
    Patch("frozen", _BACKWARD, "torch.autograd.grad(loss, list(model.parameters()))", fails="does not require grad"),
    Patch("hides-nan", ', reduction="sum") / max(len(y_b), 1)', ").nan_to_num()"),
    Patch("no-softmax", "F.cross_entropy", "F.nll_loss"),
    Patch("softmax-twice", "model(x_bD)", "model(x_bD).softmax(dim=-1)"),
    Patch("no-backward", _BACKWARD, "pass"),
    Patch("no-backward", _BACKWARD, "loss.backward(); model.zero_grad()"),
    Patch("nan", ', reduction="sum") / max(len(y_b), 1)', ")"),
    Patch("moves", _BACKWARD, "loss.backward(); torch.optim.SGD(model.parameters(), 0.1).step()"),
    Patch("attached", "loss.detach()", "loss"),
    Patch("float32-zero", "loss.detach()", "loss.detach() if len(y_b) else torch.tensor(0.0)"),
)

_TOTAL = "total = torch.tensor(num_rows)\n    dist.all_reduce(total)"
_ADDED = _TOTAL.replace("\n", "\n    ")
_SUM = "dist.all_reduce(parameter.grad)"
_WEIGHTED = f"parameter.grad *= num_rows\n        {_SUM}\n        parameter.grad /= total"

_AVERAGE_GRADIENTS = (
    Patch("sum", _WEIGHTED, _SUM),
    Patch("weighted-sum", "parameter.grad /= total", "pass"),
    Patch("halved", _WEIGHTED, f"{_SUM}; parameter.grad /= 2"),
    Patch("mean-of-means", _WEIGHTED, f"{_SUM}; parameter.grad /= dist.get_world_size()"),
    Patch("divided-twice", "/= total", "/= total * dist.get_world_size()"),
    Patch("by-ranks", "/= total", "/= dist.get_world_size()"),
    Patch("own-rows", "/= total", "/= max(num_rows, 1)"),
    Patch(
        "old-total",
        _TOTAL,
        f"if not hasattr(model, 'total'):\n        {_ADDED}\n        model.total = total\n    total = model.total",
    ),
    Patch("kept", _WEIGHTED, "dist.all_reduce(parameter.grad.clone())"),
    Patch("rank-0", _WEIGHTED, "dist.broadcast(parameter.grad, src=0)"),
    Patch("skips-none", "parameter.grad = torch.zeros_like(parameter)", "continue", fails=True),
    Patch(
        "leaves-idle",
        "total = torch.tensor(num_rows)",
        "if num_rows == 0:\n        return\n    total = torch.tensor(num_rows)",
        fails=True,
    ),
    Patch(
        "float32-zeros",
        "torch.zeros_like(parameter)",
        "torch.zeros(parameter.shape, dtype=torch.float16)",
        fails=True,
    ),
    Patch("none-raises", "parameter.grad = torch.zeros_like(parameter)", "pass", fails=True),
    Patch("frozen", "if not parameter.requires_grad:", "if False:"),
    Patch(
        "tied-twice",
        "in model.parameters():",
        "in [p for layer in model for p in layer.parameters()]:",
    ),
)

_TIMES_ZERO = (
    "for group in optimizer.param_groups:\n        for parameter in group['params']:\n            parameter.grad *= 0"
)

_UPDATE = (
    Patch("clears-first", "optimizer.step()", "optimizer.zero_grad(); optimizer.step()"),
    Patch("not-cleared", "optimizer.zero_grad()", "pass"),
    Patch(
        "first-group",
        "optimizer.zero_grad()",
        "for parameter in optimizer.param_groups[0]['params']:\n        parameter.grad = None",
    ),
    Patch("times-zero", "optimizer.zero_grad()", _TIMES_ZERO),
    Patch("twice", "optimizer.step()", "optimizer.step(); optimizer.step()"),
    Patch("only-rank-0", "optimizer.step()", "dist.get_rank() == 0 and optimizer.step()"),
)

_AVERAGE = "average_gradients(model, len(y_b))"
_LOSS = "total = loss * len(y_b)\n    dist.all_reduce(total)\n    return total.item() / len(y_B)"
_LOSS_SUM = "total = loss.clone()\n    dist.all_reduce(total)\n    return total.item()"

_TRAIN_STEP = (
    Patch("no-split", "split_batch(x_BD, y_B)", "x_BD, y_B"),
    Patch("no-forward", "compute_gradients(model, x_bD, y_b)", "torch.zeros((), dtype=x_BD.dtype)"),
    Patch(
        "float32-zero",
        "loss = compute_gradients(model, x_bD, y_b)",
        "loss = compute_gradients(model, x_bD, y_b) if len(y_b) else torch.tensor(0.0)",
        fails="different dtypes",
    ),
    Patch("no-step", "update(optimizer)", "pass"),
    Patch("no-average", _AVERAGE, "pass"),
    Patch("no-average", f"{_AVERAGE}\n    update(optimizer)", f"update(optimizer)\n    {_AVERAGE}"),
    Patch("mean-of-means", _AVERAGE, "average_gradients(model, len(y_B))"),
    Patch("replicates", "update(optimizer)", "update(optimizer); replicate(model)"),
    Patch("loss-again", _LOSS, "return F.cross_entropy(model(x_BD), y_B).item()"),
    Patch("loss-again", _LOSS, "return F.cross_entropy(model(x_bD), y_b).item()"),
    Patch("own-loss", "return total.item() / len(y_B)", "return loss.item()"),
    Patch("loss-of-means", _LOSS, f"{_LOSS_SUM} / dist.get_world_size()"),
    Patch("loss-sum", _LOSS, _LOSS_SUM),
    Patch("loss-rows", "return total.item() / len(y_B)", "return total.item()"),
    Patch("rounded", "total = loss * len(y_b)", "total = torch.tensor(loss.item() * len(y_b))"),
    Patch("tensor", "return total.item() / len(y_B)", "return total / len(y_B)"),
)

PATCHES = {
    "replicate": _REPLICATE,
    "split_batch": _SPLIT_BATCH,
    "compute_gradients": _COMPUTE_GRADIENTS,
    "average_gradients": _AVERAGE_GRADIENTS,
    "update": _UPDATE,
    "train_step": _TRAIN_STEP,
}
