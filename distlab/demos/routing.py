"""Routing: which expert each character of a real text goes to, who finds a place there, and on which rank."""

from __future__ import annotations

import math

from distlab.demos import gate
from distlab.demos.gate import NUM_EXPERTS, NUM_LINES, NUM_TOKENS, Routing
from distlab.show.board import Board
from distlab.show.letters import width_of
from distlab.show.look import INK, WHITE, WIDTH, Look, okabe_ito
from distlab.show.marks import Rectangle
from distlab.show.panel import Panel, choice, slider

ALPHAS = (0.0, 0.01, 0.1)
FACTORS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, math.inf)
_HEIGHT = 4.2
_LEFT, _RIGHT = 1.72, 1.2  # inches beside the queues
_PLACE = (WIDTH - _LEFT - _RIGHT) / NUM_TOKENS
_TEXT, _TOP, _LANE = 0.55, 1.4, 0.305  # inches: middle of the text's line, top of the queues, a queue
_LOOKS = {"first choice": Look(okabe_ito["sky blue"], ""), "second choice": Look(okabe_ito["yellow"], "")}


def routing(top_k: int = 1, factor: float = 1.25, alpha: float = 0.01, ranks: int = 4, line: int = 0) -> Panel:
    """Tokens to 8 experts, to try: with a capacity ``factor`` (``math.inf``: no limit) and the gate of a model that was
    trained with a balance loss of strength ``alpha``, the experts on so many ``ranks``, for one ``line`` of 8.

    Gate, balance loss, capacity and queues are lab 09's. Small GPTs are trained while the panel is made, one for each
    k and alpha, which takes some seconds. The text is Python's own help; it changes with Python's release. Raises
    NotFinished where lab 09 has neither been written nor a solution.
    """
    for each_k in (1, 2):
        for each_alpha in ALPHAS:
            gate.trained(each_k, each_alpha)
    controls = {
        "top_k": choice("top-k", [1, 2], top_k),
        "factor": choice("capacity factor", {"none" if f == math.inf else f"{f:g}": f for f in FACTORS}, factor),
        "alpha": choice("balance loss α", {f"{a:g}": a for a in ALPHAS}, alpha),
        "ranks": choice("ranks", {str(number): number for number in (1, 2, 4)}, ranks),
        "line": slider("line of text", 0, NUM_LINES - 1, line),
    }
    return Panel(draw, controls)


def share_dropped(loads: list[int], capacity: int) -> float:
    """Of all choices, the share that finds its expert's queue full: sum of max(0, load − capacity), over all."""
    return sum(max(0, load - capacity) for load in loads) / sum(loads)


def draw(top_k: int, factor: float, alpha: float, ranks: int, line: int) -> Board:
    """The picture of one setting."""
    routed = gate.routing(top_k, alpha, line)
    capacity = routed.capacity(factor)
    loads, dropped = routed.loads, share_dropped(routed.loads, capacity)
    limit = "no capacity limit" if factor == math.inf else f"capacity {capacity}"
    board = Board(f"Top-{top_k} of {NUM_EXPERTS} experts, {limit}: {dropped:.1%} of choices dropped", _HEIGHT)
    _draw_text(board, routed, factor)
    _draw_queues(board, routed, capacity)
    _draw_ranks(board, loads, capacity, ranks)
    if factor < math.inf:
        x = _LEFT + capacity * _PLACE
        board.lines([(x, _TOP - 0.05, x, _TOP + NUM_EXPERTS * _LANE + 0.05)], INK, 2.0, style="--")
        board.word(x, _TOP - 0.15, f"capacity {capacity}")
    _draw_legend(board, list(_LOOKS)[:top_k])
    board.say(*_words(routed, capacity, alpha, ranks))
    return board


def _draw_text(board: Board, routed: Routing, factor: float) -> None:
    """The line; under each character the numbers of its experts. Who has no place anywhere is hollow."""
    kept = [(number, token) for queue in routed.queues(factor) for token, number in queue]
    best = {token: number for number, token in sorted(kept, reverse=True)}  # the first choice that was kept
    for number, look in enumerate(_LOOKS.values()):
        board.boxes([_box(token, _TEXT) for token in best if best[token] == number], look)
    _draw_hollow(board, [_box(token, _TEXT) for token in range(NUM_TOKENS) if token not in best])
    for token, letter in enumerate(routed.line):
        board.word(_x(token), _TEXT, _shown(letter), size=12)
    board.word(_LEFT - 0.12, _TEXT, "token", align="right")
    for number in range(routed.top_k):
        y = _TEXT + 0.26 + 0.22 * number
        board.word(_LEFT - 0.12, y, ("expert", "and expert")[number], align="right")
        for token, expert in enumerate(routed.experts_TK[:, number].tolist()):
            board.word(_x(token), y, str(expert))


