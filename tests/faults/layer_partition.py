"""Wrong solutions of lab 06."""

from __future__ import annotations

from tests.faults import Fault

_MINE = "mine = my_rows(num_layers, dist.get_rank(), dist.get_world_size())"
_BUILD = "return nn.Sequential(*(make_layer(i) for i in mine))"
_RANK = "rank, world = dist.get_rank(), dist.get_world_size()"

_MAKE_STAGE = (
    Fault("make_stage", "everything", _MINE, "mine = range(num_layers)"),
    Fault(
        "make_stage",
        "builds-all",
        _BUILD,
        "return nn.Sequential(*(make_layer(i) for i in range(num_layers)))[mine.start : mine.stop]",
    ),
    Fault("make_stage", "strided", _MINE, "mine = range(dist.get_rank(), num_layers, dist.get_world_size())"),
    Fault("make_stage", "backwards", "for i in mine", "for i in reversed(mine)"),
    Fault(
        "make_stage",
        "short-first",
        _MINE,
        f"{_RANK}; m = my_rows(num_layers, world - 1 - rank, world)\n"
        "    mine = range(num_layers - m.stop, num_layers - m.start)",
    ),
    Fault("make_stage", "from-zero", "for i in mine", "for i in range(len(mine))"),
    Fault("make_stage", "no-my-rows", _MINE, _MINE.replace("my_rows(", "eval('my_rows', {})(")),
    Fault("make_stage", "last-first", "dist.get_rank(), ", "dist.get_world_size() - 1 - dist.get_rank(), "),
    Fault(
        "make_stage",
        "dropped",
        _MINE,
        f"{_RANK}; size = num_layers // world; mine = range(rank * size, (rank + 1) * size)",
    ),
    Fault(
        "make_stage",
        "last-takes-rest",
        _MINE,
        f"{_RANK}; size = num_layers // world\n"
        "    mine = range(rank * size, num_layers if rank == world - 1 else (rank + 1) * size)",
    ),
    Fault(
        "make_stage",
        "blocks",
        _MINE,
        f"{_RANK}; block = -(-num_layers // world)\n    mine = range(num_layers)[rank * block : (rank + 1) * block]",
    ),
    Fault("make_stage", "list", _BUILD, "return [make_layer(i) for i in mine]"),
    Fault("make_stage", None, _MINE, "mine = range(num_layers if dist.get_rank() == 0 else 0)"),
    Fault("make_stage", None, _MINE, "mine = my_rows(num_layers, dist.get_rank() % 2, min(2, dist.get_world_size()))"),
)

_SEND = "dist.send(h_BD.detach().contiguous(), to)"

_SEND_ACTIVATION = (
    Fault("send_activation", "scattered", ".contiguous()", ""),
    Fault(
        "send_activation",
        "memory",
        ".detach().contiguous()",
        ".detach().as_strided(h_BD.shape, torch.empty(h_BD.shape).stride())",
    ),
    Fault("send_activation", "shape-too", _SEND, f"dist.send(torch.tensor(h_BD.shape), to); {_SEND}"),
    Fault("send_activation", "collective", _SEND, "dist.broadcast(h_BD.detach().contiguous(), dist.get_rank())"),
    Fault("send_activation", "by-rows", _SEND, "[dist.send(row.detach().contiguous(), to) for row in h_BD]"),
    Fault("send_activation", "float32", ".contiguous()", ".contiguous().float()"),
    Fault("send_activation", "cuts", _SEND, f"h_BD.detach_(); {_SEND}"),
    Fault("send_activation", "unwaited", "dist.send", "dist.isend"),
    Fault("send_activation", "next", ".contiguous(), to)", ".contiguous(), dist.get_rank() + 1)"),
    Fault("send_activation", None, _SEND, f"if dist.get_rank() == 0: {_SEND}"),
    Fault("send_activation", None, _SEND, f"if dist.get_rank() < 2: {_SEND}"),
    Fault("send_activation", None, _SEND, f"h_BD.data.mul_(2); {_SEND}"),
    Fault("send_activation", None, _SEND, "dist.send_object_list([h_BD.detach()], to)"),
)

