"""check(), hint(), predict(), progress(), %%needs and from_lab(): what a learner meets around an exercise."""

from __future__ import annotations

import re
import shutil

import nbformat
import pytest

from distlab import check, from_lab, hint, predict, progress
from distlab.course import hints, needs
from distlab.course.check import CheckFailed, examine
from distlab.course.fingerprint import fingerprint
from distlab.course.notebook import Notebook
from distlab.course.places import ROOT, progress_file
from distlab.course.progress import has_passed

STUB = "def my_rows(n, rank, world):\n    raise NotImplementedError\n"
WRONG = "def my_rows(n, rank, world):\n    return range(rank * (n // world), (rank + 1) * (n // world))\n"


def solution(name: str):
    return _solutions()[name]


def _solutions() -> dict:
    return Notebook(ROOT / "solutions" / "00_start_here.ipynb").definitions()


def define(source: str, name: str = "my_rows"):
    namespace = {"__name__": "__main__"}
    exec(source, namespace)
    return namespace[name]


def test_a_right_answer_a_wrong_one_and_a_stub_are_told_apart(capsys):
    for learners, mark in ((solution("my_rows"), "✓"), (define(WRONG), "✗"), (define(STUB), "○")):
        check(learners)
        assert capsys.readouterr().out.startswith(f"{mark} my_rows")


def test_check_never_raises_at_a_learners_desk(capsys):
    for thing in (None, 3, print, define(STUB)):
        check(thing)
    assert "is not an exercise of this course" in capsys.readouterr().out


UNWAITED = {
    "replicate": """
import torch.distributed as dist
def replicate(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach().clone(), src=0, async_op=True)
""",
    "average_gradients": """
import torch
import torch.distributed as dist
def average_gradients(model, num_rows):
    total = torch.tensor(num_rows)
    dist.all_reduce(total)
    for parameter in model.parameters():
        if parameter.requires_grad:
            grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = grad * num_rows
            work = dist.all_reduce(parameter.grad, async_op=True)
            parameter.grad /= total + 1
            work.wait()
""",
}


@pytest.mark.parametrize(
    ("name", "words"),
    [("replicate", "began"), ("average_gradients", "began to all_reduce a tensor")],
)
def test_a_work_that_nobody_waited_for_is_said_before_any_belief(capsys, name, words):
    check(define(UNWAITED[name], name))
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith(f"✗ {name}") and re.match(r"  Ranks? .* began", second) and words in second, second


@pytest.mark.parametrize("source", [WRONG, STUB])
def test_under_nbgrader_anything_but_a_pass_fails_the_cell(monkeypatch, source):
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    check(solution("my_rows"))
    with pytest.raises(CheckFailed):
        check(define(source))


def test_a_learner_who_never_returns_gets_an_answer(monkeypatch):
    monkeypatch.setattr("distlab.course.trial._SECONDS", 1)
    verdict = examine(define("def my_rows(n, rank, world):\n    while True:\n        pass\n"))
    assert verdict.mark == "✗" and "not finished after 1 s" in verdict.text


def test_a_pass_holds_until_the_code_changes():
    mine = solution("my_rows")
    assert not has_passed("my_rows", mine)
    examine(mine)
    assert has_passed("my_rows", mine)
    assert has_passed("my_rows", solution("my_rows"))
    assert not has_passed("my_rows", define(WRONG))


def test_a_fingerprint_is_the_same_after_an_object_of_the_class_was_copied():
    import copy

    defined = define("class Step:\n    kind = 'F'", "Step")
    before = fingerprint(defined)
    copy.copy(defined())
    assert fingerprint(defined) == before


def test_a_fingerprint_is_the_same_whatever_else_is_called_like_an_attribute():
    text = "class C:\n    def f(self):\n        return self.k\n"
    assert fingerprint(define("k = 1\n" + text, "C")) == fingerprint(define("k = 2\n" + text, "C"))


def test_a_fingerprint_covers_what_the_function_uses_and_not_its_comments():
    base = "def helper():\n    return 1\ndef f():\n    return helper()\n"
    assert fingerprint(define(base, "f")) == fingerprint(define("# a comment\n" + base, "f"))
    assert fingerprint(define(base, "f")) != fingerprint(define(base.replace("1", "2"), "f"))
    cls = "class C:\n    def f(self):\n        return 1\n"
    assert fingerprint(define(cls, "C")) != fingerprint(define(cls.replace("1", "2"), "C"))


def test_a_damaged_progress_file_is_started_afresh():
    progress_file().parent.mkdir(exist_ok=True)
    progress_file().write_text("{ not json")
    examine(solution("my_rows"))
    assert has_passed("my_rows", solution("my_rows"))


def test_progress_counts_the_core_and_forgets_what_changed(main, capsys):
    main.my_rows = solution("my_rows")
    examine(main.my_rows)
    progress()
    assert "00_start_here: 1 of 2" in capsys.readouterr().out
    main.my_rows = define(WRONG)
    progress()
    assert "00_start_here: 0 of 2" in capsys.readouterr().out


def test_hints_come_one_by_one_and_the_last_is_the_solution(capsys, monkeypatch):
    monkeypatch.setattr(hints, "_given", type(hints._given)())
    for _ in range(4):
        hint(define(STUB))
    out = capsys.readouterr().out
    assert [out.count(f"Hint {i} of 3") for i in (1, 2, 3)] == [1, 1, 2]
    assert "return range(" in out


