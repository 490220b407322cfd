"""Mistakes in lab 06."""

from __future__ import annotations

from distlab.course.patches import Patch

_MINE = "mine = my_rows(num_layers, dist.get_rank(), dist.get_world_size())"
_BUILD = "return nn.Sequential(*(make_layer(i) for i in mine))"


def _from_to(start: str, stop: str) -> str:
    return (
        "rank, world = dist.get_rank(), dist.get_world_size()\n"
        "    size, block = num_layers // world, -(-num_layers // world)\n"
        f"    mine = range(num_layers)[{start} : {stop}]"
    )


_MAKE_STAGE = (
    Patch("everything", _MINE, "mine = range(num_layers)"),
    Patch("builds-all", _BUILD, "return nn.Sequential(*map(make_layer, range(num_layers)))[mine.start : mine.stop]"),
    Patch("strided", _MINE, "mine = range(dist.get_rank(), num_layers, dist.get_world_size())"),
    Patch("backwards", "for i in mine", "for i in reversed(mine)"),
    Patch("last-first", "dist.get_rank(), ", "dist.get_world_size() - 1 - dist.get_rank(), "),
    Patch("dropped", _MINE, _from_to("rank * size", "(rank + 1) * size")),
    Patch("last-takes-rest", _MINE, _from_to("rank * size", "num_layers if rank == world - 1 else (rank + 1) * size")),
    Patch("short-first", _MINE, _from_to("rank * num_layers // world", "(rank + 1) * num_layers // world")),
    Patch("from-zero", "for i in mine", "for i in range(len(mine))"),
    Patch("blocks", _MINE, _from_to("rank * block", "(rank + 1) * block")),
    Patch("list", _BUILD, "return [make_layer(i) for i in mine]"),
    Patch("list", _BUILD, "return nn.ModuleList(make_layer(i) for i in mine)"),
)

_SEND = "dist.send(h_BD.detach().contiguous(), to)"

_SEND_ACTIVATION = (
    Patch("scattered", ".contiguous()", "", fails="be contiguous"),
    Patch("memory", ".contiguous()", ".as_strided(h_BD.shape, torch.empty(h_BD.shape).stride())"),
    Patch("shape-too", _SEND, f"dist.send(torch.tensor(h_BD.shape), to); {_SEND}", fails="int64"),
    Patch("collective", _SEND, "dist.broadcast(h_BD.detach().contiguous(), dist.get_rank())", fails="broadcast"),
    Patch("by-rows", _SEND, "[dist.send(row.detach().contiguous(), to) for row in h_BD]", fails="sends float"),
    Patch("dtype", ".contiguous()", ".contiguous().float()", fails="sends float"),
    Patch("dtype", ".contiguous()", ".contiguous().double()", fails="sends float"),
    Patch("cuts", _SEND, f"h_BD.detach_(); {_SEND}"),
    Patch("next", ".contiguous(), to)", ".contiguous(), dist.get_rank() + 1)", fails="send expects"),
)

_MEMORY = "h_BD = no_rows_0D.new_empty(num_rows, *no_rows_0D.shape[1:])"
_RETURN = "return h_BD.requires_grad_()"
_RECV = "dist.recv(h_BD, source)"