_MEMORY = "h_BD = no_rows_0D.new_empty(num_rows, *no_rows_0D.shape[1:])"
_RETURN = "return h_BD.requires_grad_()"
_RECV = "dist.recv(h_BD, source)"

_RECV_ACTIVATION = (
    Fault("recv_activation", "no-grad", ".requires_grad_()", ""),
    Fault("recv_activation", "no-leaf", _RETURN, "return h_BD.requires_grad_().clone()"),
    Fault("recv_activation", "float32", "no_rows_0D.new_empty(num_rows", "torch.empty(num_rows"),
    Fault("recv_activation", "no-rows", _MEMORY, "h_BD = torch.empty_like(no_rows_0D)"),
    Fault("recv_activation", "one-axis", "*no_rows_0D.shape[1:]", "no_rows_0D.shape[-1]"),
    Fault("recv_activation", "one-axis", "*no_rows_0D.shape[1:]", "no_rows_0D.shape[1]"),
    Fault("recv_activation", "one-axis", _MEMORY, "_, D = no_rows_0D.shape; h_BD = no_rows_0D.new_empty(num_rows, D)"),
    Fault("recv_activation", "rank-before", _RECV, "dist.recv(h_BD, dist.get_rank() - 1)"),
    Fault("recv_activation", "not-received", f"    {_RECV}\n", ""),
    Fault("recv_activation", "resizes", "new_empty(", "resize_("),
    Fault(
        "recv_activation",
        "reuses",
        _MEMORY,
        "memory = no_rows_0D.new_empty(num_rows, *no_rows_0D.shape[1:])\n"
        "    h_BD = recv_activation.__dict__.setdefault(str(num_rows), memory)",
    ),
    Fault(
        "recv_activation",
        "not-received",
        _RECV,
        "dist.recv(h_BD.clone(), source); h_BD.zero_()",
    ),
    Fault("recv_activation", "returns-nothing", f"{_RECV}\n    {_RETURN}", "return dist.recv(h_BD, source)"),
    Fault("recv_activation", None, _RECV, f"if dist.get_rank() == 0: {_RECV}"),
    Fault("recv_activation", None, _RECV, f"if dist.get_world_size() < 3: {_RECV}\n    else: h_BD.zero_()"),
    Fault("recv_activation", None, _MEMORY, f"{_MEMORY}; no_rows_0D.resize_(1, *no_rows_0D.shape[1:])"),
)

_INPUTS = "inputs = x_BD if rank == 0 else recv_activation(no_rows_0D, num_rows, rank - 1)"
_OUTPUTS = "outputs = stage(inputs)"
_SENDS = "if rank < last:\n        send_activation(outputs, rank + 1)"
_LINE = "rank, last = dist.get_rank(), dist.get_world_size() - 1"