def test_a_class_release_gives_no_last_hint(capsys, monkeypatch):
    monkeypatch.setattr(hints, "_given", type(hints._given)({"my_rows": 2}))
    monkeypatch.setattr("distlab.course.hints.lab_file", lambda folder, name: None)
    hint("my_rows")
    assert "this copy of the course comes without" in capsys.readouterr().out


def test_a_guess_stands_beside_the_answer_and_dots_give_nothing_away(capsys):
    predict("00.sizes", ...)
    assert "3, 3, 2, 2" not in capsys.readouterr().out
    predict("00.sizes", [3, 3, 3, 1])
    assert "You said [3, 3, 3, 1]; it is [3, 3, 2, 2]" in capsys.readouterr().out
    predict("00.sizes", 3, 3, 2, 2)
    assert "you saw it coming" in capsys.readouterr().out
    predict("00.sizes", "3")
    assert "You said '3'; it is [3, 3, 2, 2]" in capsys.readouterr().out
    predict("00.sizes", ..., 3)
    assert "Your guess first" in capsys.readouterr().out
    predict("00.sizes", [3, 3, 2, 2])
    assert capsys.readouterr().out.startswith("✓ [3, 3, 2, 2]")
    predict("00.nothing", 1)
    assert "There is no question '00.nothing'" in capsys.readouterr().out


def test_an_experiment_waits_for_what_it_needs(main):
    cell = ["%%needs my_rows\n", "x = 1\n", "1 / 0\n"]
    (line,) = needs.wait_for_needs(cell)
    assert ".show('○ This cell runs once check(my_rows) shows ✓.')" in line
    main.my_rows = define(STUB)
    assert "check(my_rows)" in needs.wait_for_needs(cell)[0]
    main.my_rows = solution("my_rows")
    examine(main.my_rows)
    assert needs.wait_for_needs(cell) == ["\n", "x = 1\n", "1 / 0\n"]


def test_needs_names_what_is_no_exercise_and_leaves_other_cells_alone(main):
    assert "got my_row." in needs.wait_for_needs(["%%needs my_row\n"])[0]
    for other in ([], ["x = 1\n"], ["%%time\n", "x\n"], ["\n"]):
        assert needs.wait_for_needs(list(other)) == other


def test_from_lab_gives_the_learners_own_once_it_has_passed(tmp_path, monkeypatch, capsys):
    labs = {"labs": tmp_path / "00_start_here.ipynb", "solutions": ROOT / "solutions" / "00_start_here.ipynb"}
    monkeypatch.setattr("distlab.course.from_lab.lab_file", lambda folder, name: labs[folder])
    mine = nbformat.read(labs["solutions"], as_version=4)
    for cell in mine.cells:
        if cell.source.startswith("def my_rows"):
            cell.source += "\n\nmy_rows.signature = 'mine'"
    nbformat.write(mine, labs["labs"])
    assert not hasattr(from_lab("start_here").my_rows, "signature")
    assert "my_rows (the solution)" in capsys.readouterr().out
    examine(Notebook(labs["labs"]).definitions()["my_rows"])
    assert from_lab("start_here").my_rows.signature == "mine"
    assert "my_rows (yours)" in capsys.readouterr().out
    assert not hasattr(from_lab("start_here", solution=True).my_rows, "signature")


def test_without_solutions_only_what_is_used_must_be_finished(tmp_path, monkeypatch, capsys):
    from distlab.course.from_lab import NotFinished

    labs = {"labs": tmp_path / "00_start_here.ipynb", "solutions": None}
    monkeypatch.setattr("distlab.course.from_lab.lab_file", lambda folder, name: labs[folder])
    solved = Notebook(ROOT / "solutions" / "00_start_here.ipynb")
    shutil.copy(solved.path, labs["labs"])
    examine(solved.definitions()["my_rows"])
    found = from_lab("start_here")
    assert "greet (not finished), my_rows (yours)" in capsys.readouterr().out
    assert found.my_rows(10, 0, 4) == range(0, 3)
    with pytest.raises(NotFinished, match=r"write it in 00_start_here.ipynb, run check\(greet\) there"):
        found.greet()


def test_from_lab_survives_a_half_written_notebook(tmp_path, monkeypatch):
    labs = {"labs": tmp_path / "00_start_here.ipynb", "solutions": ROOT / "solutions" / "00_start_here.ipynb"}
    monkeypatch.setattr("distlab.course.from_lab.lab_file", lambda folder, name: labs[folder])
    mine = nbformat.read(labs["solutions"], as_version=4)
    for cell in mine.cells:
        if cell.source.startswith("def my_rows"):
            cell.source = "def my_rows(n, rank"
    nbformat.write(mine, labs["labs"])
    assert from_lab("start_here").my_rows(10, 0, 4) == range(0, 3)


def test_an_unknown_lab_is_named():
    with pytest.raises(ValueError, match="there is no lab 'nowhere'; labs: 00_start_here"):
        from_lab("nowhere")


def test_an_experiment_waits_for_what_its_exercises_use_too(main):
    (line,) = needs.wait_for_needs(["%%needs train_step\n"])
    assert "check(split_batch)" in line and line.index("check(split_batch)") < line.index("check(train_step)")