def _draw_queues(board: Board, routed: Routing, capacity: int) -> None:
    hollow, kept = [], {name: [] for name in _LOOKS}
    for expert, queue in enumerate(routed.queues()):
        y = _TOP + (expert + 0.5) * _LANE
        for place, (token, number) in enumerate(queue):
            board.word(_x(place), y, _shown(routed.line[token]), size=12)
            (kept[list(_LOOKS)[number]] if place < capacity else hollow).append(_box(place, y))
        board.lines([(_LEFT + len(queue) * _PLACE, y, WIDTH - _RIGHT, y)])
        out = max(0, len(queue) - capacity)
        text = f"{len(queue)}" + f", {out} dropped" * bool(out)
        board.word(WIDTH - _RIGHT + 0.06, y, text, size=10, align="left")
    for name, rectangles in kept.items():
        board.boxes(rectangles, _LOOKS[name])
    _draw_hollow(board, hollow)
    board.word(WIDTH - _RIGHT + 0.06, _TOP - 0.12, "tokens", size=10, align="left")


def _draw_hollow(board: Board, rectangles: list[Rectangle]) -> None:
    board.boxes(rectangles, Look(WHITE, ""))
    board.frames(rectangles, okabe_ito["vermillion"], 1.2, dotted=True)


def _draw_legend(board: Board, kept: list[str]) -> None:
    y, x = _HEIGHT - 0.15, _LEFT
    board.key(x, y, {name: _LOOKS[name] for name in kept})
    x += sum(0.7 + width_of(name) for name in kept)
    _draw_hollow(board, [(x, y - 0.09, x + 0.3, y + 0.09)])
    board.word(x + 0.38, y, "dropped: its queue is full   (· is a space)", align="left")


def _draw_ranks(board: Board, loads: list[int], capacity: int, ranks: int) -> None:
    """Which rank holds which experts, and how many tokens they take."""
    each = NUM_EXPERTS // ranks
    for expert in range(NUM_EXPERTS):
        board.word(_LEFT - 0.12, _TOP + (expert + 0.5) * _LANE, f"expert {expert}", align="right")
    for rank, kept in enumerate(by_rank(loads, capacity, ranks)):
        y0, y1 = _TOP + rank * each * _LANE, _TOP + (rank + 1) * each * _LANE
        board.frames([(0.08, y0 + 0.02, WIDTH - _RIGHT + 0.02, y1 - 0.02)], INK, 1.0)
        board.word(0.44, (y0 + y1) / 2 - 0.09, f"rank {rank}", size=10)
        board.word(0.44, (y0 + y1) / 2 + 0.1, f"takes {kept}", size=10)


def by_rank(loads: list[int], capacity: int, ranks: int) -> list[int]:
    """By rank, how many choices its experts take; rank r holds experts r · E/W to (r + 1) · E/W − 1."""
    each = len(loads) // ranks
    kept = [min(load, capacity) for load in loads]
    return [sum(kept[rank * each : (rank + 1) * each]) for rank in range(ranks)]


def _x(place: int) -> float:
    return _LEFT + (place + 0.5) * _PLACE


def _box(place: int, y: float) -> tuple[float, float, float, float]:
    return _x(place) - 0.46 * _PLACE, y - 0.12, _x(place) + 0.46 * _PLACE, y + 0.12


def _shown(letter: str) -> str:
    return "·" if letter == " " else letter


def _words(routed: Routing, capacity: int, alpha: float, ranks: int) -> list[str]:
    loads, num_choices = routed.loads, NUM_TOKENS * routed.top_k
    mean, takes = num_choices / NUM_EXPERTS, by_rank(loads, capacity, ranks)
    busiest = f"the busiest has {max(loads) / mean:.3g} times it"
    balance = f"1 if shares f or probabilities P are even, {NUM_EXPERTS} at collapse"
    words = [
        f"Trained: a GPT with these experts, for {gate.STEPS} steps on Python's help text, balance loss α = {alpha:g}.",
        f"Tokens by expert: {', '.join(map(str, loads))}. Mean {mean:g}; {busiest}.",
        f"The balance loss over α is {routed.balance:.2f}: {balance}.",
        f"{num_choices - sum(takes)} of {num_choices} choices are dropped.",
    ]
    if ranks > 1:
        words[-1] += f" Ranks take {', '.join(map(str, takes))}: if the line is rank 0's, {sum(takes[1:])} travel."
    return words