_FORWARD_STAGE = (
    Fault("forward_stage", "pixels", f"{_INPUTS}\n    {_OUTPUTS}\n    {_SENDS}", f"inputs = x_BD\n    {_OUTPUTS}"),
    Fault("forward_stage", "sends-inputs", "send_activation(outputs,", "send_activation(inputs,"),
    Fault("forward_stage", "ran-on-batch", _OUTPUTS, "outputs = stage(x_BD)"),
    Fault("forward_stage", "not-received", _INPUTS, "inputs = x_BD"),
    Fault(
        "forward_stage", "twice", _OUTPUTS, f"{_OUTPUTS}\n    if rank: recv_activation(no_rows_0D, num_rows, rank - 1)"
    ),
    Fault("forward_stage", "two-ranks", "num_rows, rank - 1)", "num_rows, 0)"),
    Fault("forward_stage", "two-ranks", "rank + 1)", "last)"),
    Fault("forward_stage", "len-of-batch", "num_rows, rank - 1)", "len(x_BD), rank - 1)"),
    Fault("forward_stage", "asks", _OUTPUTS, f"inputs.requires_grad_(); {_OUTPUTS}"),
    Fault(
        "forward_stage", "asks", _OUTPUTS, f"inputs = inputs if rank else inputs.clone().requires_grad_(); {_OUTPUTS}"
    ),
    Fault(
        "forward_stage",
        "asks",
        _OUTPUTS,
        f"if last == 3: inputs.requires_grad_()\n    {_OUTPUTS}",
    ),
    Fault("forward_stage", "swapped", "return inputs, outputs", "return outputs, inputs"),
    Fault("forward_stage", "no-graph", _OUTPUTS, f"with torch.no_grad(): {_OUTPUTS}"),
    Fault("forward_stage", "no-graph", "return inputs, outputs", "return inputs, outputs.detach()"),
    Fault("forward_stage", "other-inputs", _OUTPUTS, "outputs = stage(inputs.detach())"),
    Fault("forward_stage", "outputs-only", "return inputs, outputs", "return outputs"),
    Fault("forward_stage", "last-sends", "if rank < last:", "if True:"),
    Fault("forward_stage", "first-receives", "x_BD if rank == 0 else ", ""),
    Fault("forward_stage", "wrong-way", "rank + 1)", "rank - 1)"),
    Fault("forward_stage", "ring", _SENDS, "send_activation(outputs, (rank + 1) % (last + 1))"),
    Fault("forward_stage", "never-sends", "if rank < last:", "if False:"),
    Fault(
        "forward_stage",
        "messages",
        _SENDS,
        _SENDS + "\n        send_activation(outputs[:1], rank + 1)\n"
        "    if rank:\n        dist.recv(inputs.detach()[:1].clone(), rank - 1)",
    ),
    Fault("forward_stage", "collective", _SENDS, f"{_SENDS}\n    dist.barrier()"),
    Fault("forward_stage", None, _LINE, "rank, last = 0, 0"),
    Fault("forward_stage", None, _LINE, "rank, last = dist.get_rank(), 1"),
    Fault("forward_stage", None, _OUTPUTS, f"{_OUTPUTS}\n    if rank == 0: x_BD += 1"),
)

_GRADIENT = "gradient = outputs.new_empty(outputs.shape)"
_START = "torch.autograd.backward(outputs, gradient)"
_BACK = "if rank > 0:\n        send_activation(inputs.grad, rank - 1)"

