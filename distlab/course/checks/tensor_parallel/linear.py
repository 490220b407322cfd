"""The checks of ColumnParallelLinear, RowParallelLinear and ParallelMLP: whole outputs, parts of sums, both."""

from __future__ import annotations

from torch import nn

from distlab.course.checks.tensor_parallel.common import NONE, UNTRACKED, WORLDS, Seat, case, size_of_groups
from distlab.course.checks.tensor_parallel.layers import FRESH, KEEPS_WHOLE, KEPT_OR_WORLD, NO_PARAMETER, Cut, Layer
from distlab.course.exercise import Exercise
from distlab.course.kit.case import Job
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import misconceptions
from distlab.course.kit.outcome import Outcome
from distlab.models import MLP

FEW, MANY = 4, 7  # inputs and outputs of the column cut, outputs and inputs of the row cut
ODD_ROWS = [5, 0], [2, 6, 1]  # which the ranks ask for by number


def _rows(job: Job, seat: Seat) -> list[int]:
    return job["rows"][seat.place] if job["rows"] else seat.part(MANY)


def _cut_rows(job: Job, seat: Seat) -> Cut:
    rows = _rows(job, seat)
    return {"weight": (0, rows), "bias": (0, rows), "y": (-1, rows)}


COLUMN = Layer(
    "ColumnParallelLinear",
    lambda job: nn.Linear(FEW, MANY, bias=job["bias"]),
    _cut_rows,
    lambda job: ((2, 3, FEW), (2, 3, MANY)),
    more=lambda job, seat: (job["rows"] and _rows(job, seat),),
)


def _drive(lab, job: Job) -> dict:
    return next(layer for layer in (COLUMN, ROW, WHOLE_MLP) if layer.name == lab.name).drive(lab, job)


COLUMN_PARALLEL_LINEAR = Exercise(
    "ColumnParallelLinear",
    Experiment(
        [case(groups, f" and {MANY} outputs", rows=None, bias=True) for groups in WORLDS]
        + [case(WORLDS[0], f", rows {ODD_ROWS[0]} and {ODD_ROWS[1]}, without a bias", rows=ODD_ROWS, bias=False)],
        _drive,
        COLUMN.expect,
        judge=lambda job, outcome: COLUMN.judge(job, outcome, forward=0),
        tells=KEPT_OR_WORLD,
        fields=size_of_groups,
        holds="each rank holds its rows of the weight, the outputs and all gradients are those of the whole layer, "
        "and one all-reduce goes backward; on 1 to 3 ranks and in two groups, with outputs that don't divide",
    ),
    misconceptions=misconceptions(
        whole="Each rank holds the whole weight: nothing is cut. Take the rows of this rank only.",
        columns="The weight is cut along its inputs. nn.Linear keeps it as (outputs, inputs): a column of A is a row "
        "of weight, so this rank's outputs are rows of it.",
        bias_whole="The bias is whole, and the weight is cut: an output's bias belongs to the rank of that output.",
        same="All {ranks} ranks hold the same part of the weight, and the rest of it is nowhere: each is to take its "
        "own rows of the whole layer.",
        ignores_rows="The rows that were asked for by number are not those that it took.",
        no_bias="The layer has no bias (whole.bias is None): then this rank has none either.",
        no_bias_added="The bias is missing in y.",
        fresh=FRESH,
        no_parameter=NO_PARAMETER,
        keeps_whole=KEEPS_WHOLE.replace("{what}", "rows"),
        gathers="y was gathered: every rank has all outputs. The next layer needs this rank's only, and to send them "
        "costs more than the sum that comes later.",
        no_f="The gradient of x is only what this rank's outputs want of it. All {ranks} ranks' parts are to be added "
        "up: x goes through copy_to_group before it is multiplied.",
        world="The sum runs over all ranks, and not over the group: hand self.group on to copy_to_group.",
    ),
    hints=(
        "Row i of whole.weight makes output i. tensor[rows] with the list self.rows takes those rows, as a "
        "copy; wrap it in nn.Parameter. In forward: where do the parts of x's gradient meet?",
        "nn.Parameter(whole.weight.detach()[…]), with the numbers in self.rows; the bias too, unless it is None. "
        "forward: F.linear of x, but x goes through f first, with self.group.",
    ),
    uses=("copy_to_group",),
)


ROW = Layer(
    "RowParallelLinear",
    lambda job: nn.Linear(MANY, FEW, bias=job["bias"]),
    lambda job, seat: {"weight": (1, seat.part(MANY)), "x": (-1, seat.part(MANY))},
    lambda job: ((2, 3, MANY), (2, 3, FEW)),
)


def _fields(job: Job, outcome: Outcome | None) -> dict:
    """How many ranks work together, and how many biases too many their sum may hold."""
    ranks = len(job["groups"][0])
    return {"ranks": ranks, "more": ranks - 1}


