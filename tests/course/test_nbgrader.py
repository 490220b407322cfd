"""Lab 02 through nbgrader, unedited: a right, a half-right, a blank and a deadly submission are graded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from distlab.course.places import ROOT

LAB = "02_data_parallel"
EXERCISES = [
    "replicate",
    "split_batch",
    "compute_gradients",
    "average_gradients",
    "update",
    "train_step",
    "epoch_indices",
]


def nbgrader(course: Path, *arguments: str, fails: bool = False) -> str:
    """Runs an nbgrader command in a course folder and returns what it printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", *arguments],
        cwd=course,
        env=os.environ | {"PATH": path, "CI": "true"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert bool(done.returncode) is fails, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """A course whose release was made from the solution as it is."""
    folder = tmp_path_factory.mktemp("course")
    (folder / "source" / "lab").mkdir(parents=True)
    (folder / "nbgrader_config.py").write_text("c = get_config()\nc.CourseDirectory.course_id = 'distlab'\n")
    source = (ROOT / "solutions" / f"{LAB}.ipynb").read_text()
    (folder / "source" / "lab" / f"{LAB}.ipynb").write_text(source)
    nbgrader(folder, "generate_assignment", "lab")
    return folder


def solved(cell) -> str:
    """The solution's source of an exercise cell."""
    return solution_cells()[cell.metadata.nbgrader.grade_id]


def solution_cells() -> dict[str, str]:
    node = nbformat.read(ROOT / "solutions" / f"{LAB}.ipynb", as_version=4)
    return {
        c.metadata.nbgrader.grade_id: c.source for c in node.cells if c.metadata.get("nbgrader", {}).get("solution")
    }


def hand_in(course: Path, student: str, write: list[str], extra: str = "") -> None:
    """Hands in the release with some exercises written; without the experiments, which no student has to keep."""
    node = nbformat.read(course / "release" / "lab" / f"{LAB}.ipynb", as_version=4)
    node.cells = [c for c in node.cells if "nbgrader" in c.metadata or "definitions" in c.metadata.get("tags", [])]
    for cell in node.cells:
        if cell.metadata.get("nbgrader", {}).get("grade_id") in write:
            cell.source = solved(cell) + extra
    target = course / "submitted" / student / "lab" / f"{LAB}.ipynb"
    target.parent.mkdir(parents=True)
    nbformat.write(node, target)


def scores(course: Path, student: str) -> dict[str, tuple[float, float]]:
    """Points and most points of each exercise, from the gradebook."""
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{course}/gradebook.db") as book:
        grades = book.find_submission("lab", student).notebooks[0].grades
        return {grade.name.removeprefix("check_"): (grade.score, grade.max_score) for grade in grades}


def test_the_release_has_stubs_and_no_answers(course):
    text = (course / "release" / "lab" / f"{LAB}.ipynb").read_text()
    assert text.count("raise NotImplementedError()") == len(EXERCISES) and "SOLUTION" not in text


def test_right_half_right_and_blank_submissions_get_what_they_deserve(course):
    hand_in(course, "right", EXERCISES)
    hand_in(course, "half", ["split_batch", "update", "epoch_indices"])
    hand_in(course, "blank", [])
    nbgrader(course, "autograde", "lab", "--create")
    right, half, blank = (scores(course, student) for student in ("right", "half", "blank"))
    assert sorted(right) == sorted(EXERCISES)
    assert all(got == most > 0 for got, most in right.values())
    assert {name for name, (got, most) in half.items() if got == most} == {"split_batch", "update", "epoch_indices"}
    assert all(got == 0 for got, _ in blank.values())


def test_a_submission_that_kills_its_kernel_is_reported_and_gets_no_grade(course):
    hand_in(course, "deadly", EXERCISES, extra="\nimport os\nos.kill(os.getpid(), 9)\n")
    text = nbgrader(course, "autograde", "lab", "--create", "--student=deadly", fails=True)
    assert "deadly" in text and "Kernel died" in text