_BACKWARD_STAGE = (
    Fault("backward_stage", "ones", _START, "torch.autograd.backward(outputs, torch.ones_like(outputs))"),
    Fault(
        "backward_stage",
        "last-only",
        f"else:\n        {_GRADIENT}\n        dist.recv(gradient, rank + 1)\n        {_START}\n    {_BACK}",
        "",
    ),
    Fault(
        "backward_stage",
        "divided",
        "loss.backward()",
        "(loss / (last + 1)).backward()",
    ),
    Fault("backward_stage", "again", "loss.backward()", "loss.backward(retain_graph=True); loss.backward()"),
    Fault(
        "backward_stage",
        "of-outputs",
        f"loss.backward()\n    else:\n        {_GRADIENT}\n        dist.recv(gradient, rank + 1)\n        {_START}\n"
        f"    {_BACK}",
        "outputs.retain_grad()\n"
        "        loss.backward()\n"
        "        gradient = outputs.grad\n"
        f"    else:\n        {_GRADIENT}\n        dist.recv(gradient, rank + 1)\n        {_START}\n"
        "    if rank > 0:\n        send_activation(gradient, rank - 1)",
    ),
    Fault("backward_stage", "activation", "send_activation(inputs.grad,", "send_activation(inputs,"),
    Fault("backward_stage", "strided", _GRADIENT, "gradient = torch.empty_like(outputs)"),
    Fault("backward_stage", "float32", _GRADIENT, "gradient = torch.empty(outputs.shape)"),
    Fault("backward_stage", "of-inputs", _GRADIENT, "gradient = torch.empty_like(inputs)"),
    Fault("backward_stage", "two-ranks", "send_activation(inputs.grad, rank - 1)", "send_activation(inputs.grad, 0)"),
    Fault("backward_stage", "two-ranks", "dist.recv(gradient, rank + 1)", "dist.recv(gradient, last)"),
    Fault(
        "backward_stage",
        "handed-on",
        "send_activation(inputs.grad,",
        "send_activation(inputs.grad if rank == last else gradient,",
    ),
    Fault("backward_stage", "scalar", _START, "outputs.backward()"),
    Fault("backward_stage", "loss-everywhere", "if rank == last:", "if True:"),
    Fault("backward_stage", "no-gradient-yet", _BACK, "send_activation(inputs.grad, rank - 1)"),
    Fault(
        "backward_stage",
        "first-sends",
        f"if rank > 0:\n        {'send_activation(inputs.grad, rank - 1)'}",
        "send_activation(inputs, rank - 1)",
    ),
    Fault("backward_stage", "wrong-way", "dist.recv(gradient, rank + 1)", "dist.recv(gradient, rank - 1)"),
    Fault("backward_stage", "never-sends", "if rank > 0:", "if False:"),
    Fault(
        "backward_stage",
        "waits-for-each-other",
        "if rank == last:",
        "dist.recv(torch.empty_like(outputs), (rank + 1) % (last + 1))\n    if rank == last:",
    ),
    Fault(
        "backward_stage",
        "messages",
        f"{_START}\n    {_BACK}",
        f"dist.recv(torch.empty(1), rank + 1)\n        {_START}\n    {_BACK}\n"
        "        dist.send(torch.ones(1), rank - 1)",
    ),
    Fault("backward_stage", "collective", _BACK, f"{_BACK}\n    dist.barrier()"),
    Fault("backward_stage", None, _LINE, "rank, last = 0, 0"),
    Fault("backward_stage", None, _LINE, "rank, last = dist.get_rank(), 1"),
    Fault("backward_stage", None, "loss.backward()", "loss.backward(); inputs.grad *= 2"),
)

_STEP = "optimizer.step()"
_CLEAR = "optimizer.zero_grad()"
_LOSS = "F.cross_entropy(outputs, y_B)"
_TOLD = "return loss.item() if is_last else None"

_PARTITIONED_STEP = (
    Fault("partitioned_step", "no-step", _STEP, ""),
    Fault("partitioned_step", "last-steps", _STEP, f"is_last and {_STEP}"),
    Fault("partitioned_step", "no-clear", _CLEAR, ""),
    Fault(
        "partitioned_step",
        "early",
        f"backward_stage(inputs, outputs, loss)\n    {_STEP}\n    {_CLEAR}",
        f"{_STEP}\n    {_CLEAR}\n    backward_stage(inputs, outputs, loss)",
    ),
    Fault("partitioned_step", "cleared", _STEP, f"{_CLEAR}; {_STEP}"),
    Fault("partitioned_step", "softmax", _LOSS, "F.cross_entropy(outputs.softmax(1), y_B)"),
    Fault("partitioned_step", "len-of-batch", "len(y_B)", "len(x_BD)"),
    Fault("partitioned_step", "fixed-rows", "len(y_B)", "32"),
    Fault("partitioned_step", "last-only", "backward_stage(inputs, outputs, loss)", "is_last and loss.backward()"),
    Fault("partitioned_step", "sum", _LOSS, "F.cross_entropy(outputs, y_B, reduction='sum')"),
    Fault("partitioned_step", "tensor", "loss.item()", "loss"),
    Fault(
        "partitioned_step",
        "told",
        _TOLD,
        "loss = loss.detach() if is_last else torch.zeros((), dtype=torch.float64)\n"
        "    dist.broadcast(loss, dist.get_world_size() - 1)\n"
        "    return loss.item()",
    ),
    Fault(
        "partitioned_step",
        "messages",
        "inputs, outputs = forward_stage(stage, x_BD, len(y_B), no_rows_0D)",
        "no_rows_0D = agree_on_shapes(stage, x_BD[:0])\n"
        "    inputs, outputs = forward_stage(stage, x_BD, len(y_B), no_rows_0D)",
    ),
    Fault("partitioned_step", "loss-everywhere", _TOLD, "return F.cross_entropy(outputs, y_B).item()"),
    Fault("partitioned_step", "fixed-rows", "len(y_B)", "4"),
    Fault("partitioned_step", "collective", _CLEAR, f"{_CLEAR}; dist.barrier()"),
    Fault("partitioned_step", None, "loss.item() if is_last", "loss.item() if dist.get_rank() == 1"),
    Fault("partitioned_step", None, _STEP, f"dist.get_rank() == 0 and {_STEP}"),
    Fault("partitioned_step", None, _CLEAR, f"{_CLEAR}; x_BD *= 2"),
)

