"""The checks of shard_qkv and ParallelAttention: whole heads on each rank, and dropout as one process draws it."""

from __future__ import annotations

import torch
import torch.distributed as dist

from distlab.course.checks.tensor_parallel.common import WORLDS, Groups, Seat, asked, case, own_group, refusal, seats
from distlab.course.checks.tensor_parallel.layers import NEXT, Cut, Layer
from distlab.course.exercise import Exercise
from distlab.course.kit.case import Case, Job
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import misconceptions, shares
from distlab.course.kit.outcome import Outcome
from distlab.models import Attention


def _heads(groups: Groups, width: int, heads: int, refuses: bool = False) -> Case:
    words = f", width {width} and {heads} heads"
    return case(groups, words, width=width, heads=heads, refuses=refuses, dtypes=[torch.int64])


def _numbers(job: Job) -> dict[str, int]:
    return {"heads": job["heads"], "ranks": job.ranks}


def _drive_rows(lab, job: Job) -> dict:
    """On a rank: the rows as a list, or how they were refused."""
    args = job["width"], job["heads"], own_group(job)
    errors = Exception if job["refuses"] else ValueError
    found = asked("the rows", lab.shard_qkv, args, _numbers(job), job["refuses"], errors)
    if isinstance(rows := found.get("the rows"), list | tuple | range | torch.Tensor):
        found["the rows"] = [int(row) for row in rows]
    return found


def _expect_rows(job: Job, came: list[dict]) -> list[dict]:
    """The rows of whole heads, in the order of the parts; a refusal where heads don't divide."""
    if job["refuses"]:
        return [refusal(_numbers(job))] * job.ranks
    width = job["width"]
    rows = [[part * width + row for part in range(3) for row in seat.part(width)] for seat in seats(job)]
    return [{"what it raises": "nothing", "the rows": of_rank} for of_rank in rows]


def _fields_rows(job: Job, outcome: Outcome | None) -> dict:
    """What the first rank would hold of a contiguous cut."""
    ranks, width = len(job["groups"][0]), job["width"]
    return {"ranks": ranks, "what": _in_thirds(shares(3 * width, ranks)[0], width)}


