"""A run draws itself."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.distributed as dist

from distlab import span
from distlab.drawn import DrawnRun, run
from distlab.ranks import launch


def step():
    """Works, and adds up 40,000 bytes with the others."""
    x = torch.ones(100, 100)
    with span("F", 0):
        x = x @ x
    dist.all_reduce(x)
    return x[0, 0].item()


def test_a_run_draws_itself_on_both_clocks():
    drawn = run(step, ranks=2)
    assert isinstance(drawn, DrawnRun) and drawn.values == [200.0, 200.0]
    rows = str(drawn.timeline()).splitlines()[2:4]
    assert all(row.startswith(f"rank {rank} |") and "F0─" in row and "~" in row for rank, row in enumerate(rows))
    assert "this computer, measured" in str(drawn.timeline("measured"))
    assert str(drawn.traffic()).splitlines()[-1] == "every rank sends 40 kB"
    assert str(drawn.bytes_by_kind()).splitlines()[3].split() == ["rank", "1", "1", "×", "40", "kB"]
    assert str(drawn.memory()).startswith("bytes held on each rank")
    with pytest.raises(ValueError, match="no memory in it"):
        run(step, ranks=1, record="messages").memory()


def test_a_run_that_was_not_recorded_says_that_there_is_nothing_to_draw():
    drawn = run(step, ranks=1, record=False)
    for draw in (drawn.timeline, drawn.traffic, drawn.bytes_by_kind, drawn.memory):
        with pytest.raises(ValueError, match="this run was not recorded"):
            draw()


def test_it_takes_what_run_takes():
    assert inspect.signature(run) == inspect.signature(launch.run)
    assert run.__doc__ == launch.run.__doc__