_ANSWER = "return best[len(costs)][1]"
_START_OF_CUT = (
    "best = {0: (0, [])}  # best[n]: the largest stage of the first n layers, and their cut, with the stages so far"
)

_GREEDY = """ends, share = [], sum(costs) / num_stages
    for stage in range(1, num_stages):
        start = ends[-1] if ends else 0
        end = start + 1
        while end < len(costs) - (num_stages - stage) and sum(costs[start:end]) < share:
            end += 1
        ends.append(end)
    return [range(a, b) for a, b in zip([0, *ends], [*ends, len(costs)])]
    """

_BEFORE_THE_MEAN = """stages, start, filled, share = [], 0, 0, sum(costs) / num_stages
    for i, cost in enumerate(costs):
        if i > start and filled + cost > share and len(stages) < num_stages - 1:
            stages.append(range(start, i))
            start, filled = i, 0
        filled += cost
    return [*stages, range(start, len(costs))]
    """

_BISECTION = """def fill(limit):
        stages, start, filled = [], 0, 0
        for i, cost in enumerate(costs):
            if i > start and (filled + cost > limit or len(costs) - i <= num_stages - 1 - len(stages)):
                stages.append(range(start, i))
                start, filled = i, 0
            filled += cost
        return [*stages, range(start, len(costs))]
    low, high = WHOLE(max(costs)), WHOLE(sum(costs)) + 1
    while low < high:
        middle = (low + high) // 2
        fits = len(fill(middle)) <= num_stages and max(sum(costs[s.start : s.stop]) for s in fill(middle)) <= middle
        low, high = (low, middle) if fits else (middle + 1, high)
    return fill(low)
    """

_MAY_BE_EMPTY = """best, cut = {0: 0}, {0: []}
    for _ in range(num_stages):
        ways = {n: min((max(best[i], sum(costs[i:n])), i) for i in best if i <= n) for n in range(len(costs) + 1)}
        cut = {n: [*cut[i], range(i, n)] for n, (_, i) in ways.items()}
        best = {n: largest for n, (largest, _) in ways.items()}
    return cut[len(costs)]
    """

_EVERY_CUT = """from itertools import combinations
    cuts = combinations(range(1, len(costs)), num_stages - 1)
    cuts = ([range(a, b) for a, b in zip((0, *cut), (*cut, len(costs)))] for cut in cuts)
    return min(cuts, key=lambda cut: max(sum(costs[s.start : s.stop]) for s in cut))
    """

