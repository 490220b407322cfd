"""Wrong solutions of lab 06."""

from __future__ import annotations

from tests.faults import Fault

_MINE = "mine = my_rows(num_layers, dist.get_rank(), dist.get_world_size())"
_ALL_LAYERS = "make_layer = lambda i: globals().setdefault('all_layers', []).append(real(i)) or all_layers[-1]"
_SEND = "dist.send(h_BD.detach().contiguous(), to)"
_MEMORY = "h_BD = no_rows_0D.new_empty(num_rows, *no_rows_0D.shape[1:])"
_RECV = "dist.recv(h_BD, source)"
_OUTPUTS = "outputs = stage(inputs)"
_LINE = "rank, last = dist.get_rank(), dist.get_world_size() - 1"
_STEP = "optimizer.step()"
_CLEAR = "optimizer.zero_grad()"
_ANSWER = "return best[len(costs)][1]"
_SUM = "dist.all_reduce(weight.grad, group=group)"
_EVERY_CUT = """from itertools import combinations
    cuts = combinations(range(1, len(costs)), num_stages - 1)
    cuts = ([range(a, b) for a, b in zip((0, *cut), (*cut, len(costs)))] for cut in cuts)
    return min(cuts, key=lambda cut: max(sum(costs[s.start : s.stop]) for s in cut))"""
_SENDS = "if rank < last:\n        send_activation(outputs, rank + 1)"
_START = "torch.autograd.backward(outputs, gradient)"
_BACK = "if rank > 0:\n        send_activation(inputs.grad, rank - 1)"
_FORWARD = "inputs, outputs = forward_stage(stage, x_BD, len(y_B), no_rows_0D)"
_MAY_BE_EMPTY = """least, cut = {0: 0}, {0: []}
    for _ in range(num_stages):
        ways = {n: min((max(least[i], sum(costs[i:n])), i) for i in least if i <= n) for n in range(len(costs) + 1)}
        cut = {n: [*cut[i], range(i, n)] for n, (_, i) in ways.items()}
        least = {n: largest for n, (largest, _) in ways.items()}
    return cut[len(costs)]"""

UNWRAPPED = {
    ("make_stage", "rounded to float32"): "what it gives are no floats",
    ("partition_layers", "rounded to float32"): "what it gives are no floats",
    ("make_stage", "float64 only"): "it is given a function and a number, no tensors",
    ("make_stage", "changes what it is given"): "it is given a function and a number, which nobody can change",
    ("send_activation", "without the last"): "it returns nothing, and changes nothing",
    ("recv_activation", "changes what it is given"): "the tensor that it is given has no numbers",
    ("partition_layers", "float64 only"): "it is given a list of plain numbers, no tensors",
    ("partition_layers", "two ranks only"): "it has nothing to do with ranks, and is tried on one",
    ("add_tied_gradients", "two ranks only"): "a tied weight has two copies, however many ranks there are",
}

FAULTS: tuple[Fault, ...] = (
    Fault("make_stage", None, _MINE, f"{_MINE}; real = make_layer; {_ALL_LAYERS}"),
    Fault("make_stage", None, _MINE, "mine = range(num_layers if dist.get_rank() == 0 else 0)"),
    Fault("make_stage", None, _MINE, "mine = my_rows(num_layers, dist.get_rank() % 2, min(2, dist.get_world_size()))"),
    Fault("send_activation", "unwaited", "dist.send", "dist.isend"),
    Fault("send_activation", None, _SEND, f"if dist.get_rank() == 0: {_SEND}"),
    Fault("send_activation", None, _SEND, f"if dist.get_rank() < 2: {_SEND}"),
    Fault("send_activation", None, _SEND, f"h_BD.data.mul_(2); {_SEND}"),
    Fault("send_activation", None, _SEND, "dist.send_object_list([h_BD.detach()], to)"),
    Fault("recv_activation", None, _RECV, f"if dist.get_rank() == 0: {_RECV}"),
    Fault("recv_activation", None, _RECV, f"if dist.get_world_size() < 3: {_RECV}\n    else: h_BD.zero_()"),
    Fault("recv_activation", None, _MEMORY, f"{_MEMORY}; no_rows_0D.resize_(1, *no_rows_0D.shape[1:])"),
    Fault("recv_activation", None, _RECV, "dist.recv(h_BD)"),
    Fault("forward_stage", None, _LINE, "rank, last = 0, 0"),
    Fault("forward_stage", None, _LINE, "rank, last = dist.get_rank(), 1"),
    Fault("forward_stage", None, _OUTPUTS, f"{_OUTPUTS}\n    if rank == 0: x_BD += 1"),
    Fault("forward_stage", "asks", _OUTPUTS, f"inputs.requires_grad_(); {_OUTPUTS}"),
    Fault("forward_stage", "asks", _OUTPUTS, f"if last == 3: inputs.requires_grad_()\n    {_OUTPUTS}"),
    Fault(
        "forward_stage",
        "messages",
        _SENDS,
        f"{_SENDS}\n        send_activation(outputs[:1], rank + 1)\n"
        "    if rank:\n        dist.recv(inputs.detach()[:1].clone(), rank - 1)",
    ),
    Fault("forward_stage", "collective", _SENDS, f"{_SENDS}\n    dist.barrier()"),
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
    Fault("partitioned_step", None, "loss.item() if is_last", "loss.item() if dist.get_rank() == 1"),
    Fault("partitioned_step", None, _STEP, f"dist.get_rank() == 0 and {_STEP}"),
    Fault("partitioned_step", None, _CLEAR, f"{_CLEAR}; x_BD *= 2"),
    Fault("partitioned_step", "messages", _FORWARD, f"no_rows_0D = agree_on_shapes(stage, no_rows_0D)\n    {_FORWARD}"),
    Fault("partitioned_step", "collective", _CLEAR, f"{_CLEAR}; dist.barrier()"),
    Fault("partition_layers", "lost", _ANSWER, "return [*best[len(costs)][1][:-1], best[len(costs)][1][-1][:-1]]"),
    Fault("partition_layers", "mixed", _ANSWER, f"{_ANSWER}[::-1]"),
    Fault("partition_layers", "empty", _ANSWER, "return [range(len(costs)), *[range(0)] * (num_stages - 1)]"),
    Fault("partition_layers", "no-ranges", _ANSWER, "return [len(stage) for stage in best[len(costs)][1]]"),
    Fault("partition_layers", "every-cut", _ANSWER, _EVERY_CUT),
    Fault("partition_layers", None, _ANSWER, f"{_ANSWER} + [range(0)]"),
    Fault("partition_layers", None, _ANSWER, f"costs.sort(); {_ANSWER}"),
    Fault("partition_layers", None, "key=lambda way: way[0]", "key=lambda way: -way[0]"),
    Fault("partition_layers", "empty", _ANSWER, _MAY_BE_EMPTY),
    Fault("add_tied_gradients", None, _SUM, f"if dist.get_rank() == 0: {_SUM}"),
    Fault("add_tied_gradients", None, _SUM, f"if dist.get_world_size() < 3: {_SUM}"),
    Fault("add_tied_gradients", None, _SUM, f"{_SUM}; dist.all_reduce(weight.detach().clone(), group=group)"),
)
