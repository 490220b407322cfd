"""What tensor parallelism does, matrix by matrix: who holds what, forward and backward, and where parts of sums meet.

The cuts are lab 08's: a column of A is a row of ``nn.Linear``'s weight, ranges are contiguous, f and g are Megatron's
(Shoeybi et al., arXiv 1909.08053, Figures 3 and 4).
"""

from __future__ import annotations

from dataclasses import dataclass

from distlab.demos.course import built_in

PLACES, WIDTH, HEADS = 8, 16, 8  # T, D, H of the picture
LAYERS = ("column", "row", "MLP", "attention")
_HIGH = {"T": PLACES, "D": WIDTH, "3D": 3 * WIDTH, "4D": 4 * WIDTH}


@dataclass(frozen=True)
class Block:
    """A matrix, its axes as in lab 08, and how it lies on the ranks.

    ``cut`` is "columns", "rows", "heads" (the columns of Q, of K and of V, head by head), "parts" (every rank has one
    of the full size, a part of the sum) or "" (whole on every rank).
    """

    name: str
    axes: tuple[str, str]
    cut: str = ""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the whole matrix."""
        return _HIGH[self.axes[0]], _HIGH[self.axes[1]]

    def shape_on(self, rank: int, ranks: int) -> tuple[int, int]:
        """Rows and columns of what a rank holds of it."""
        rows, columns = self.shape
        if self.cut == "rows":
            rows = len(mine(rows, rank, ranks))
        elif self.cut == "columns":
            columns = len(mine(columns, rank, ranks))
        elif self.cut == "heads":
            columns = 3 * len(mine(columns // 3, rank, ranks))
        return rows, columns


@dataclass(frozen=True)
class Step:
    """One moment: the block that is made, from which others, what is said; ``is_sum`` where an all-reduce is."""

    makes: str
    uses: tuple[str, ...]
    title: str
    words: str
    is_backward: bool = False
    is_sum: bool = False


@dataclass(frozen=True)
class Column:
    """What stands one over the other: a matrix and its gradient, or parts of a sum beside an f or a g."""

    forward: Block | str
    backward: Block | str
    sign: str = ""  # between the one to the left and ``forward``
    note: str = ""  # under the sign

    @property
    def blocks(self) -> list[Block]:
        """Without f and g."""
        return [thing for thing in (self.forward, self.backward) if isinstance(thing, Block)]


@dataclass(frozen=True)
class Layer:
    """A layer on ranks, and the steps of its forward and backward pass."""

    columns: tuple[Column, ...]
    steps: tuple[Step, ...]

    @property
    def weights(self) -> list[Block]:
        """The matrices that are learned."""
        names = ("A", "up", "down", "QKV", "out")
        return [block for column in self.columns for block in column.blocks if block.name in names]

    def all_reduces(self, until: int) -> tuple[int, int]:
        """How many there were in the first ``until`` steps, forward and backward."""
        sums = [step for step in self.steps[:until] if step.is_sum]
        return sum(not step.is_backward for step in sums), sum(step.is_backward for step in sums)


def mine(size: int, rank: int, ranks: int) -> range:
    """The rows or columns of a rank: lab 00's ``my_rows``."""
    return built_in("start_here").my_rows(size, rank, ranks)


def layer(what: str) -> Layer:
    """One of ``LAYERS``. Raises KeyError for another."""
    return {"column": _column, "row": _row, "MLP": _mlp, "attention": _attention}[what]()


def _with_gradient(name: str, rows: str, columns: str, cut: str = "", sign: str = "", note: str = "") -> Column:
    return Column(Block(name, (rows, columns), cut), Block(_d(name), (rows, columns), cut), sign, note)


def _d(name: str) -> str:
    return f"d({name})" if "·" in name or "," in name else f"d {name}" if len(name) > 1 else f"d{name}"


_F = Column("f", Block("parts of dX", ("T", "D"), "parts"))


def _g(of: str) -> Column:
    return Column(Block(f"parts of {of}", ("T", "D"), "parts"), "g", "=")


def _column() -> Layer:
    x, a = _with_gradient("X", "T", "D"), _with_gradient("A", "D", "4D", "columns", "×")
    y = _with_gradient("Y", "T", "4D", "columns", "=")
    arrives = Step("dY", (), "dY comes back", "dY comes back from the next layer, cut like Y.", is_backward=True)
    return Layer((x, _F, a, y), (_by_columns("X", "A", "Y"), arrives, *_back_through_columns("A", "Y")))


