"""Routing: which expert each character of a real text goes to, who finds a place there, and on which rank."""

from __future__ import annotations

import math
from functools import partial

from distlab.demos import gate
from distlab.demos.gate import NUM_EXPERTS, NUM_LINES, NUM_TOKENS, Routing
from distlab.show.board import HANDLE, MARGIN, Board
from distlab.show.look import MID, RULE, TEXT, WIDTH, Look, okabe_ito
from distlab.show.panel import Panel, choice, slider

ALPHAS = (0.0, 0.01, 0.1)
FACTORS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, math.inf)
_HEIGHT = 4.9
_LEFT, _RIGHT = 2.0, 1.5  # inches beside the queues
_PLACE = (WIDTH - _LEFT - _RIGHT) / NUM_TOKENS
_TEXT, _TOP, _LANE = 0.6, 1.66, 0.34  # inches: middle of the text's line, top of the queues, a queue
_BOX, _LETTER = 0.25, 12.0  # inches: how high a token is; points of its letter, for which there is little room
_LOAD, _DROPPED = WIDTH - 1.02, WIDTH - MARGIN  # inches: where numbers beside the queues end
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
        board.lines([(x, _TOP - 0.02, x, _TOP + NUM_EXPERTS * _LANE + 0.05)], TEXT, 2.0, style="--")
        board.word(x, _TOP - 0.17, f"capacity {capacity}")
    _draw_legend(board, list(_LOOKS)[:top_k])
    board.say(*_words(routed, capacity, alpha, ranks))
    return board


def _draw_text(board: Board, routed: Routing, factor: float) -> None:
    """The line; under each character the numbers of its experts. Who has no place anywhere is hollow."""
    kept = [(number, token) for queue in routed.queues(factor) for token, number in queue]
    best = {token: number for number, token in sorted(kept, reverse=True)}  # the first choice that was kept
    letters = dict(enumerate(routed.line))
    for number in range(len(_LOOKS)):
        _draw_tokens(board, number, {_at(token, _TEXT): letters[token] for token in best if best[token] == number})
    _draw_tokens(board, None, {_at(token, _TEXT): letters[token] for token in letters if token not in best})
    board.word(_LEFT - 0.12, _TEXT, "token", align="right")
    for number in range(routed.top_k):
        y = _TEXT + 0.27 + 0.25 * number
        board.word(_LEFT - 0.12, y, ("expert", "and expert")[number], align="right")
        for token, expert in enumerate(routed.experts_TK[:, number].tolist()):
            board.word(*_at(token, y), str(expert))


def _draw_queues(board: Board, routed: Routing, capacity: int) -> None:
    kept: dict[int | None, dict] = {0: {}, 1: {}, None: {}}
    for expert, queue in enumerate(routed.queues()):
        y = _TOP + (expert + 0.5) * _LANE
        for place, (token, number) in enumerate(queue):
            kept[number if place < capacity else None][_at(place, y)] = routed.line[token]
        if len(queue) < NUM_TOKENS:
            board.lines([(_LEFT + len(queue) * _PLACE + 0.03, y, WIDTH - _RIGHT, y)])
        out = max(0, len(queue) - capacity)
        board.word(_LOAD, y, f"{len(queue)}", align="right")
        board.word(_DROPPED, y, f"{out}" if out else "–", align="right")
    for number, tokens in kept.items():
        _draw_tokens(board, number, tokens)
    board.word(_LOAD, _TOP - 0.17, "load", align="right")
    board.word(_DROPPED, _TOP - 0.17, "dropped", align="right")


def _draw_tokens(board: Board, number: int | None, letters: dict[tuple[float, float], str]) -> None:
    """Characters by their middles, as boxes of a choice, or hollow if they are dropped."""
    boxes = [(x - 0.46 * _PLACE, y - _BOX / 2, x + 0.46 * _PLACE, y + _BOX / 2) for x, y in letters]
    colour = TEXT
    if number is None:
        board.frames(boxes, MID, 1.0, dotted=True)
    elif boxes:
        look = list(_LOOKS.values())[number]
        board.boxes(boxes, look)
        colour = look.ink
    for (x, y), letter in letters.items():
        board.word(x, y, "·" if letter == " " else letter, _LETTER, colour=colour)


def _draw_legend(board: Board, kept: list[str]) -> None:
    def dropped(x: float, y: float) -> None:
        board.frames([(x + 0.03, y - 0.09, x + HANDLE - 0.03, y + 0.09)], MID, 1.0, dotted=True)

    def space(x: float, y: float) -> None:
        board.word(x + HANDLE / 2, y, "·", _LETTER)

    entries = {name: partial(board.patch, _LOOKS[name]) for name in kept}
    board.legend(MARGIN, _HEIGHT - 0.2, entries | {"dropped: its queue is full": dropped, "a space": space})


def _draw_ranks(board: Board, loads: list[int], capacity: int, ranks: int) -> None:
    """Which rank holds which experts, and how many tokens they take."""
    each = NUM_EXPERTS // ranks
    for expert in range(NUM_EXPERTS):
        board.word(_LEFT - 0.12, _TOP + (expert + 0.5) * _LANE, f"expert {expert}", align="right")
    for rank, kept in enumerate(by_rank(loads, capacity, ranks)):
        y0, y1 = _TOP + rank * each * _LANE, _TOP + (rank + 1) * each * _LANE
        board.frames([(0.05, y0 + 0.02, WIDTH - _RIGHT + 0.03, y1 - 0.02)], RULE, 1.0)
        board.word(0.53, (y0 + y1) / 2, f"rank {rank}\ntakes {kept}")


def by_rank(loads: list[int], capacity: int, ranks: int) -> list[int]:
    """By rank, how many choices its experts take; rank r holds experts r · E/W to (r + 1) · E/W − 1."""
    each = len(loads) // ranks
    kept = [min(load, capacity) for load in loads]
    return [sum(kept[rank * each : (rank + 1) * each]) for rank in range(ranks)]


def _at(place: int, y: float) -> tuple[float, float]:
    return _LEFT + (place + 0.5) * _PLACE, y


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
