"""Right answers in other styles for lab 02."""

from __future__ import annotations

from tests.rights import Right

_TENSORS = "[*model.parameters(), *model.buffers()]"
_SHARD = "return x_BD[rows.start : rows.stop], y_B[rows.start : rows.stop]"
_ROWS = "rows = my_rows(len(y_B), dist.get_rank(), dist.get_world_size())\n    " + _SHARD
_LOSS = 'loss = F.cross_entropy(model(x_bD), y_b, reduction="sum") / max(len(y_b), 1)'
_AVERAGE = """total = torch.tensor(num_rows)
    dist.all_reduce(total)
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad *= num_rows
        dist.all_reduce(parameter.grad)
        parameter.grad /= total"""
_TRAINED = """parameters = [p for p in model.parameters() if p.requires_grad]
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    """
_BUCKET = (
    _TRAINED
    + """flat = torch.cat([p.grad.flatten() for p in parameters] + [parameters[0].new_ones(1)]) * num_rows
    dist.all_reduce(flat)
    flat /= flat[-1].clone()
    for parameter, mean in zip(parameters, flat[:-1].split([p.numel() for p in parameters])):
        parameter.grad = mean.view_as(parameter).clone()"""
)
_HALVES = (
    _TRAINED
    + """world = dist.get_world_size()
    total = torch.tensor(num_rows)
    dist.all_reduce(total)
    flat = torch.cat([p.grad.flatten() for p in parameters]) * num_rows
    padded = F.pad(flat, (0, -len(flat) % world))
    own = torch.empty(len(padded) // world, dtype=flat.dtype)
    dist.reduce_scatter(own, list(padded.chunk(world)))
    parts = [torch.empty_like(own) for _ in range(world)]
    dist.all_gather(parts, own / total)
    for parameter, mean in zip(parameters, torch.cat(parts)[: len(flat)].split([p.numel() for p in parameters])):
        parameter.grad.copy_(mean.view_as(parameter))"""
)

RIGHTS = (
    Right("replicate", _TENSORS, "list(dict.fromkeys([*model.parameters(), *model.buffers()]))"),
    Right(
        "replicate",
        f"for tensor in {_TENSORS}:\n        dist.broadcast(tensor.detach(), src=0)",
        "works = [dist.broadcast(t.data, 0, async_op=True) for t in (*model.parameters(), *model.buffers())]\n"
        "    for work in works:\n        work.wait()",
    ),
    Right(
        "split_batch",
        _ROWS,
        "rank, world = dist.get_rank(), dist.get_world_size()\n"
        "    return x_BD.tensor_split(world)[rank], y_B.tensor_split(world)[rank]",
    ),
    Right(
        "split_batch", _SHARD, "index = torch.tensor(list(rows), dtype=torch.long)\n    return x_BD[index], y_B[index]"
    ),
    Right("split_batch", _SHARD, "return [x_BD[rows.start : rows.stop].clone(), y_B[list(rows)]]"),
    Right(
        "compute_gradients",
        _LOSS,
        "loss = F.cross_entropy(model(x_bD), y_b) if len(y_b) else model(x_bD).sum()",
    ),
    Right(
        "compute_gradients",
        _LOSS,
        "log_bC = model(x_bD).log_softmax(dim=1)\n"
        "    loss = -log_bC[torch.arange(len(y_b)), y_b].sum() / max(1, len(y_b))",
    ),
    Right("average_gradients", _AVERAGE, _BUCKET),
    Right("average_gradients", _AVERAGE, _HALVES),
    Right("update", "optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=False)"),
    Right(
        "update",
        "optimizer.zero_grad()",
        "for group in optimizer.param_groups:\n"
        "        for parameter in group['params']:\n            parameter.grad = None",
    ),
    Right(
        "train_step",
        "total = loss * len(y_b)\n    dist.all_reduce(total)\n    return total.item() / len(y_B)",
        "losses = [torch.empty_like(loss) for _ in range(dist.get_world_size())]\n"
        "    dist.all_gather(losses, loss * len(y_b))\n    return float(sum(losses) / len(y_B))",
    ),
    Right(
        "train_step",
        "total = loss * len(y_b)\n    dist.all_reduce(total)\n    return total.item() / len(y_B)",
        "total = torch.stack([loss * len(y_b), loss.new_tensor(len(y_b))])\n    dist.all_reduce(total)\n"
        "    return (total[0] / total[1]).item()",
    ),
    Right(
        "epoch_indices",
        "torch.Generator().manual_seed(seed + epoch)",
        "torch.Generator()\n    generator.manual_seed(1_000_003 * seed + epoch)",
    ),
    Right(
        "epoch_indices",
        'torch.randperm(num_rows, generator=generator, device="cpu")',
        "torch.rand(num_rows, generator=generator).argsort()",
    ),
)