_RECV_ACTIVATION = (
    Patch("no-grad", ".requires_grad_()", ""),
    Patch("no-leaf", _RETURN, "return h_BD.requires_grad_().clone()"),
    Patch("dtype", "no_rows_0D.new_empty(num_rows", "torch.empty(num_rows", fails="receives float"),
    Patch(
        "dtype",
        _MEMORY,
        "h_BD = torch.empty(num_rows, *no_rows_0D.shape[1:], dtype=torch.float64)",
        fails="receives float",
    ),
    Patch("no-rows", _MEMORY, "h_BD = torch.empty_like(no_rows_0D)", fails="receives float"),
    Patch("one-axis", "*no_rows_0D.shape[1:]", "no_rows_0D.shape[1]", fails="receives float"),
    Patch("one-axis", _MEMORY, "_, D = no_rows_0D.shape; h_BD = no_rows_0D.new_empty(num_rows, D)", fails="unpack"),
    Patch("any-rank", _RECV, "dist.recv(h_BD)"),
    Patch("rank-before", _RECV, "dist.recv(h_BD, dist.get_rank() - 1)", fails="recv expects"),
    Patch("not-received", f"    {_RECV}\n", "", fails="without receiving"),
    Patch("not-received", _RECV, "dist.recv(h_BD.clone(), source); h_BD.zero_()"),
    Patch("resizes", "new_empty(", "resize_("),
    Patch(
        "reuses",
        _MEMORY,
        "memory = no_rows_0D.new_empty(num_rows, *no_rows_0D.shape[1:])\n"
        "    h_BD = recv_activation.__dict__.setdefault(str(num_rows), memory)",
    ),
    Patch("returns-nothing", f"{_RECV}\n    {_RETURN}", "return dist.recv(h_BD, source)"),
    Patch("returns-nothing", f"\n    {_RETURN}", "; h_BD.requires_grad_()"),
)

_INPUTS = "inputs = x_BD if rank == 0 else recv_activation(no_rows_0D, num_rows, rank - 1)"
_OUTPUTS = "outputs = stage(inputs)"
_SENDS = "if rank < last:\n        send_activation(outputs, rank + 1)"
_ASKS = "inputs.requires_grad_()"

_FORWARD_STAGE = (
    Patch("pixels", f"{_INPUTS}\n    {_OUTPUTS}\n    {_SENDS}", f"inputs = x_BD\n    {_OUTPUTS}"),
    Patch("sends-inputs", "send_activation(outputs,", "send_activation(inputs,"),
    Patch("ran-on-batch", _OUTPUTS, "outputs = stage(x_BD)"),
    Patch("not-received", _INPUTS, "inputs = x_BD", fails="without receiving"),
    Patch("two-ranks", "num_rows, rank - 1)", "num_rows, 0)", fails="wrong peer"),
    Patch("two-ranks", "rank + 1)", "last)", fails="circle"),
    Patch("len-of-batch", "num_rows, rank - 1)", "len(x_BD), rank - 1)", fails="NoneType"),
    Patch("asks", _OUTPUTS, f"{_ASKS} if inputs.is_floating_point() else 0; {_OUTPUTS}"),
    Patch("asks", _OUTPUTS, f"inputs = inputs if rank else inputs * 1; {_ASKS}; {_OUTPUTS}"),
    Patch("asks", _OUTPUTS, f"rank or inputs.is_floating_point() or {_ASKS}; {_OUTPUTS}", fails="can require"),
    Patch("swapped", "return inputs, outputs", "return outputs, inputs"),
    Patch("runs-again", _SENDS, f"{_SENDS}\n    {_OUTPUTS}"),
    Patch("no-graph", _OUTPUTS, f"with torch.no_grad(): {_OUTPUTS}"),
    Patch("no-graph", "return inputs, outputs", "return inputs, outputs.detach()"),
    Patch("other-inputs", _OUTPUTS, "outputs = stage(inputs.detach())"),
    Patch("outputs-only", "return inputs, outputs", "return outputs"),
    Patch("last-sends", "if rank < last:", "if True:", fails="send expects"),
    Patch("first-receives", "x_BD if rank == 0 else ", "", fails="recv expects"),
    Patch("wrong-way", "rank + 1)", "rank - 1)", fails="send expects"),
    Patch("ring", _SENDS, "send_activation(outputs, (rank + 1) % (last + 1))", fails="without receiving"),
    Patch("in-vain", "if rank < last:", "if False:", fails="without sending"),
    Patch(
        "in-vain",
        _OUTPUTS,
        f"{_OUTPUTS}\n    if rank: recv_activation(no_rows_0D, num_rows, rank - 1)",
        fails="without sending",
    ),
)

_START = "torch.autograd.backward(outputs, gradient)"
_OWN = f"gradient = outputs.new_empty(outputs.shape)\n        dist.recv(gradient, rank + 1)\n        {_START}"
_NEW = "outputs.new_empty(outputs.shape)"
_BACK = "if rank > 0:\n        send_activation(inputs.grad, rank - 1)"

