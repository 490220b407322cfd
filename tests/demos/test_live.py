"""The live demo: real ranks from a button, without waiting for them, and a deadlock's verdict."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from distlab.demos.live import STEPS, _board, live, never_freed, open_waits
from distlab.events import Compute, Message, Wait
from distlab.ranks.launch import _one_at_a_time
from distlab.recording import Recording
from distlab.show.look import WIDTH
from distlab.show.marks import Arrows, Lines
from tests.demos.pictures import assert_legible


@pytest.fixture
def panel():
    return live()


def press(panel, name: str) -> list[str]:
    """Presses a button, waits until it is over, and returns the words that were seen meanwhile."""
    panel.press(name)
    return follow(panel)


def follow(panel) -> list[str]:
    """Waits until what was started is over; returns the words that were seen meanwhile."""
    seen = []
    while panel.thread.is_alive():
        seen.append(repr(panel))
        time.sleep(0.05)
    return seen


def arrows(board) -> list[tuple[int, int]]:
    """Who waits for whom, as drawn: from the lane where an arrow's line leaves to that which its head points at."""
    rows = {int(mark.text[5:]): mark.y for mark in board.marks if getattr(mark, "text", "").startswith("rank ")}
    lines = [line for mark in board.marks if isinstance(mark, Lines) and mark.width == 2.0 for line in mark.lines]
    heads = [arrow for mark in board.marks if isinstance(mark, Arrows) for arrow in mark.arrows]

    def row_at(y: float) -> int:
        return min(rows, key=lambda rank: abs(rows[rank] - y))

    found = []
    for (_, leaves), (x, _) in (line for line in lines if line[0][1] == line[1][1]):
        enters = next(b[1] for a, b in lines if a == (x, leaves) and a[0] == b[0])
        assert any(y == enters and x0 == x and x1 < x0 for x0, y, x1, _ in heads)
        found.append((row_at(leaves), row_at(enters)))
    return sorted(found)


def two_pairs_in_one() -> None:
    """Ranks 0 and 3 send to each other, the others wait for them in an all-reduce."""
    rank = dist.get_rank()
    if rank in (0, 3):
        dist.send(torch.zeros(4), 3 - rank)
    dist.all_reduce(torch.zeros(4))


def receive_only() -> None:
    dist.recv(torch.zeros(1), (dist.get_rank() + 1) % dist.get_world_size())


def test_ranks_are_seen_while_they_run_and_buttons_wait_until_they_have_finished(panel):
    panel.press("start four ranks")
    first = panel.thread
    assert all(button.disabled for button in panel.buttons)
    panel.press("start a deadlock")
    assert panel.thread is first
    seen = follow(panel)
    assert any("They are running" in words and "measured" in words for words in seen)
    assert "All four have finished" in repr(panel) and panel.output.count("loss") == STEPS
    assert not any(button.disabled for button in panel.buttons)


def test_a_deadlock_is_named_within_seconds(panel):
    started = time.monotonic()
    press(panel, "start a deadlock")
    assert time.monotonic() - started < 15
    assert "0 → 1 → 2 → 3 → 0 wait in a circle, each to send to the next" in repr(panel)
    assert "rank 3 waits in send to rank 0" in panel.output
    assert {"send to rank 1", "send to rank 2", "send to rank 3", "send to rank 0"} <= set(panel.picture.written)
    assert arrows(panel.picture) == [(0, 1), (1, 2), (2, 3), (3, 0)]
    assert_legible(panel.picture)


def test_a_deadlock_of_ones_own_can_be_shown():
    panel = live(receive_only)
    press(panel, "start a deadlock")
    assert "each to receive from the next" in repr(panel)
    assert "dist.recv(torch.zeros(1)" in panel.output
    assert "receive from rank 1" not in panel.picture.written and "recv from rank 1" in panel.picture.written


def test_who_waits_for_several_has_an_arrow_to_each():
    panel = live(two_pairs_in_one)
    press(panel, "start a deadlock")
    assert arrows(panel.picture) == [(0, 3), (1, 0), (1, 3), (2, 0), (2, 3), (3, 0)]
    assert_legible(panel.picture)
    right = max(max(a[0], b[0]) for mark in panel.picture.marks if isinstance(mark, Lines) for a, b in mark.lines)
    assert right < WIDTH


def test_waits_that_are_not_over_last_until_now():
    live_one = Recording([[Message(1, "send", peer=1, start=0.5), Wait(1, start=0.5)], [Compute(start=0.0, end=1.0)]])
    assert open_waits(live_one) == {0: [(live_one.ranks[0][0], 0.5)], 1: []}
    assert never_freed(live_one) == {}
    board = _board("x", live_one, "", until=2.0)
    (line,) = [line for mark in board.marks if isinstance(mark, Lines) and mark.style == ":" for line in mark.lines][
        -1:
    ]
    assert "2.0 s" in board.written and line


def test_a_run_that_is_under_way_elsewhere_is_told(panel):
    with _one_at_a_time:
        press(panel, "start a deadlock")
    assert "Not started: another run() has not finished" in repr(panel)
