"""Live: real ranks, started by a button; their output and timeline as they come, and what is said of a deadlock."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.distributed as dist

from distlab.demos.course import built_in
from distlab.models import mlp
from distlab.ranks.launch import Settings, launch
from distlab.ranks.limits import ClockLimit
from distlab.ranks.outcome import RankError
from distlab.ranks.output import by_rank
from distlab.ranks.watching.spans import span
from distlab.recording import Recording
from distlab.show.board import Board
from distlab.show.chart import draw_lanes
from distlab.show.lanes import Lane, lanes_of
from distlab.show.live import LivePanel, Show
from distlab.show.look import WIDTH
from distlab.show.measured import measured

RANKS, STEPS, SLOW = 4, 8, 2
_HEIGHT = 3.2
_AREA = (0.85, 0.5, WIDTH - 0.85, _HEIGHT - 0.65)
_EVERY = 0.25  # seconds between two pictures
_LIMIT = 30.0  # seconds for a run


def live(deadlock: Callable[[], object] | None = None) -> LivePanel:
    """Two buttons: four ranks train together, of which one is slow to load its rows; and four that wait for ever.

    ``deadlock`` is what the second button starts on four ranks, a function without arguments; written in the notebook,
    the verdict shows its lines. Without it, four ranks in a ring all send first.
    """
    lab = built_in("data_parallel")
    training = partial(train, lab.train_step, *lab.first_rows(60))
    actions = {
        "start four ranks": partial(_follow, training, "Four ranks train together, lab 02's way"),
        "start a deadlock": partial(_follow, deadlock or everyone_sends_first, "Four ranks that wait for each other"),
    }
    return LivePanel(_board("Four ranks, not started", None, "Press a button: four processes start."), actions)


def train(train_step, x_BD: torch.Tensor, y_B: torch.Tensor) -> None:
    """On a rank: some steps of ``train_step``; before each the rows are loaded, which takes one rank longer."""
    model = mlp(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(STEPS):
        with span("load"):
            time.sleep(0.4 if dist.get_rank() == SLOW else 0.2)
        with span("step"):
            loss = train_step(model, optimizer, x_BD, y_B)
        print(f"step {step}: loss {loss:.4f}")


def everyone_sends_first() -> None:
    """On a rank: sends to the next and then receives from the one before, as all do; so nobody ever receives."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x = torch.zeros(4)
    time.sleep(0.5)
    dist.send(x, (rank + 1) % ranks)
    dist.recv(x, (rank - 1) % ranks)


def _follow(fn: Callable[[], object], title: str, show: Show) -> None:
    """Runs fn on ranks, shows what comes, and at the end the result or the verdict."""
    follower = _Follower(show, title)
    try:
        run = launch(fn, (), Settings(RANKS), ClockLimit(_LIMIT), quiet=True, follow=follower)
    except RankError as error:
        waits = {rank: "waits" for rank, failure in error.failures.items() if failure.kind == "stopped"}
        follower.show_last(f"Verdict: {error.verdict}.", str(error), waits)
    except RuntimeError as busy:  # another run of this notebook has not finished
        follower.show_last(f"Not started: {busy}", "")
    else:
        follower.recording = run.recording
        follower.show_last("All four have finished.", by_rank(run.output))


class _Follower:
    """Takes what a run shows of itself, a few times a second, and has it drawn."""

    def __init__(self, show: Show, title: str):
        self._show, self._title, self._next = show, title, 0.0
        self.recording: Recording | None = None

    def __call__(self, look) -> None:
        if time.monotonic() < self._next:
            return
        texts, self.recording = look()
        self._show(_board(self._title, self.recording, "They are running."), by_rank(texts))
        self._next = time.monotonic() + _EVERY

    def show_last(self, words: str, output: str, remarks: Mapping[int, str] | None = None) -> None:
        """Draws the end, with something to say of some ranks."""
        self._show(_board(self._title, self.recording, words, remarks), output)


def _board(title: str, recording: Recording | None, words: str, remarks: Mapping[int, str] | None = None) -> Board:
    """What has been recorded so far, by this computer's clock; ``remarks`` by rank stand at the ends of the lanes."""
    board = Board(title, _HEIGHT)
    board.say(words)
    if recording is None or not any(recording.ranks):
        draw_lanes(board, _AREA, [Lane(f"rank {rank}", "", ()) for rank in range(RANKS)], (0.0, 1.0), ("0 s", ""))
        return board
    timeline = measured(recording)
    lanes = [lane._replace(remark=(remarks or {}).get(rank, "")) for rank, lane in lanes_of(timeline).items()]
    shown, ends = (timeline.begin, timeline.end), ("0 s", f"{timeline.wall:.1f} s")
    draw_lanes(board, _AREA, lanes, shown, ends, unnamed="other work")
    messages = sum(len(list(recording.messages(rank))) for rank in range(recording.world_size))
    board.say(f"This computer's clock, measured: {timeline.wall:.1f} s, {messages} messages and collectives so far.")
    return board