_BACKWARD_STAGE = (
    Patch("ones", _START, "torch.autograd.backward(outputs, torch.ones_like(outputs))"),
    Patch("last-only", f"else:\n        {_OWN}\n    {_BACK}", ""),
    Patch("divided", "loss.backward()", "(loss / (last + 1)).backward()"),
    Patch("again", "loss.backward()", "loss.backward(retain_graph=True); loss.backward()"),
    Patch(
        "of-outputs",
        f"loss.backward()\n    else:\n        {_OWN}\n    {_BACK}",
        f"outputs.retain_grad(); loss.backward(); gradient = outputs.grad\n    else:\n        {_OWN}\n"
        "    if rank > 0:\n        send_activation(gradient, rank - 1)",
    ),
    Patch("activation", "send_activation(inputs.grad,", "send_activation(inputs,"),
    Patch("strided", _NEW, "torch.empty_like(outputs)", fails="be contiguous"),
    Patch("dtype", _NEW, "torch.empty(outputs.shape)", fails="receives float"),
    Patch("dtype", _NEW, "torch.empty(outputs.shape, dtype=torch.float64)", fails="receives float"),
    Patch("of-inputs", _NEW, "torch.empty_like(inputs)", fails="receives float"),
    Patch("two-ranks", "send_activation(inputs.grad, rank - 1)", "send_activation(inputs.grad, 0)", fails="circle"),
    Patch("two-ranks", "dist.recv(gradient, rank + 1)", "dist.recv(gradient, last)", fails="wrong peer"),
    Patch("handed-on", "(inputs.grad,", "(inputs.grad if rank == last else gradient,"),
    Patch("scalar", _START, "outputs.backward()", fails="scalar outputs"),
    Patch("loss-everywhere", "if rank == last:", "if True:", fails="NoneType"),
    Patch("no-gradient-yet", _BACK, "send_activation(inputs.grad, rank - 1)", fails="NoneType"),
    Patch("first-sends", _BACK, "send_activation(inputs, rank - 1)", fails="send expects"),
    Patch("wrong-way", "dist.recv(gradient, rank + 1)", "dist.recv(gradient, rank - 1)", fails="recv expects"),
    Patch("never-sends", "if rank > 0:", "if False:", fails="without sending"),
    Patch(
        "waits-for-each-other",
        "if rank == last:",
        "dist.recv(torch.empty_like(outputs), (rank + 1) % (last + 1))\n    if rank == last:",
        fails="to receive from the",
    ),
)

_STEP = "optimizer.step()"
_CLEAR = "optimizer.zero_grad()"
_LOSS = "F.cross_entropy(outputs, y_B)"
_TOLD = "return loss.item() if is_last else None"
_BACKWARD = "backward_stage(inputs, outputs, loss)"

_PARTITIONED_STEP = (
    Patch("no-step", _STEP, ""),
    Patch("last-steps", _STEP, f"is_last and {_STEP}"),
    Patch("no-clear", _CLEAR, ""),
    Patch("one-clears", _CLEAR, f"is_last and {_CLEAR}"),
    Patch("one-clears", _CLEAR, f"dist.get_rank() == 0 and {_CLEAR}"),
    Patch(
        "early", f"{_BACKWARD}\n    {_STEP}\n    {_CLEAR}", f"{_STEP}\n    {_CLEAR}\n    {_BACKWARD}", fails="inplace"
    ),
    Patch("cleared", _STEP, f"{_CLEAR}; {_STEP}"),
    Patch("softmax", _LOSS, "F.cross_entropy(outputs.softmax(1), y_B)"),
    Patch("len-of-batch", "len(y_B)", "len(x_BD)", fails="NoneType"),
    Patch("fixed-rows", "len(y_B)", "32", fails=True),
    Patch("last-only", _BACKWARD, "is_last and loss.backward()"),
    Patch("sum", _LOSS, "F.cross_entropy(outputs, y_B, reduction='sum')"),
    Patch("tensor", "loss.item()", "loss"),
    Patch("truth", _TOLD, "return loss.item() if loss else None"),
    Patch(
        "told",
        _TOLD,
        "loss = loss.detach() if is_last else torch.zeros((), dtype=outputs.dtype)\n"
        "    dist.broadcast(loss, dist.get_world_size() - 1)\n    return loss.item()",
    ),
    Patch("loss-everywhere", _TOLD, "return F.cross_entropy(outputs, y_B).item()"),
)

