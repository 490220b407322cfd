"""The check of ParallelAttention: whole heads on each rank, and dropout as one process draws it."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from distlab.course.checks.tensor_parallel.common import (
    Groups,
    bytes_held,
    compare_memory,
    count,
    enter,
    filled,
    forward_and_backward,
    gradients,
    in_own_group,
    in_words,
    misconceptions,
    random,
    share_by_rank,
    watch,
)
from distlab.course.compare import compare
from distlab.course.exercise import Exercise, Wrong
from distlab.course.trial import Trial
from distlab.models import Attention, attention_weights, join_heads, split_heads


class Case(NamedTuple):
    """What is tried: the groups, the heads (each 2 wide), the probability of dropout, and whether it is training."""

    groups: Groups
    num_heads: int
    dropout: float = 0.0
    training: bool = True

    @property
    def width(self) -> int:
        """The model's."""
        return 2 * self.num_heads

    def whole(self, seed: int) -> Attention:
        """The layer that is cut."""
        return filled(Attention(self.width, self.num_heads, self.dropout), seed).train(self.training)

    def inputs(self, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """x, and the gradient of y."""
        return random(seed + 10, 2, 3, self.width), random(seed + 11, 2, 3, self.width)

    def __str__(self) -> str:
        words = f", dropout {self.dropout}{'' if self.training else ' in evaluation'}" if self.dropout else ""
        return f"{in_words(self.groups)} and {self.num_heads} heads{words}"


CASES = (
    Case([[0, 1]], 2),
    Case([[0, 1, 2]], 6),
    Case([[0]], 2, 0.5),
    Case([[0, 1], [2, 3]], 4, 0.5),
    Case([[0, 1, 2]], 3, 0.5),
    Case([[0, 1]], 4, 0.5, training=False),
)


def driven(attention_class: type, seed: int, case: Case) -> dict:
    """On a rank: y, all gradients, the number of parameters and the bytes kept, and the next random number."""
    group = enter(case.groups)
    layer = attention_class(case.whole(seed), group=group).train(case.training)
    held = bytes_held(layer)
    torch.manual_seed(seed)
    found = forward_and_backward(layer, *case.inputs(seed))
    number = sum(parameter.numel() for parameter in layer.parameters())
    return found | dict(parameters=gradients(layer), number=number, bytes=held, random=torch.rand(()).item())


def check_parallel_attention(learners: type, trial: Trial) -> str:
    """Tries ``ParallelAttention`` against the whole layer, without dropout and with it."""
    for tried in CASES:
        case = str(tried)
        group_forgotten = "mat1 and mat2|must match the size|invalid for input of size"
        because = dict(swapped="mat1 and mat2") if len(tried.groups) == 1 else dict(world=group_forgotten)
        run = watch(trial, case, driven, learners, trial.seed, tried, groups=tried.groups, **because)
        in_own_group(case, run, tried.groups)
        _compare(case, run.values, tried, trial.seed)
        for name in ("forward", "backward"):
            count(f"{case}, messages", run, name, {"all_reduce": 1}, 2 * 3 * tried.width)
    return (
        "y and all gradients are those of the whole layer, with one all-reduce forward and one backward; dropout drops "
        "what one process drops, and leaves all ranks with the same random state; on 1 to 3 ranks and in two groups"
    )


def attend(layer: Attention, x: torch.Tensor, rows: list[list[int]], num_heads: int, mask=1.0) -> torch.Tensor:
    """What comes if the ranks take ``rows`` of the fused weight, and see ``num_heads`` heads in them."""
    parts = []
    for of_rank in rows:
        qkv = F.linear(x, layer.qkv.weight[of_rank], layer.qkv.bias[of_rank])
        q, k, v = (split_heads(part, num_heads) for part in qkv.chunk(3, -1))
        parts.append(join_heads(attention_weights(q, k) * mask @ v))
    return layer.out(torch.cat(parts, dim=-1))


def _compare(case: str, found: list[dict], tried: Case, seed: int) -> None:
    layer, (x, grad_y) = tried.whole(seed), tried.inputs(seed)
    x.requires_grad_()
    torch.manual_seed(seed)
    y = layer(x)
    next_number = torch.rand(()).item()
    y.backward(grad_y)
    ranks, size = len(found), len(tried.groups[0])
    numbers = [one["random"] for one in found]
    if len(set(numbers)) > 1:
        detail = "expected the same next random number on all ranks, got " + ", ".join(f"{n:.4f}" for n in numbers)
        raise Wrong(f"{case}, the random state", detail, ("apart",))
    with torch.no_grad():
        beliefs = {id: [value] * ranks for id, value in _wrong_outputs(layer, x, tried, seed).items()}
    fields = dict(ranks=size, heads=tried.num_heads, own=tried.num_heads // size)
    compare(f"{case}, y", [one["y"] for one in found], [y.detach()] * ranks, beliefs, **fields)
    compare(f"{case}, the random number drawn after it", numbers, [next_number] * ranks)
    compare(f"{case}, the gradient of x", [one["grad_x"] for one in found], [x.grad] * ranks)
    mine = [[p * tried.width + i for p in range(3) for i in own] for own in share_by_rank(tried.width, tried.groups)]
    _compare_parameters(case, found, layer, mine, share_by_rank(tried.width, tried.groups))


def _compare_parameters(case: str, found: list[dict], layer: Attention, rows: list, columns: list) -> None:
    width = layer.out.in_features
    want = [len(r) * (width + 1) + len(c) * width + width for r, c in zip(rows, columns)]
    everything = [sum(p.numel() for p in layer.parameters())] * len(found)
    compare(f"{case}, the number of parameters", [one["number"] for one in found], want, {"whole": everything})
    compare_memory(case, [one["bytes"] for one in found], want)
    grads = {name: p.grad for name, p in layer.named_parameters()}
    want = [
        {
            "qkv.weight": grads["qkv.weight"][r],
            "qkv.bias": grads["qkv.bias"][r],
            "out.weight": grads["out.weight"][:, c],
            "out.bias": grads["out.bias"],
        }
        for r, c in zip(rows, columns)
    ]
    compare(f"{case}, the parameters' gradients", [one["parameters"] for one in found], want)


def _wrong_outputs(layer: Attention, x: torch.Tensor, tried: Case, seed: int) -> dict[str, torch.Tensor]:
    """What all ranks would have if they believed in a misconception."""
    size, width = len(tried.groups[0]), tried.width
    own = tried.num_heads // size
    rows = [[p * width + i for p in range(3) for i in part] for part in _parts(width, size)]

    def mask(heads: int, num_rows: int = 2) -> torch.Tensor:
        torch.manual_seed(seed)
        return F.dropout(x.new_ones(num_rows, heads, 3, 3), tried.dropout)

    def plain(num_heads: int, of: list[list[int]] = rows) -> torch.Tensor:
        return attend(layer, x, of, num_heads)

    wrong = {"no-causal": _uncausal(layer, x)}
    if size > 1:
        wrong["contiguous"] = plain(own, _parts(3 * width, size))
    if size > 1 and width // size % tried.num_heads == 0:
        wrong["all-heads"] = plain(tried.num_heads)
    if tried.dropout and tried.training:
        wrong |= {"same-mask": attend(layer, x, rows, own, mask(own)), "no-dropout": plain(own)}
        wrong["first-mask"] = attend(layer, x, rows, own, mask(tried.num_heads)[:, :own])
        wrong["one-mask"] = _with_whole_mask(layer, x, mask(tried.num_heads, 1))
        wrong["not-scaled"] = _with_whole_mask(layer, x, mask(tried.num_heads) * (1 - tried.dropout))
    elif tried.dropout:
        wrong["always"] = _with_whole_mask(layer, x, mask(tried.num_heads))
    return wrong


def _parts(n: int, size: int) -> list[list[int]]:
    return share_by_rank(n, [list(range(size))])


def _with_whole_mask(layer: Attention, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return attend(layer, x, [list(range(3 * layer.out.in_features))], layer.num_heads, mask)


def _uncausal(layer: Attention, x: torch.Tensor) -> torch.Tensor:
    q, k, v = (split_heads(part, layer.num_heads) for part in layer.qkv(x).chunk(3, -1))
    return layer.out(join_heads(F.scaled_dot_product_attention(q, k, v)))


PARALLEL_ATTENTION = Exercise(
    "ParallelAttention",
    check_parallel_attention,
    misconceptions=misconceptions(
        contiguous="The fused weight is cut contiguously, so {ranks} ranks mix up Q, K and V: give "
        "ColumnParallelLinear the rows that shard_qkv names.",
        all_heads="This rank's part was split into {heads} heads; it holds {own}. They came out too narrow.",
        no_causal="Places look at later places: attention_weights hides those.",
        same_mask="All ranks drop the same places of their own heads, because all drew from the same random state. One "
        "process draws a mask for every head: draw the mask of all {heads} heads, and take this rank's.",
        first_mask="The mask is that of all {heads} heads, and every rank takes the first {own} of it: take those of "
        "its own heads.",
        one_mask="Both texts of the batch drop the same places: the mask lacks the batch. It needs the shape "
        "(B, H, T, T).",
        not_scaled="What is not dropped must be scaled up by 1 / (1 − p): F.dropout of ones gives such a mask.",
        no_dropout="Nothing is dropped in training; whole.dropout says how much of the attention weights is.",
        always="It drops in evaluation too: F.dropout takes self.training as its third argument.",
        apart="The ranks' random states differ afterwards. The tensors between the layers are the same on all ranks, "
        "and so must be the masks that are dropped there: all ranks must draw the same, from the same seed.",
        whole="Each rank holds all parameters: nothing is cut.",
        keeps_whole="The whole layer stays in memory on this rank, although its parameters are not registered: keep "
        "the two cut layers only.",
        swapped="The shapes don't fit. A column cut takes all inputs and gives this rank's outputs; a row cut takes "
        "this rank's inputs and gives all outputs. So qkv is cut by columns, and out by rows.",
        world="All ranks were taken for the group somewhere: hand group on to share_of, shard_qkv and both layers.",
    ),
    hints=(
        "As Attention, with a column cut for qkv, by the rows of shard_qkv, and a row cut for out. Between the two "
        "there are len(self.heads) heads. For dropout: a mask of ones for all heads, dropped, then this rank's part.",
        "mask_BHTT = F.dropout(weights_BhTT.new_ones(B, self.num_heads, T, T), self.dropout, self.training), and "
        "weights_BhTT * mask_BHTT[:, self.heads.start : self.heads.stop]. All ranks draw all of it.",
    ),
    uses=("copy_to_group", "reduce_from_group", "ColumnParallelLinear", "RowParallelLinear", "shard_qkv"),
)
