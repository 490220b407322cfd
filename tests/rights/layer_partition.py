"""Right answers in other styles for lab 06."""

from __future__ import annotations

from tests.rights import Right

_STAGE = """mine = my_rows(num_layers, dist.get_rank(), dist.get_world_size())
    return nn.Sequential(*(make_layer(i) for i in mine))"""
_SEND = "dist.send(h_BD.detach().contiguous(), to)"
_RECV = """h_BD = no_rows_0D.new_empty(num_rows, *no_rows_0D.shape[1:])
    dist.recv(h_BD, source)
    return h_BD.requires_grad_()"""
_FORWARD = """inputs = x_BD if rank == 0 else recv_activation(no_rows_0D, num_rows, rank - 1)
    outputs = stage(inputs)
    if rank < last:
        send_activation(outputs, rank + 1)
    return inputs, outputs"""
_BACKWARD = """if rank == last:
        loss.backward()
    else:
        gradient = outputs.new_empty(outputs.shape)
        dist.recv(gradient, rank + 1)
        torch.autograd.backward(outputs, gradient)
    if rank > 0:
        send_activation(inputs.grad, rank - 1)"""
_STEP = """loss = F.cross_entropy(outputs, y_B) if is_last else None
    backward_stage(inputs, outputs, loss)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item() if is_last else None"""
_SUM = "dist.all_reduce(weight.grad, group=group)"
_ANSWER = "return best[len(costs)][1]"

RIGHTS = (
    Right(
        "make_stage",
        _STAGE,
        "size, longer = divmod(num_layers, dist.get_world_size())\n"
        "    rank, stage = dist.get_rank(), nn.Sequential()\n"
        "    first = rank * size + min(rank, longer)\n"
        "    for i in range(first, first + size + (rank < longer)):\n"
        "        stage.add_module(f'layer {i}', make_layer(i))\n"
        "    return stage",
    ),
    Right(
        "make_stage",
        _STAGE,
        "cuts = torch.arange(num_layers).tensor_split(dist.get_world_size())\n"
        "    return nn.Sequential(*map(make_layer, cuts[dist.get_rank()].tolist()))",
    ),
    Right("send_activation", _SEND, "dist.isend(h_BD.data.contiguous(), dst=to).wait()"),
    Right(
        "send_activation",
        _SEND,
        "copy = torch.empty(h_BD.shape, dtype=h_BD.dtype).copy_(h_BD.detach())\n"
        "    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, copy, to)]):\n        work.wait()",
    ),
    Right(
        "recv_activation",
        _RECV,
        "shape = (num_rows, *no_rows_0D.shape[1:])\n"
        "    h_BD = torch.zeros(shape, dtype=no_rows_0D.dtype, device=no_rows_0D.device, requires_grad=True)\n"
        "    dist.recv(h_BD.detach(), src=source)\n    return h_BD",
    ),
    Right(
        "recv_activation",
        _RECV,
        "h_BD = torch.stack([no_rows_0D.sum(0)] * num_rows).detach()\n"
        "    dist.irecv(h_BD, source).wait()\n    return nn.Parameter(h_BD)",
    ),
    Right(
        "forward_stage",
        _FORWARD,
        "inputs = outputs = recv_activation(no_rows_0D, num_rows, rank - 1) if rank else x_BD\n"
        "    for layer in stage:\n        outputs = layer(outputs)\n"
        "    if rank + 1 < dist.get_world_size():\n        dist.send(outputs.detach().contiguous(), rank + 1)\n"
        "    return [inputs, outputs]",
    ),
    Right(
        "forward_stage",
        _FORWARD,
        "if rank == 0:\n        inputs = x_BD.detach()\n"
        "    else:\n        inputs = no_rows_0D.new_empty((num_rows, *no_rows_0D.shape[1:]))\n"
        "        dist.irecv(inputs, rank - 1).wait()\n        inputs.requires_grad = True\n"
        "    outputs = stage(inputs)\n    message = outputs.detach().clone(memory_format=torch.contiguous_format)\n"
        "    works = [dist.isend(message, rank + 1)] if rank != last else []\n"
        "    for work in works:\n        work.wait()\n    return inputs, outputs",
    ),
    Right(
        "backward_stage",
        _BACKWARD,
        "if loss is None:\n        gradient = recv_activation(outputs[:0], len(outputs), rank + 1)\n"
        "        outputs.backward(gradient.detach())\n"
        "    else:\n        loss.backward()\n    if inputs.requires_grad:\n        dist.send(inputs.grad, rank - 1)",
    ),
    Right(
        "backward_stage",
        _BACKWARD,
        "if rank != last:\n        gradient = torch.empty(outputs.shape, dtype=outputs.dtype, device=outputs.device)\n"
        "        dist.irecv(gradient, rank + 1).wait()\n        loss = (outputs * gradient).sum()\n"
        "    loss.backward()\n    if rank:\n        dist.isend(inputs.grad.contiguous(), rank - 1).wait()\n"
        "        inputs.grad = None",
    ),
    Right(
        "partitioned_step",
        _STEP,
        "optimizer.zero_grad()\n    loss = nn.CrossEntropyLoss()(outputs, y_B) if is_last else None\n"
        "    backward_stage(inputs, outputs, loss)\n    optimizer.step()\n    if is_last:\n        return float(loss)",
    ),
    Right(
        "partitioned_step",
        _STEP,
        "loss = -outputs.log_softmax(1)[torch.arange(len(y_B)), y_B].mean() if is_last else None\n"
        "    backward_stage(inputs, outputs, loss)\n    optimizer.step()\n"
        "    for parameter in stage.parameters():\n        parameter.grad = None\n"
        "    return loss.item() if loss is not None else None",
    ),
    Right(
        "partition_layers",
        _ANSWER,
        "from functools import lru_cache\n\n    @lru_cache(None)\n    def cut(n, stages):\n"
        "        if stages == 1:\n            return sum(costs[:n]), (range(n),)\n"
        "        ways = [(cut(i, stages - 1), i) for i in range(stages - 1, n)]\n"
        "        ways = [(max(most, sum(costs[i:n])), (*stages, range(i, n))) for (most, stages), i in ways]\n"
        "        return min(ways, key=lambda way: way[0])\n\n"
        "    return cut(len(costs), num_stages)[1]",
    ),
    Right(
        "add_tied_gradients",
        _SUM,
        "parts = [torch.empty_like(weight.grad) for _ in range(dist.get_world_size(group))]\n"
        "    dist.all_gather(parts, weight.grad, group=group)\n    weight.grad = torch.stack(parts).sum(0)",
    ),
    Right(
        "add_tied_gradients",
        _SUM,
        "total = weight.grad.clone()\n    dist.reduce(total, group_dst=0, group=group)\n"
        "    dist.broadcast(total, group_src=0, group=group)\n    weight.grad = total",
    ),
)
