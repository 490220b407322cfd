"""Live: real ranks, started by a button; their output and timeline as they come, and what is said of a deadlock."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import torch
import torch.distributed as dist

from distlab.demos.course import built_in
from distlab.events import P2P, Done, Fail, Message, Wait
from distlab.models import mlp
from distlab.ranks.launch import Settings, launch
from distlab.ranks.limits import ClockLimit
from distlab.ranks.outcome import RankError
from distlab.ranks.output import by_rank
from distlab.ranks.verdicts.diagnosis import Diagnosis
from distlab.ranks.watching.spans import span
from distlab.recording import Recording
from distlab.show.board import Board
from distlab.show.chart import Chart, draw_lanes
from distlab.show.lanes import Box, Lane, lanes_of
from distlab.show.live import LivePanel, Show
from distlab.show.look import COMMUNICATION, WIDTH
from distlab.show.measured import measured

RANKS, STEPS, SLOW = 4, 8, 2
_HEIGHT = 3.7
_AREA = (0.88, 0.62, WIDTH - 1.3, 3.0)
_EVERY = 0.25  # seconds between two pictures
_LIMIT = 30.0  # seconds for a run
_CIRCLE = COMMUNICATION.colour


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
        follower.show_last(f"Verdict: {error.verdict}.", str(error), follower.seconds)
    except RuntimeError as busy:  # another run of this notebook has not finished
        follower.show_last(f"Not started: {busy}", "")
    else:
        follower.recording = run.recording
        follower.show_last("All four have finished.", by_rank(run.output))


class _Follower:
    """Takes what a run shows of itself, a few times a second, and has it drawn."""

    def __init__(self, show: Show, title: str):
        self._show, self._title, self._next = show, title, 0.0
        self._started = time.monotonic()
        self.recording: Recording | None = None

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return time.monotonic() - self._started

    def __call__(self, look) -> None:
        if time.monotonic() < self._next:
            return
        texts, self.recording = look()
        self._show(_board(self._title, self.recording, "They are running.", self.seconds), by_rank(texts))
        self._next = time.monotonic() + _EVERY

    def show_last(self, words: str, output: str, until: float = 0.0) -> None:
        """Draws the end; with ``until``, ranks were stopped then, and those that could never go on are shown."""
        stuck = never_freed(self.recording) if until and self.recording else {}
        self._show(_board(self._title, self.recording, words, until, stuck), output)


def _board(
    title: str,
    recording: Recording | None,
    words: str,
    until: float = 0.0,
    stuck: Mapping[int, Collection[int]] = MappingProxyType({}),
) -> Board:
    """What has been recorded so far, by this computer's clock; waits that are not over last ``until`` then.

    Of ranks that are stuck, arrows lead to the ranks for which each waits.
    """
    board = Board(title, _HEIGHT)
    board.say(words)
    if recording is None or not any(recording.ranks):
        draw_lanes(board, _AREA, [Lane(f"rank {rank}", "", ()) for rank in range(RANKS)], (0.0, 1.0), ("0 s", ""))
        return board
    timeline = measured(recording)
    end = max(timeline.end, until)
    open_ones = open_waits(recording)
    lanes = [
        lane._replace(remark="", waits=[*lane.waits, *(_box(*wait, end) for wait in open_ones.get(rank, ()))])
        for rank, lane in lanes_of(timeline).items()
    ]
    ends = "0 s", f"{end - timeline.begin:.1f} s"
    chart = draw_lanes(board, _AREA, lanes, (timeline.begin, end), ends, unnamed="other work")
    _draw_who_waits_for_whom(board, chart, stuck)
    messages = sum(len(list(recording.messages(rank))) for rank in range(recording.world_size))
    board.say(
        f"This computer's clock, measured: {end - timeline.begin:.1f} s, {messages} messages and collectives so far."
    )
    return board


def open_waits(recording: Recording) -> dict[int, list[tuple[Message, float]]]:
    """By rank, what its main thread waits for at the end of the recording, and since when."""
    waits: dict[int, list[tuple[Message, float]]] = {}
    for rank, history in enumerate(recording.ranks):
        messages = {event.id: event for event in history if type(event) is Message}
        since = {event.id: event.start for event in history if type(event) is Wait and event.when != "thread"}
        over = {event.id for event in history if type(event) in (Done, Fail)}
        waits[rank] = [(messages[id], start) for id, start in since.items() if id not in over]
    return waits


def never_freed(recording: Recording) -> dict[int, set[int]]:
    """The ranks that can never go on, as the runner sees it, each with those for which it waits."""
    diagnosis = Diagnosis(recording.world_size)
    for number, group in enumerate(recording.groups):
        diagnosis.meetings.learn_group(number, group.name, group.members, world=0)
    for rank, history in enumerate(recording.ranks):
        for event in history:
            diagnosis.learn(rank, event)
    wanted = {rank: wanted for rank in diagnosis.stuck() if (wanted := diagnosis.wanted(rank))}
    return {rank: diagnosis.meetings.missing(rank, each) for rank, each in wanted.items()}


def _box(message: Message, start: float, end: float) -> Box:
    where = f" {'to' if message.kind == 'send' else 'from'} rank {message.peer}" if message.peer is not None else ""
    return Box(start, end, f"{message.kind}{where if message.kind in P2P else ''}", message.kind)


def _draw_who_waits_for_whom(board: Board, chart: Chart, stuck: Mapping[int, Collection[int]]) -> None:
    """Arrows beside the lanes, out of the lower half of one into the upper half of another; none lies on another."""
    if not stuck:
        return
    board.word(chart.right + chart.style.gap, chart.top - 0.16, "waits for", align="left", colour=_CIRCLE)
    off = 0.12 * chart.height
    ends = [(chart.y(rank) + off, chart.y(other) - off) for rank, others in stuck.items() for other in sorted(others)]
    columns = _columns(sorted(ends, key=lambda pair: abs(pair[0] - pair[1])))
    apart = min(0.26, 0.9 / max(1, max(columns.values())))
    for (leaves, enters), column in columns.items():
        x0, x = chart.right + 0.06, chart.right + 0.3 + apart * column
        board.lines([(x0, leaves, x, leaves), (x, leaves, x, enters)], _CIRCLE, 2.0)
        board.arrows([(x, enters, x0, enters)], _CIRCLE, 2.0)


def _columns(stretches: Sequence[tuple[float, float]]) -> dict[tuple[float, float], int]:
    """A column for each stretch, the first in which it touches no other."""
    columns: dict[tuple[float, float], int] = {}
    for stretch in stretches:
        top, bottom = min(stretch), max(stretch)
        taken = {column for other, column in columns.items() if min(other) <= bottom and max(other) >= top}
        columns[stretch] = next(column for column in range(len(stretches)) if column not in taken)
    return columns
