"""The live demo: real ranks from a button, without waiting for them, and a deadlock's verdict."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from distlab.demos.live import STEPS, live
from distlab.ranks.launch import _one_at_a_time


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


def test_a_deadlock_of_ones_own_can_be_shown():
    panel = live(receive_only)
    press(panel, "start a deadlock")
    assert "each to receive from the next" in repr(panel)
    assert "dist.recv(torch.zeros(1)" in panel.output


def test_a_run_that_is_under_way_elsewhere_is_told(panel):
    with _one_at_a_time:
        press(panel, "start a deadlock")
    assert "Not started: another run() has not finished" in repr(panel)
