"""ZeRO and memory: what one GPU holds to train a model, stage by stage, against the memory of cards that are sold."""

from __future__ import annotations

from dataclasses import dataclass

from distlab.demos.memory_bars import KINDS, amount, draw_bars, draw_table, smallest_card
from distlab.machine.memory import (
    OPTIMIZERS,
    PRECISIONS,
    RECOMPUTATION,
    STAGES,
    activation_bytes,
    bytes_by_kind,
    recipe,
)
from distlab.machine.model_shapes import SHAPES, ZERO_7B, Shape
from distlab.show.board import Board
from distlab.show.panel import Panel, choice, slider

NUM_GPUS = tuple(2**power for power in range(11))
SEQUENCES = (512, 1024, 2048, 4096, 8192, 32768, 131072)
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
NOT_COUNTED = "not counted"
ACTIVATIONS = {
    NOT_COUNTED: NOT_COUNTED,
    "all kept": "none",
    "selective": "selective",
    "full": "full",
}
_BY_NAME = {shape.name: shape for shape in SHAPES}
_ROOM = 80  # GB: the card that most clusters have
_HEIGHT = 4.6


def memory(
    model: str = ZERO_7B.name,
    ranks: int = 64,
    stage: int = 0,
    precision: str = "mixed 16-bit",
    optimizer: str = "Adam",
    sequence: int = 2048,
    micro_batch: int = 1,
    activations: str = NOT_COUNTED,
) -> Panel:
    """Bars of what one of ``ranks`` GPUs holds in each ZeRO stage, to try.

    ``sequence`` is in places, ``micro_batch`` in rows a GPU. ``activations`` are "not counted" (as in the ZeRO paper's
    figures), or those of the layers with recomputation "none", "selective" or "full". The arithmetic is that of
    ``distlab.machine.memory``, with its sources; buffers, logits and what an allocator wastes are not in it.
    """
    return Panel(
        draw,
        {
            "model": choice("model", list(_BY_NAME), model),
            "ranks": choice("GPUs N", {f"{number:,}": number for number in NUM_GPUS}, ranks),
            "stage": slider("ZeRO stage", 0, 3, stage),
            "precision": choice("precision", list(PRECISIONS), precision),
            "optimizer": choice("optimizer", list(OPTIMIZERS), optimizer),
            "activations": choice("activations", ACTIVATIONS, activations),
            "sequence": choice("sequence length", {f"{number:,}": number for number in SEQUENCES}, sequence),
            "micro_batch": choice("micro-batch", {str(number): number for number in MICRO_BATCHES}, micro_batch),
        },
    )


@dataclass(frozen=True)
class Case:
    """A model, how it is trained, and among how many GPUs its states are shared out."""

    shape: Shape
    ranks: int
    precision: str
    optimizer: str
    sequence: int
    micro_batch: int
    activations: str

    def held(self, stage: int, ranks: int | None = None) -> dict[str, float]:
        """Bytes of each kind on one GPU."""
        shared = bytes_by_kind(stage, ranks or self.ranks, recipe(self.precision, self.optimizer))
        states = {kind: size * self.shape.parameters for kind, size in shared._asdict().items()}
        return states | {"activations": self._of_activations()}

    def _of_activations(self) -> float:
        if self.activations not in RECOMPUTATION:
            return 0.0
        sizes = self.sequence, self.micro_batch, self.shape.width, self.shape.heads
        return self.shape.layers * activation_bytes(*sizes, self.activations, self.precision)

    def least_ranks(self, stage: int, room: float) -> int | None:
        """The least N, a power of two up to 1,024, with which a stage fits into ``room`` bytes."""
        return next((ranks for ranks in NUM_GPUS if sum(self.held(stage, ranks).values()) <= room), None)


def draw(
    model: str,
    ranks: int,
    stage: int,
    precision: str,
    optimizer: str,
    activations: str,
    sequence: int,
    micro_batch: int,
) -> Board:
    """The picture of one setting."""
    case = Case(_BY_NAME[model], ranks, precision, optimizer, sequence, micro_batch, activations)
    held = [case.held(each) for each in STAGES]
    totals = [sum(kinds.values()) for kinds in held]
    gpus = f"{ranks:,} GPU" + "s" * (ranks > 1)
    board = Board(f"{model} on N = {gpus}, stage {stage}: {amount(totals[stage])} on each", _HEIGHT)
    shared = [f"{', '.join('OGP'[:each])}\n÷ {ranks:,}" if each else "all whole\n" for each in STAGES]
    draw_bars(board, held, shared, stage)
    draw_table(board, stage, held[stage], activations != NOT_COUNTED)
    _say(board, case, stage, held[stage], totals)
    return board


def _say(board: Board, case: Case, stage: int, held: dict[str, float], totals: list[float]) -> None:
    counts = case.activations != NOT_COUNTED
    named = [f"{kind} {amount(held[kind])}" for kind in KINDS[:3]]
    named.append(f"activations {amount(held['activations'])}" if counts else "activations not counted")
    board.say(f"Stage {stage}, on each GPU: {', '.join(named)}. {_what_fits(case, stage, totals[stage])}")
    if stage:
        *before, now = (amount(total) for total in totals[: stage + 1])
        board.say(f"Stages 0 to {stage} take {', '.join(before)} and {now}.")
    if case.ranks == 1:
        board.say("One GPU has nobody to share with, so all stages are alike.")
    elif counts:
        board.say("No stage cuts the activations.")
    if counts and not case.shape.like_gpt:
        board.say(f"Their formula is for GPT's layers: {case.shape.name}'s differ, so take it as a rough figure.")


def _what_fits(case: Case, stage: int, total: float) -> str:
    card = smallest_card(total)
    fits = f"That fits a card of {card.gigabytes} GB." if card else "That fits none of these cards."
    if card and card.gigabytes <= _ROOM:
        return fits
    least = case.least_ranks(stage, _ROOM * 1e9)
    if least:
        return f"{fits} It fits {_ROOM} GB from N = {least:,} on."
    return f"{fits} Up to N = {NUM_GPUS[-1]:,} it never fits {_ROOM} GB."
