"""The table says what was measured, and by what."""

import pytest

from tests.benchmarks import cell_to_result
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


def rows_of(text):
    """Returns the cells of the table's rows by their names, which are one word here."""
    return {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.startswith("  ")}


def test_a_row_that_failed_says_so_and_the_others_stand():
    group = Group("group", [Row("one", 0.5)])
    with group.attempt("two", "three"):
        raise RuntimeError("no answer")
    with group.attempt("four"):
        group.rows.append(Row("four", 1.0))
    failed = ["failed:", "RuntimeError:", "no", "answer"]
    assert rows_of(table([group])) == {
        "one": ["0.500", "1.00"],
        "two": failed,
        "three": failed,
        "four": ["1.000", "2.00"],
    }
    assert group.failed and not Group("group", [Row("one", 0.5)]).failed


def test_where_the_first_row_failed_there_are_times_without_ratios():
    group = Group("group", [Row("one", failure="no answer"), Row("two", 1.25, first=2.0)])
    assert rows_of(table([group])) == {"one": ["failed:", "no", "answer"], "two": ["1.250", "2.000"]}


def test_a_peer_that_fails_leaves_the_rows_of_the_others(monkeypatch):
    peers = {"plain fork": ("plain_fork", 1), "distlab.run": ("nobody", 1), "torchrun": ("plain_fork", 2)}
    monkeypatch.setattr(cell_to_result, "PEERS", peers)
    monkeypatch.setattr(cell_to_result, "with_remarks", lambda rows: Group("cell", rows))
    fork, ours, torchrun = cell_to_result.measure().rows
    assert "No module named tests.benchmarks.peers.nobody" in ours.failure
    assert all(row.seconds > 0 and row.first > 0 and not row.failure for row in (fork, torchrun))


BROKEN = {
    "raises": ("raise ValueError('no such thing')", "ValueError: no such thing"),
    "exits": ("raise SystemExit(3)", "SystemExit: 3"),
    "crashes": ("import os; os._exit(1)", "BrokenProcessPool: A process in the process pool was terminated abruptly"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_group_that_fails_is_said_to_have_and_the_table_goes_on(how, tmp_path, monkeypatch, capsys):
    good = "from tests.benchmarks.table import *\ndef measure():\n    return [Group('good', [Row('one', 0.5)])] * 2\n"
    (tmp_path / "broken_group.py").write_text(f"def measure():\n    {BROKEN[how][0]}\n")
    (tmp_path / "good_group.py").write_text(good)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(BENCHMARKS, "broken", "broken_group")
    monkeypatch.setitem(BENCHMARKS, "good", "good_group")
    assert main(["broken", "good"]) == 1
    printed = capsys.readouterr().out
    assert f"failed: {BROKEN[how][1]}" in printed and printed.count("0.500") == 2
    assert main(["good"]) == 0
