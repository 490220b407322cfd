"""What ranks print reaches the cell: by rank, capped, native code included."""

from __future__ import annotations

import os
import sys
import time

import cloudpickle
import pytest
import torch.distributed as dist

from distlab import RankError, run
from distlab.ranks.output import by_rank, name_ranks

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_output_is_shown_once_by_rank_and_kept(capsys):
    done = run(lambda: print("hello from", dist.get_rank()), ranks=3)
    assert capsys.readouterr().out == "[rank 0] hello from 0\n[rank 1] hello from 1\n[rank 2] hello from 2\n"
    assert done.output == [f"hello from {rank}\n" for rank in range(3)]


def test_ranks_that_print_the_same_share_their_lines(capsys):
    run(lambda: print("ready"), ranks=3)
    assert capsys.readouterr().out == "[ranks 0-2] ready\n"


def test_native_output_stderr_and_a_last_line_without_end_are_kept():
    def speak():
        os.system("echo from the shell")
        print("to stderr", file=sys.stderr)
        sys.stdout.write("no end of line")

    assert run(speak, ranks=1).output == ["from the shell\nto stderr\nno end of line"]


def test_output_before_a_crash_is_kept():
    def crash():
        print("last words")
        os.abort()

    with pytest.raises(RankError) as caught:
        run(crash, ranks=1)
    assert caught.value.output[0].startswith("last words\n")


def test_a_million_lines_are_counted_not_kept(capsys):
    def flood():
        for i in range(1_000_000):
            print(i)

    started = time.monotonic()
    done = run(flood, ranks=2)
    assert time.monotonic() - started < 30
    assert len(done.output[0]) < 200_000
    assert done.output[0].startswith("0\n1\n") and done.output[0].endswith("999998\n999999\n")
    assert "lines left out" in done.output[0]
    assert len(capsys.readouterr().out.splitlines()) < 500


def test_a_progress_bar_shows_its_last_state():
    def bar():
        for i in range(5):
            print(f"\r{i}/4", end="")
        print()

    assert run(bar, ranks=1).output == ["4/4\n"]


def test_a_long_run_streams_whole_lines_while_it_runs(capsys, monkeypatch):
    monkeypatch.delenv("CI")
    monkeypatch.setattr("distlab.ranks.output.STREAM_AFTER", 0.2)

    def slow():
        for i in range(4):
            print("line", i)
            time.sleep(0.4)

    run(slow, ranks=2)
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == sorted(f"[rank {r}] line {i}" for r in range(2) for i in range(4))
    assert lines.index("[rank 1] line 0") < lines.index("[rank 0] line 3")


def test_what_is_not_utf_8_does_not_break_the_cell():
    assert run(lambda: os.write(1, b"\xff\xfe ok\n"), ranks=1).output[0].endswith(" ok\n")


def test_the_noise_of_torchs_native_code_is_left_out():
    noise = "[W1129 10:00:00.1 ProcessGroupGloo.cpp:1] Unable to resolve hostname\nframe #0: c10::Error()\n"
    assert run(lambda: os.write(2, f"{noise}mine\n".encode()), ranks=1).output == ["mine\n"]


def test_ranks_are_named_in_words():
    assert [name_ranks(ranks) for ranks in ([2], [0, 3], [0, 1, 2], [0, 1, 3])] == [
        "rank 2",
        "ranks 0 and 3",
        "ranks 0-2",
        "ranks 0, 1 and 3",
    ]


def test_blank_output_is_not_shown():
    assert by_rank(["", "\n", "x\n"]) == "[rank 2] x\n"
