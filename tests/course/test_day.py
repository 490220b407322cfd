"""A learner's day: a new kernel that knows nothing, a helper that changes, prints, notebooks that lie elsewhere."""

from __future__ import annotations

import json
import re
import shutil
import sys
import types

import pytest

from distlab import check, from_lab, progress
from distlab.course import needs, places
from distlab.course import progress as progress_module
from distlab.course.check import examine
from distlab.course.exercise import Exercise
from distlab.course.from_lab import NotFinished
from distlab.course.notebook import Notebook
from distlab.course.places import ROOT, lab_file, progress_file
from distlab.course.shown import as_html, show

HELPED = "def share(n, rank, world):\n    return n // world + (rank < n % world)\n"
MY_ROWS = """
def my_rows(n, rank, world):
    start = sum(share(n, other, world) for other in range(rank))
    return range(start, start + share(n, rank, world))
"""


def define(source: str, name: str, namespace: dict | None = None):
    namespace = {"__name__": "__main__"} if namespace is None else namespace
    exec(source, namespace)
    return namespace[name]


# --- a new kernel ----------------------------------------------------------------------------------


def test_a_name_whose_cell_has_not_been_run_is_no_mistake_of_the_exercise():
    lone = define("def train_step(a, b, c, d):\n    return split_batch(c, d), torch.ones(1)\n", "train_step")
    verdict = examine(lone)
    assert verdict.mark == "○"
    assert "`torch`, `split_batch` are not defined in this kernel: run their cells (Run > Run All Above" in verdict.text


def test_a_name_that_no_cell_makes_is_the_learners_mistake():
    verdict = examine(define("def my_rows(n, rank, world):\n    return rnage(n)\n", "my_rows"))
    assert verdict.mark == "✗" and "name 'rnage' is not defined" in verdict.text


def test_what_a_helper_or_a_method_reads_counts_too():
    source = "def cut(n):\n    return dist.get_rank() + n\ndef my_rows(n, rank, world):\n    return cut(n)\n"
    assert "`dist` is not defined in this kernel" in examine(define(source, "my_rows")).text
    layer = "class ParallelMLP:\n    @staticmethod\n    def f(x):\n        return ColumnParallelLinear(x)\n"
    assert "`ColumnParallelLinear` is not defined" in examine(define(layer, "ParallelMLP")).text


def test_an_experiment_after_a_restart_asks_for_the_cells_and_not_for_checks_that_have_passed(main):
    main.my_rows = Notebook(ROOT / "solutions" / "00_start_here.ipynb").definitions()["my_rows"]
    examine(main.my_rows)
    del main.my_rows
    (line,) = needs.wait_for_needs(["%%needs my_rows\n"])
    assert "`my_rows` is not defined in this kernel: run its cell" in line


def test_exercises_stand_in_the_order_of_the_course(main):
    (line,) = needs.wait_for_needs(["%%needs train_step replicate\n"])
    names = ["replicate", "split_batch", "compute_gradients", "average_gradients", "update", "train_step"]
    places_of = [line.index(f"check({name})") for name in names]
    assert places_of == sorted(places_of)


def test_a_cell_that_waits_makes_no_names(main, capsys):
    for line in needs.wait_for_needs(["%%needs my_rows\n"]):
        exec(line, vars(main))
    assert "check(my_rows)" in capsys.readouterr().out and not hasattr(main, "show")


def test_a_cell_can_wait_for_an_earlier_labs_exercise(main, monkeypatch):
    cell = ["%%needs start_here.my_rows\n", "x = 1\n"]
    assert needs.wait_for_needs(cell) == ["\n", "x = 1\n"]  # the solution stands in
    monkeypatch.setattr(needs, "lab_file", lambda folder, name: None)
    assert "once check(my_rows) of lab start_here shows ✓." in needs.wait_for_needs(cell)[0]
    examine(Notebook(ROOT / "solutions" / "00_start_here.ipynb").definitions()["my_rows"])
    assert needs.wait_for_needs(cell) == ["\n", "x = 1\n"]


# --- a check of ours that fails --------------------------------------------------------------------


def broken(error):
    def check_it(learners, trial):
        raise error

    return Exercise("my_rows", check_it, (), ("", ""))


@pytest.mark.parametrize(
    ("error", "mark", "words"),
    [
        (ZeroDivisionError("by zero"), "✗", "the check itself failed. That is the course's mistake, not yours"),
        (KeyError("greet"), "○", "`greet` is not defined in this kernel"),
        (KeyError("anything"), "✗", "KeyError: 'anything'"),
        (KeyError(), "✗", "the check itself failed"),
    ],
)
def test_an_error_of_a_check_becomes_a_verdict(monkeypatch, capsys, error, mark, words):
    monkeypatch.setattr("distlab.course.check.exercises", lambda: {"my_rows": ("00_start_here", broken(error))})
    check(define("def my_rows():\n    pass\n", "my_rows"))
    out = capsys.readouterr().out
    assert out.startswith(mark) and words in out
    assert mark == "○" or "test_day.py, line" in out


# --- prints ----------------------------------------------------------------------------------------


def printing(lines: int, right: bool = True) -> str:
    body = "    start = sum(n // world + (r < n % world) for r in range(rank))\n"
    end = "start + n // world + (rank < n % world)" if right else "start"
    return f"def my_rows(n, rank, world):\n    print('line\\n' * {lines}, n)\n{body}    return range(start, {end})\n"


