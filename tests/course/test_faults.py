"""What holds of the exercises of all labs, and that each lab's wrong solutions are tried."""

from __future__ import annotations

import linecache
from pathlib import Path

from distlab.course.checks import labs
from distlab.course.notebook import execute_source


def test_every_lab_has_its_module_of_wrong_solutions():
    found = {path.stem.removeprefix("test_faults_") for path in Path(__file__).parent.glob("test_faults_*.py")}
    assert found == {lab.__name__.rpartition(".")[2] for lab in labs()}


def test_exercise_names_are_unique_in_the_course():
    names = [exercise.name for lab in labs() for exercise in lab.EXERCISES]
    assert len(set(names)) == len(names)


def test_the_executed_source_is_what_an_error_shows():
    namespace: dict = {}
    execute_source("def f():\n    raise ValueError", "somewhere", namespace)
    assert linecache.getline("somewhere", 2) == "    raise ValueError"