_ANSWER = "return best[len(costs)][1]"
_GREEDY = """ends, share = [], sum(costs) / num_stages
    for stage in range(1, num_stages):
        start = ends[-1] if ends else 0
        end, most = start + 1, len(costs) - (num_stages - stage) * {reserves}
        while end < most and sum(costs[start : end + {before}]) < share + 1e-9 * {before}:
            end += 1
        if end < len(costs):
            ends.append(end)
    return [range(a, b) for a, b in zip([0, *ends], [*ends, len(costs)])]"""
_BISECTION = """def fill(limit):
        starts = [0]
        for i in range(1, len(costs)):
            if sum(costs[starts[-1] : i + 1]) > limit or len(costs) - i <= num_stages - len(starts):
                starts.append(i)
        return [range(a, b) for a, b in zip(starts, [*starts[1:], len(costs)])]
    def fits(limit):
        return len(fill(limit)) <= num_stages and max(sum(costs[s.start : s.stop]) for s in fill(limit)) <= limit
    return fill(next(limit for limit in range(int(max(costs)), int(sum(costs)) + 2) if fits(limit)))"""

_PARTITION_LAYERS = (
    Patch("by-count", _ANSWER, "return [my_rows(len(costs), s, num_stages) for s in range(num_stages)]"),
    *(Patch("greedy", _ANSWER, _GREEDY.format(reserves=r, before=b)) for r in (0, 1) for b in (0, 1)),
    Patch("whole-numbers", _ANSWER, _BISECTION),
)

_SUM = "dist.all_reduce(weight.grad, group=group)"
_NOBODY = "if weight is None:\n        return"
_ZEROS = "if weight.grad is None:\n        weight.grad = torch.zeros_like(weight)"

_ADD_TIED_GRADIENTS = (
    Patch("kept", _SUM, "pass"),
    Patch("mean", _SUM, f"{_SUM}; weight.grad /= dist.get_world_size(group)"),
    Patch("mean", _SUM, f"{_SUM}; weight.grad /= dist.get_world_size()"),
    Patch(
        "one-side",
        _SUM,
        f"mine = weight.grad.clone(); {_SUM}\n    weight.grad = weight.grad if dist.get_rank() == 0 else mine",
    ),
    Patch("one-side", _SUM, "dist.reduce(weight.grad, group_dst=0, group=group)"),
    Patch("first-copied", _SUM, "dist.broadcast(weight.grad, group_src=0, group=group)"),
    Patch("weights", _SUM, f"{_SUM}; dist.all_reduce(weight.data, group=group)"),
    Patch("outside", "        return", "        return dist.all_reduce(torch.zeros(1), group=group)"),
    Patch("everyone", ", group=group)", ")", fails="never joined"),
    Patch("none", _NOBODY, "", fails="NoneType"),
    Patch(
        "none", _NOBODY, "if dist.get_rank() not in (0, dist.get_world_size() - 1):\n        return", fails="NoneType"
    ),
    Patch("none-raises", _ZEROS, "", fails=True),
    Patch("none-raises", _ZEROS, "if weight.grad is None:\n        return", fails=True),
)

PATCHES = {
    "make_stage": _MAKE_STAGE,
    "send_activation": _SEND_ACTIVATION,
    "recv_activation": _RECV_ACTIVATION,
    "forward_stage": _FORWARD_STAGE,
    "backward_stage": _BACKWARD_STAGE,
    "partitioned_step": _PARTITIONED_STEP,
    "partition_layers": _PARTITION_LAYERS,
    "add_tied_gradients": _ADD_TIED_GRADIENTS,
}
