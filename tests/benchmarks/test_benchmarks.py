"""The table says what was measured, and by what."""

import pytest

from tests.benchmarks.__main__ import BENCHMARKS, main
from tests.benchmarks.peer import Peer
from tests.benchmarks.table import Group, Row, table
from tests.benchmarks.timing import fresh_python, last_line, median_seconds


def test_each_row_is_compared_with_the_first_of_its_group():
    pair = Group("pair", [Row("one", 0.5), Row("two", 1.25)])
    single = Group("single", [Row("three", 3.0, first=4.0)])
    rows = [line.split() for line in table([pair, single]).splitlines() if line.startswith("  ")]
    assert rows == [["one", "0.500", "1.00"], ["two", "1.250", "2.50"], ["three", "3.000", "1.00", "4.000"]]


def test_a_remark_stands_below_its_group_even_where_nothing_was_measured():
    text = table([Group("lab", remarks=["skipped: there is no lab"])])
    assert text.endswith("lab\n  -> skipped: there is no lab")


def test_a_median_is_not_moved_by_one_slow_call(monkeypatch):
    clock = iter([0, 1, 1, 2, 2, 99])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    assert median_seconds(lambda: None, repeats=3) == 1


def test_a_name_that_is_not_there_is_answered_with_those_that_are(capsys):
    with pytest.raises(SystemExit):
        main(["sell"])
    assert f"there is no sell; there is {', '.join(BENCHMARKS)}" in capsys.readouterr().err


def test_a_script_reports_on_its_last_line_and_its_failure_is_shown():
    assert last_line(fresh_python("-c", "print('chatter'); print([1, 2])")) == [1, 2]
    with pytest.raises(RuntimeError, match="ended with 1:\nno such thing"):
        fresh_python("-c", "raise SystemExit('no such thing')")


def test_the_values_of_a_peer_are_checked():
    script = "from tests.benchmarks.peers.work import answer_with; answer_with(lambda: [6.0, 6.0, 6.0, 0.0])"
    with pytest.raises(RuntimeError, match="AssertionError"):
        fresh_python("-c", script, given="call\n")


def test_a_peer_answers_each_call_and_a_peer_that_cannot_start_is_named():
    with Peer("plain_fork") as peer:
        assert 0 < peer.call() < 60 and 0 < peer.call() < 60
    with Peer("nobody") as peer, pytest.raises(RuntimeError, match="(?s)peers.nobody gave no answer:.*No module named"):
        peer.call()