def _row() -> Layer:
    x, a = _with_gradient("X", "T", "4D", "columns"), _with_gradient("A", "4D", "D", "rows", "×")
    y = _with_gradient("Y", "T", "D", "", "Σ")
    return Layer((x, a, _g("Y"), y), (*_by_rows("X", "A", "Y"), *_back_through_rows("X", "A", "Y")))


def _mlp() -> Layer:
    there = "hidden = GELU(X · up): GELU wants complete sums, and each rank's columns are complete. Nothing is sent."
    back = "Back through GELU, number by number, each rank in its own columns. Nothing is sent."
    first = ("up", "X · up", "4D", "columns")
    return _two_cuts(first, ("hidden", "4D", "GELU", there, back), "down")


def _attention() -> Layer:
    there = "A head needs its own Q, K and V and no other head's: each rank computes its heads. Nothing is sent."
    back = "Back through softmax, head by head, each rank its own heads. Nothing is sent."
    return _two_cuts(("QKV", "Q, K, V", "3D", "heads"), ("heads", "D", "softmax", there, back), "out")


def _two_cuts(first: tuple[str, str, str, str], between: tuple[str, str, str, str, str], second: str) -> Layer:
    """A column cut, something that every rank does alone, and a row cut."""
    (a, y, wide, cut), (inside, axis, does, there, back) = first, between
    columns = (
        _with_gradient("X", "T", "D"),
        _F,
        _with_gradient(a, "D", wide, cut, "×"),
        _with_gradient(y, "T", wide, cut, "="),
        _with_gradient(inside, "T", axis, "columns", "→", does),
        _with_gradient(second, axis, "D", "rows", "×"),
        _g("Z"),
        _with_gradient("Z", "T", "D", "", "Σ"),
    )
    alone = Step(inside, (y,), f"{does} inside each rank's stripes", there)
    alone_back = Step(_d(y), (_d(inside), y), f"back through {does}", back, is_backward=True)
    forward = (_by_columns("X", a, y), alone, *_by_rows(inside, second, "Z"))
    backward = (*_back_through_rows(inside, second, "Z"), alone_back, *_back_through_columns(a, y))
    return Layer(columns, (*forward, *backward))


def _by_columns(x: str, a: str, y: str) -> Step:
    words = f"Each rank multiplies all of {x} by its columns of {a}: its columns of {y} are complete. Nothing is sent."
    return Step(y, (x, a), f"{x} × {a}, column by column", words)


def _by_rows(x: str, a: str, y: str) -> tuple[Step, Step]:
    parts = f"parts of {y}"
    words = (
        f"Each rank multiplies its columns of {x} by its rows of {a}: that gives all of {y}, but a part of each sum."
    )
    meet = f"g, forward: an all-reduce adds the {parts} up. Now all ranks hold all of {y}, alike."
    return (
        Step(parts, (x, a), f"{x} × {a}: a part of each sum", words),
        Step(y, (parts,), "g is an all-reduce", meet, is_sum=True),
    )


def _back_through_rows(x: str, a: str, y: str) -> tuple[Step, Step, Step]:
    dx, da, dy = map(_d, (x, a, y))
    passes = f"{dy} comes back, the same on all ranks. g, backward: it passes as it is. Nothing is sent."
    weights = f"{da} = {x}ᵀ × {dy}: each rank gets the gradient of the rows of {a} that it holds. Nothing is sent."
    goes_on = f"{dx} = {dy} × {a}ᵀ: each rank gets its own columns of {dx}, complete. Nothing is sent."
    return (
        Step(dy, (), f"g lets {dy} pass", passes, is_backward=True),
        Step(da, (x, dy), f"{da} = {x}ᵀ × {dy}", weights, is_backward=True),
        Step(dx, (dy, a), f"{dx} = {dy} × {a}ᵀ", goes_on, is_backward=True),
    )


def _back_through_columns(a: str, y: str) -> tuple[Step, Step, Step]:
    da, dy = _d(a), _d(y)
    weights = f"{da} = Xᵀ × {dy}: each rank gets the gradient of the columns of {a} that it holds. Nothing is sent."
    partial = f"{dy} × {a}ᵀ: each rank gets all of dX, but only what its own columns of {a} want: a part of each sum."
    meet = "f, backward: an all-reduce adds the parts of dX up. Now all ranks hold all of dX, alike."
    return (
        Step(da, ("X", dy), f"{da} = Xᵀ × {dy}", weights, is_backward=True),
        Step("parts of dX", (dy, a), f"{dy} × {a}ᵀ: a part of dX each", partial, is_backward=True),
        Step("dX", ("parts of dX",), "f is an all-reduce", meet, is_backward=True, is_sum=True),
    )