ROW_PARALLEL_LINEAR = Exercise(
    "RowParallelLinear",
    Experiment(
        [case(groups, f" and {MANY} inputs", bias=True) for groups in WORLDS]
        + [case(WORLDS[0], f" and {MANY} inputs, without a bias", bias=False)],
        _drive,
        ROW.expect,
        judge=lambda job, outcome: ROW.judge(job, outcome, backward=0),
        tells=KEPT_OR_WORLD,
        fields=_fields,
        holds="each rank holds its columns of the weight, y and all gradients are those of the whole layer, the bias "
        "counts once, and one all-reduce goes forward; on 1 to 3 ranks and in two groups, with inputs that don't "
        "divide",
    ),
    misconceptions=misconceptions(
        whole="Each rank holds the whole weight: nothing is cut. Take the columns that meet this rank's inputs.",
        rows="The weight is cut along its outputs. nn.Linear keeps it as (outputs, inputs): a row of A is a column "
        "of weight, so this rank's inputs meet columns of it.",
        first="All {ranks} ranks hold the first rank's columns; each is to take its own.",
        bias_divided="The bias is divided by {ranks}, to be right again in the sum. The numbers are, and training goes "
        "wrong: each rank's part gets the whole gradient, so their sum moves {ranks} times as far. Add the whole bias "
        "once, after the sum.",
        bias_split="The bias's gradient is 1/{ranks} of what it should be: each rank added 1/{ranks} of the bias to "
        "its part, before the sum. Add the whole bias once, after the sum.",
        bias_cut="The bias is cut, and every rank has all outputs: it needs the whole bias.",
        bias_on_first="Only the first rank has the bias, or its gradient. After the sum all ranks hold y alike, and "
        "all add the same bias; so each of them can update it, and they stay equal.",
        no_bias="The layer has no bias (whole.bias is None): then there is nothing to add.",
        no_bias_added="The bias is missing in y.",
        bias_detached="No gradient reaches the bias, so that it would not learn: it was added detached.",
        fresh=FRESH,
        no_parameter=NO_PARAMETER,
        none=NONE,
        keeps_whole=KEEPS_WHOLE.replace("{what}", "columns"),
        shares="It is the whole layer's own memory: who changes one changes the other. A part of the model needs a "
        "Parameter of its own: nn.Parameter of a detached clone.",
        no_sum="Each rank has only its own part of every sum: y goes through reduce_from_group.",
        bias_each="The bias is in y {ranks} times: each rank added it to its part, and then the parts were added up. "
        "y is too large by {more} × b. Add it after the sum.",
        both_ways="The gradient of x is {ranks} times too large: it was added up on the way back as well.",
        cut_off="No gradient comes back to x: it was detached before the sum, or the sum is not made by "
        "reduce_from_group, which knows the way back.",
        untracked=f"{UNTRACKED}Use reduce_from_group.",
        world="The sum runs over all ranks, and not over the group: hand self.group on to reduce_from_group.",
    ),
    hints=(
        "Column i of whole.weight meets input i: tensor[:, columns] with a list takes those, as a copy. A "
        "rank's product is a part of every sum. When may the bias be added?",
        "self.weight = nn.Parameter(whole.weight.detach()[:, self.columns]); the bias whole, a clone, unless it is "
        "None. forward: y = reduce_from_group(F.linear(x_BTc, self.weight), self.group), then add the bias.",
    ),
    uses=("reduce_from_group",),
)


WIDTHS = 6, 5, 5, 5  # in the worlds


def _cut_mlp(job: Job, seat: Seat) -> Cut:
    part = seat.part(4 * job["width"])
    return {"up.weight": (0, part), "up.bias": (0, part), "down.weight": (1, part)}


WHOLE_MLP = Layer(
    "ParallelMLP", lambda job: MLP(job["width"]), _cut_mlp, lambda job: ((2, 3, job["width"]), (2, 3, job["width"]))
)

PARALLEL_MLP = Exercise(
    "ParallelMLP",
    Experiment(
        [case(groups, f" and width {width}", width=width) for groups, width in zip(WORLDS, WIDTHS)],
        _drive,
        WHOLE_MLP.expect,
        judge=WHOLE_MLP.judge,
        tells=KEPT_OR_WORLD,
        fields=size_of_groups,
        holds="y and all gradients are those of the whole MLP, with one all-reduce forward and one backward; on 1 to 3 "
        "ranks and in two groups",
    ),
    misconceptions=misconceptions(
        no_gelu="GELU is missing: without it the two layers are a single one.",
        gelu_late="GELU comes after the second layer; it belongs between the two, on this rank's columns.",
        approximate="GELU is approximated by a tanh here; the whole MLP has GELU itself, so the two differ a little.",
        other_curve="Between the layers stands ReLU; the whole MLP has GELU.",
        sums_twice="The sum over the group is taken twice, so with {ranks} ranks it is {ranks} times too large: "
        "RowParallelLinear has taken it already.",
        back_twice="The gradient of x is {ranks} times too large: ColumnParallelLinear has added it up already.",
        gathers="down is cut by columns too: all outputs must then be gathered after each of the layers, 4 BTD and "
        "then BTD elements, 2.5 times what one sum sends. Cut the second one by rows: it wants just those inputs that "
        "the rank has.",
        whole="Each rank holds all parameters: nothing is cut.",
        keeps_whole="The whole MLP stays in memory on this rank: keep the two cut layers only.",
        swapped="A column cut takes all inputs and gives this rank's outputs; a row cut takes this rank's inputs and "
        "gives all outputs. So up is cut by columns, and down by rows.",
        group_as_rows="The group landed in rows, which is the second argument of ColumnParallelLinear: write "
        "group=group.",
        world="The sum runs over all ranks, and not over the group: hand group on to both layers.",
    ),
    hints=(
        "Which cut needs no message between the two layers? GELU works on each column for itself.",
        "self.up is a ColumnParallelLinear of whole.up, with group=group, self.down a RowParallelLinear of whole.down. "
        "forward: up, F.gelu, down, as in the whole MLP.",
    ),
    uses=("copy_to_group", "reduce_from_group", "ColumnParallelLinear", "RowParallelLinear"),
)