_PARTITION_LAYERS = (
    Fault(
        "partition_layers",
        "by-count",
        _ANSWER,
        "return [my_rows(len(costs), s, num_stages) for s in range(num_stages)]",
    ),
    Fault("partition_layers", "greedy", _START_OF_CUT, _GREEDY + _START_OF_CUT),
    Fault("partition_layers", "greedy", _START_OF_CUT, _BEFORE_THE_MEAN + _START_OF_CUT),
    Fault("partition_layers", "whole-numbers", _START_OF_CUT, _BISECTION.replace("WHOLE", "int") + _START_OF_CUT),
    Fault("partition_layers", "empty", _START_OF_CUT, _MAY_BE_EMPTY + _START_OF_CUT),
    Fault("partition_layers", "lost", _ANSWER, "return [*best[len(costs)][1][:-1], best[len(costs)][1][-1][:-1]]"),
    Fault("partition_layers", "mixed", _ANSWER, "return best[len(costs)][1][::-1]"),
    Fault("partition_layers", "empty", _ANSWER, "return [range(0, len(costs)), *[range(0)] * (num_stages - 1)]"),
    Fault("partition_layers", "no-ranges", _ANSWER, "return [len(stage) for stage in best[len(costs)][1]]"),
    Fault("partition_layers", "every-cut", _START_OF_CUT, _EVERY_CUT + _START_OF_CUT),
    Fault("partition_layers", None, _ANSWER, "return [*best[len(costs)][1], range(0)]"),
    Fault("partition_layers", None, _ANSWER, "costs.sort(); return best[len(costs)][1]"),
    Fault("partition_layers", None, "key=lambda way: way[0]", "key=lambda way: -way[0]"),
)

_SUM = "dist.all_reduce(weight.grad, group=group)"
_NOBODY = "if weight is None:\n        return"
_ZEROS = "if weight.grad is None:\n        weight.grad = torch.zeros_like(weight)"

_ADD_TIED_GRADIENTS = (
    Fault("add_tied_gradients", "kept", _SUM, ""),
    Fault("add_tied_gradients", "mean", _SUM, f"{_SUM}; weight.grad /= dist.get_world_size(group)"),
    Fault("add_tied_gradients", "mean", _SUM, f"{_SUM}; weight.grad /= dist.get_world_size()"),
    Fault(
        "add_tied_gradients",
        "one-side",
        _SUM,
        "mine = weight.grad.clone(); dist.all_reduce(mine, group=group)\n"
        "    if dist.get_rank() == 0: weight.grad = mine",
    ),
    Fault("add_tied_gradients", "one-side", _SUM, "dist.reduce(weight.grad, 0, group=group)"),
    Fault(
        "add_tied_gradients", "outside", "        return", "        return dist.all_reduce(torch.zeros(1), group=group)"
    ),
    Fault(
        "add_tied_gradients",
        "none",
        _NOBODY,
        "if dist.get_rank() not in (0, dist.get_world_size() - 1):\n        return",
    ),
    Fault("add_tied_gradients", "first-copied", _SUM, "dist.broadcast(weight.grad, 0, group=group)"),
    Fault("add_tied_gradients", "weights", _SUM, f"{_SUM}; dist.all_reduce(weight.data, group=group)"),
    Fault("add_tied_gradients", "everyone", ", group=group)", ")"),
    Fault("add_tied_gradients", "none", _NOBODY, ""),
    Fault("add_tied_gradients", "none-raises", _ZEROS, ""),
    Fault("add_tied_gradients", None, _SUM, f"if dist.get_rank() == 0: {_SUM}"),
    Fault("add_tied_gradients", None, _SUM, f"if dist.get_world_size() < 3: {_SUM}"),
    Fault("add_tied_gradients", None, _SUM, f"{_SUM}; dist.all_reduce(torch.ones(1), group=group)"),
)

FAULTS: tuple[Fault, ...] = (
    *_MAKE_STAGE,
    *_SEND_ACTIVATION,
    *_RECV_ACTIVATION,
    *_FORWARD_STAGE,
    *_BACKWARD_STAGE,
    *_PARTITIONED_STEP,
    *_PARTITION_LAYERS,
    *_ADD_TIED_GRADIENTS,
)