def _in_thirds(rows: range, width: int) -> str:
    """ "all of Q and half of K": what the rows are, where they lie in Q, K and V."""
    numbers = [sum(part * width <= row < (part + 1) * width for row in rows) for part in range(3)]
    words = {width: "all of"} | {n: f"{n} of {width} rows of" for n in range(1, width)} | {width // 2: "half of"}
    return " and ".join(f"{words[n]} {name}" for n, name in zip(numbers, "QKV") if n)


SHARD_QKV = Exercise(
    "shard_qkv",
    Experiment(
        (
            _heads(WORLDS[0], 8, 2),
            _heads(WORLDS[0], 12, 3, refuses=True),
            _heads(WORLDS[1], 12, 6),
            _heads(WORLDS[1], 9, 3),
            _heads(WORLDS[1], 12, 2, refuses=True),
            _heads(WORLDS[2], 6, 2),
            _heads(WORLDS[3], 12, 4),
        ),
        _drive_rows,
        _expect_rows,
        fields=_fields_rows,
        holds="each rank gets the rows of its own heads, of Q, of K and of V; heads that can't be shared out evenly "
        "are refused by name; on 1 to 3 ranks and in two groups",
    ),
    misconceptions=misconceptions(
        contiguous="The fused rows are cut as if they were one matrix. The first of {ranks} ranks then holds {what}, "
        "and attention between them means nothing. Here lie all of Q, all of K, all of V, and not head after head: "
        "take this rank's heads of Q, then of K, then of V.",
        q_only="These are rows of Q only: the same heads of K and of V belong to this rank, {width} and 2 × {width} "
        "rows further down.",
        all_first="Every rank has the first rank's heads.",
        heads_as_rows="These are numbers of heads, not of rows: each head has several rows.",
        last_head_lost="The last head of each part is missing: a range ends before its stop, so the stop is "
        "heads.stop × the width of a head.",
        strided="Each rank takes every {ranks}th head. share_of hands out heads that lie together, and so does the row "
        "cut of out that follows.",
        head_after_head="They are the right rows, head after head. The layer's output is cut into thirds, q, k and v, "
        "so all of this rank's Q comes first, then its K, then its V.",
        interleaved="They are the right rows in another order. The layer's output is cut into thirds, q, k and v, so "
        "all of this rank's Q comes first, then its K, then its V.",
        world="The heads are shared out among all ranks, and not within the group: share_of(n, group).",
        refuses_all="Heads that can be shared out evenly are refused too.",
        not_refused="{heads} heads can't be shared out evenly among {ranks} ranks, and nobody says so: some heads "
        "would be lost or torn apart. Raise a ValueError that names both numbers.",
        refused_by_some="Some ranks refuse and others go on, and would wait for them forever: all can see it, and all "
        "must raise the ValueError.",
        other_error="It refuses, but with another error: raise a ValueError, which says that an argument is at fault.",
        not_by_name="The refusal does not name both numbers: who reads it wants to know how many heads and how many "
        "ranks.",
    ),
    hints=(
        "Draw the fused weight: width rows of Q, width of K, width of V. Which rows of Q are this rank's heads? The "
        "same ones, further down, are its K and its V.",
        "A list comprehension with two fors: over the three parts, and over the rows of share_of(width, group) in "
        "each; part number p begins at p * width. Before it: if num_heads % dist.get_world_size(group), a ValueError "
        "with both numbers in its text.",
    ),
)


DROPOUT = 0.3  # what is kept is scaled by 1 / 0.7, which a mask in float32 holds to seven digits only
_ALIKE = "whether all ranks have the same random state"


def _case(groups: Groups, heads: int, dropout: float = 0.0, training: bool = True) -> Case:
    words = f", dropout {dropout}{'' if training else ' in evaluation'}" if dropout else ""
    return case(groups, f" and {heads} heads{words}", heads=heads, dropout=dropout, training=training)


def _width(job: Job) -> int:
    return 2 * job["heads"]


def _cut(job: Job, seat: Seat) -> Cut:
    width = _width(job)
    rows = [part * width + row for part in range(3) for row in seat.part(width)]
    return {"qkv.weight": (0, rows), "qkv.bias": (0, rows), "out.weight": (1, seat.part(width))}


LAYER = Layer(
    "ParallelAttention",
    lambda job: Attention(_width(job), job["heads"], job["dropout"]).train(job["training"]),
    _cut,
    lambda job: ((2, 5, _width(job)),) * 2,
)


def _drive(lab, job: Job) -> dict:
    """On a rank: what a cut layer gives, and whether all ranks then draw the same random number."""
    found = LAYER.drive(lab, job)
    number = torch.tensor(found.get(NEXT, 0.0))
    numbers = [torch.empty(()) for _ in range(job.ranks)]
    dist.all_gather(numbers, number)
    return {_ALIKE: all(other == number for other in numbers)} | found


def _expect(job: Job, came: list[dict]) -> list[dict]:
    """What the whole layer gives; which random number comes next matters only where something may be dropped."""
    want = [{_ALIKE: True} | of_rank for of_rank in LAYER.expect(job, came)]
    return [{name: value for name, value in of_rank.items() if name != NEXT or job["dropout"]} for of_rank in want]


def _fields(job: Job, outcome: Outcome | None) -> dict:
    """How many ranks work together, and how many heads a rank has."""
    ranks = len(job["groups"][0])
    return {"ranks": ranks, "own": job["heads"] // ranks}


PARALLEL_ATTENTION = Exercise(
    "ParallelAttention",
    Experiment(
        (
            _case(WORLDS[0], 2),
            _case(WORLDS[1], 6),
            _case(WORLDS[2], 2, DROPOUT),
            _case(WORLDS[3], 4, DROPOUT),
            _case(WORLDS[1], 3, DROPOUT),
            _case(WORLDS[0], 4, DROPOUT, training=False),
        ),
        _drive,
        _expect,
        judge=LAYER.judge,
        fields=_fields,
        holds="y and all gradients are those of the whole layer, with one all-reduce forward and one backward; dropout "
        "drops what one process drops, and leaves all ranks with the same random state; on 1 to 3 ranks and in two "
        "groups",
    ),
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
        keeps_whole="The whole layer stays in memory on this rank: keep the two cut layers only.",
        swapped="A column cut takes all inputs and gives this rank's outputs; a row cut takes this rank's inputs and "
        "gives all outputs. So qkv is cut by columns, and out by rows.",
        scale="The scores are divided by too much or too little: by √K, where K is the width of one head, however many "
        "heads a rank has. attention_weights does it.",
        heads_cut="The mask lacks this rank's last head: a range ends before its stop, so heads[-1] is the last head "
        "that belongs to it. Take heads.start : heads.stop.",
        mask_dtype="The mask is of another dtype than the weights, and 1 / (1 − p) rounded to it: torch.ones makes "
        "float32, weights.new_ones what the weights are.",
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
