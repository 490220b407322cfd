"""What holds for every notebook before it is run: form, metadata, and the blank lab made from the solution."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import nbformat
import pytest

from distlab import demos
from distlab.course.checks import exercises, labs, predictions
from distlab.course.notebook import Notebook, blank, notebooks_named, write_labs, write_release
from distlab.course.places import DEMOS, ROOT
from tests.said import said

SOLUTIONS = sorted((ROOT / "solutions").glob("*.ipynb"))
LABS = sorted(path for path in (ROOT / "labs").glob("*.ipynb") if path != DEMOS)
ALL = [*SOLUTIONS, *LABS, DEMOS]


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def code_cells(path: Path) -> list:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def exercise_cells(path: Path) -> list:
    return [cell for cell in code_cells(path) if cell.metadata.get("nbgrader", {}).get("solution")]


def check_cells(path: Path) -> list:
    return [cell for cell in code_cells(path) if cell.source.startswith("check(")]


def printed(cell) -> str:
    return "".join(map(said, cell.outputs))


def test_the_committed_labs_are_made_from_the_solutions(tmp_path):
    fresh = write_labs(labs=tmp_path)
    assert [path.name for path in fresh] == [path.name for path in LABS]
    for path in fresh:
        assert path.read_text() == (ROOT / "labs" / path.name).read_text(), f"run make labs: {path.name} is out of date"


@pytest.mark.parametrize("path", ALL, ids=name)
def test_a_notebook_is_valid_small_and_plain(path):
    node = nbformat.read(path, as_version=4)
    nbformat.validate(node)
    assert path == DEMOS or re.fullmatch(r"\d\d_[a-z0-9_]+", path.stem)
    assert node.metadata.kernelspec.name == "python3" and "widgets" not in node.metadata
    assert path.stat().st_size < 1_000_000
    ids = [cell.id for cell in node.cells]
    assert len(set(ids)) == len(ids) and all(re.fullmatch("[a-z0-9-]+", id) for id in ids)


@pytest.mark.parametrize("path", ALL, ids=name)
def test_every_code_cell_outside_exercises_is_short(path):
    exempt = {cell.id for cell in exercise_cells(path)}
    for cell in code_cells(path):
        assert cell.id in exempt or len(cell.source.splitlines()) <= 30, cell.id


@pytest.mark.parametrize("path", LABS, ids=name)
def test_a_blank_lab_holds_no_answer_and_no_output(path):
    for cell in code_cells(path):
        assert cell.outputs == [] and cell.execution_count is None
        assert "SOLUTION" not in cell.source
    assert all("raise NotImplementedError" in cell.source for cell in exercise_cells(path))


@pytest.mark.parametrize("path", SOLUTIONS, ids=name)
def test_a_solution_was_run_from_top_to_bottom_and_every_check_passed(path):
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert all(printed(cell).startswith("✓ ") for cell in check_cells(path))
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]


def test_every_demo_is_stored_as_a_picture_with_words_that_needs_no_kernel():
    cells = code_cells(DEMOS)
    for demo in demos.__all__:
        (output,) = next(cell for cell in cells if f"demos.{demo}(" in cell.source).outputs
        assert set(output.data) == {"image/png", "image/svg+xml", "text/plain"}, demo


@pytest.mark.parametrize("path", SOLUTIONS, ids=name)
def test_exercises_stand_in_the_notebook_in_order_each_with_its_check(path):
    lab = next(lab for lab in labs() if path.stem == lab.LAB)
    expected = [exercise.name for exercise in lab.EXERCISES]
    assert [cell.metadata.nbgrader.grade_id for cell in exercise_cells(path)] == expected
    assert [cell.source for cell in check_cells(path)] == [f"check({name})" for name in expected]
    ids = [cell.id for cell in nbformat.read(path, as_version=4).cells]
    for exercise, check in zip(exercise_cells(path), check_cells(path)):
        assert ids.index(check.id) == ids.index(exercise.id) + 1


@pytest.mark.parametrize("path", SOLUTIONS, ids=name)
def test_the_core_is_graded_and_further_exercises_are_not(path):
    for cell in check_cells(path):
        _, exercise = exercises()[cell.source[len("check(") : -1]]
        grading = cell.metadata.get("nbgrader", {})
        assert bool(grading.get("grade")) is not exercise.further
        assert exercise.further or (grading.points > 0 and grading.locked)


@pytest.mark.parametrize("path", SOLUTIONS, ids=name)
def test_an_exercise_states_what_it_takes_and_gives(path):
    for cell in exercise_cells(path):
        definition = ast.parse(cell.source).body[0]
        assert definition.name == cell.metadata.nbgrader.grade_id
        assert len(ast.get_docstring(definition) or "") > 60, definition.name


@pytest.mark.parametrize("path", LABS, ids=name)
def test_every_prediction_asked_for_has_an_answer(path):
    asked = [
        match for cell in code_cells(path) for match in re.findall(r'^predict\("(.*?)", (.*)\)', cell.source, re.M)
    ]
    assert asked and all(key in predictions() and guess == "..." for key, guess in asked)


def test_a_class_release_has_no_solutions(tmp_path):
    write_release(tmp_path / "class")
    files = [path for path in (tmp_path / "class").rglob("*") if path.is_file()]
    assert (tmp_path / "class" / "labs" / "00_start_here.ipynb") in files
    assert (tmp_path / "class" / "distlab" / "__init__.py") in files
    assert not [f for f in files if f.name == DEMOS.name]
    assert not [f for f in files if "solution" in str(f.relative_to(tmp_path)).lower() or "fault" in f.name]
    assert not [f for f in files if f.suffix == ".ipynb" and "BEGIN SOLUTION" in f.read_text()]


def _reads(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _from_earlier_labs(statements: list[ast.stmt]) -> set[str]:
    """The names that come from from_lab(), and the functions that read such a name, in one lab's statements."""
    given: set[str] = set()
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            given |= {statement.name} if _reads(statement) & given else set()
        elif isinstance(statement, ast.Assign) and "from_lab" in _reads(statement):
            given |= {n.id for target in statement.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    return given


@pytest.mark.parametrize("path", LABS, ids=name)
def test_a_cell_that_runs_what_an_earlier_lab_built_waits_for_it(path):
    """Or a blank lab would fail there, where a class's copy has no solutions to stand in."""
    parsed = [(cell.source, ast.parse(re.sub(r"\A%%needs.*", "", cell.source)).body) for cell in code_cells(path)]
    given = _from_earlier_labs([statement for _, body in parsed for statement in body])
    for source, body in parsed:
        runs = [s for s in body if not isinstance(s, ast.FunctionDef | ast.ClassDef) and _calls(s) & given]
        assert not runs or source.startswith(("%%needs", "check(")), source


def _calls(node: ast.AST) -> set[str]:
    """Names that are called, or handed to a call such as run()."""
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
    return {name for call in calls for part in (call.func, *call.args) for name in _reads(part)}


def test_a_region_keeps_its_indentation_in_the_stub(tmp_path):
    source = "def f():\n    if True:\n        # BEGIN SOLUTION\n        return 1\n        # END SOLUTION\n"
    cell = nbformat.v4.new_code_cell(source, metadata={"nbgrader": {"solution": True, "grade_id": "f"}})
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "x.ipynb")
    notebook = Notebook(tmp_path / "x.ipynb")
    assert blank(tmp_path / "x.ipynb").cells[0].source == "def f():\n    if True:\n        raise NotImplementedError\n"
    assert notebook.solution("f") == "        return 1"


def test_notebooks_are_executed_by_the_beginning_of_their_names():
    assert [path.name for path in notebooks_named(["02", "demos"])] == ["02_data_parallel.ipynb", "demos.ipynb"]
    assert len(notebooks_named([])) == len(list((ROOT / "solutions").glob("*.ipynb"))) + 1
    with pytest.raises(ValueError, match="There is no notebook 77; there are 00_start_here"):
        notebooks_named(["02", "77"])