def test_what_an_exercise_prints_is_shown_under_its_verdict():
    for right in (True, False):
        text = examine(define(printing(1, right), "my_rows")).text
        assert "\n  Printed with " in text and re.search(r"\[ranks? .*\] line", text)


def test_a_flood_of_prints_is_capped():
    text = examine(define(printing(5000), "my_rows")).text
    assert len(text.splitlines()) < 30 and "lines more" in text


def test_a_right_answer_that_prints_nothing_shows_nothing():
    assert "Printed" not in examine(define(HELPED + MY_ROWS, "my_rows")).text


# --- what has changed ------------------------------------------------------------------------------


def test_a_helper_that_changes_is_named_where_its_pass_is_missed(main, capsys):
    namespace = vars(main)
    examine(define(HELPED + MY_ROWS, "my_rows", namespace))
    exec(HELPED.replace("(rank <", "(rank <="), namespace)
    (line,) = needs.wait_for_needs(["%%needs my_rows\n"])
    assert "once check(my_rows) shows ✓, since `share` has changed." in line
    exec(MY_ROWS.replace("start", "begin"), namespace)
    (line,) = needs.wait_for_needs(["%%needs my_rows\n"])
    assert "has changed" not in line  # its own code has, too


def test_passes_that_were_kept_when_less_was_known_still_count():
    mine = define(HELPED + MY_ROWS, "my_rows")
    examine(mine)
    record = json.loads(progress_file().read_text())
    record["my_rows"] = [entry["all"] for entry in record["my_rows"]]
    progress_file().write_text(json.dumps(record))
    assert progress_module.has_passed("my_rows", mine)


# --- where things lie ------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A learner's folder outside the course, with their own lab 00."""
    folder = tmp_path / "home" / "labs"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "solutions" / "00_start_here.ipynb", folder)
    monkeypatch.setattr(places, "HERE", folder)
    return folder


def test_the_learners_own_notebooks_are_those_beside_the_one_that_runs(elsewhere, capsys):
    assert lab_file("labs", "start_here") == elsewhere / "00_start_here.ipynb"
    assert lab_file("labs", "data_parallel") == ROOT / "labs" / "02_data_parallel.ipynb"
    examine(Notebook(elsewhere / "00_start_here.ipynb").definitions()["my_rows"])
    from_lab("start_here")
    assert "my_rows (yours)" in capsys.readouterr().out


def test_an_assignment_that_was_fetched_lies_in_a_folder_of_its_own(elsewhere, monkeypatch):
    other = elsewhere.parent / "02_data_parallel"
    other.mkdir()
    monkeypatch.setattr(places, "HERE", other)
    assert lab_file("labs", "start_here") == elsewhere / "00_start_here.ipynb"


def test_who_works_on_the_course_itself_has_its_labs(monkeypatch):
    monkeypatch.setattr(places, "HERE", ROOT / "solutions")
    for folder in ("labs", "solutions"):
        assert lab_file(folder, "start_here") == ROOT / folder / "00_start_here.ipynb"


@pytest.mark.parametrize("content", ["{ not json", "[]", '{"cells": [{"cell_type": "code"}]}', "{}"])
def test_from_lab_says_of_a_damaged_notebook_that_nothing_in_it_is_used(elsewhere, capsys, content):
    (elsewhere / "00_start_here.ipynb").write_text(content)
    assert from_lab("start_here").my_rows(10, 0, 4) == range(0, 3)
    out = capsys.readouterr().out
    assert "my_rows (the solution)" in out and "00_start_here.ipynb cannot be read as a notebook" in out


def test_without_solutions_a_renamed_notebook_is_asked_for_by_its_name(elsewhere, monkeypatch, tmp_path):
    (elsewhere / "00_start_here.ipynb").rename(elsewhere / "mine.ipynb")
    monkeypatch.setattr(places, "ROOT", tmp_path)
    with pytest.raises(NotFinished, match=r"from_lab\('start_here'\) needs your notebook of that lab: it is not in"):
        from_lab("start_here")


# --- how it looks ----------------------------------------------------------------------------------


def test_outside_a_notebook_text_is_printed(capsys):
    show("✓ my_rows: right")
    assert capsys.readouterr().out == "✓ my_rows: right\n"


def test_html_has_the_same_words_with_the_mark_the_names_and_the_difference_set_apart():
    html = as_html("✗ f, with 2 ranks:\n  rank 0: expected 3 < 4, got `x`")
    assert '<b style="color:#d6453d">✗</b> f, with 2 ranks:' in html
    assert "expected <b>3 &lt; 4</b>, got <b><code>x</code></b>" in html


def test_what_ranks_printed_is_set_as_it_was():
    assert as_html("  [ranks 0-3] `x` expected 1, got 2").count("<") == 4  # no more than a span in a div


def test_in_a_notebook_a_verdict_has_a_text_and_an_html_form(monkeypatch):
    shown = []
    kernel = types.SimpleNamespace(kernel=True)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: kernel))
    monkeypatch.setitem(
        sys.modules, "IPython.display", types.SimpleNamespace(display=lambda data, raw: shown.append(data))
    )
    show("○ later")
    assert shown[0]["text/plain"] == "○ later" and "later</div>" in shown[0]["text/html"]


def test_progress_breaks_no_name_and_fits_80_columns(capsys):
    progress()
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if line.rstrip().endswith(("✓", "○"))]
