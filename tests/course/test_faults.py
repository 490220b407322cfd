"""Every check accepts the solution, and rejects every known wrong one with the sentence that names its mistake."""

from __future__ import annotations

import importlib

import pytest

from distlab.course.check import examine
from distlab.course.checks import exercises, labs
from distlab.course.exercise import Exercise
from distlab.course.notebook import Notebook, _execute
from distlab.course.places import ROOT
from tests.faults import Fault

MODULES = {lab.LAB: importlib.import_module(f"tests.faults.{lab.__name__.rpartition('.')[2]}") for lab in labs()}
FAULTS = [fault for module in MODULES.values() for fault in module.FAULTS]
GENERAL = {"rank 0 does it all", "right on two ranks only"}


def definitions(exercise: str, change: Fault | None = None) -> dict:
    """The solutions of an exercise's lab, with one exercise changed."""
    notebook = Notebook(ROOT / "solutions" / f"{exercises()[exercise][0]}.ipynb")
    source = notebook.exercises[exercise]
    if change:
        assert source.count(change.old) == 1, f"{change.old!r} must stand once in {exercise}"
        source = source.replace(change.old, change.new)
    return notebook.definitions(instead={exercise: source})


def sentence_of(exercise: Exercise, misconception: str) -> list[str]:
    """The fixed parts of a misconception's sentence, between its fields."""
    import string

    says = next(m.says for m in exercise.misconceptions if m.id == misconception)
    return [text for text, *_ in string.Formatter().parse(says)]


@pytest.mark.parametrize("name", list(exercises()))
def test_the_solution_passes(name):
    verdict = examine(definitions(name)[name])
    assert verdict.mark == "✓", verdict.text


@pytest.mark.parametrize("name", list(exercises()))
def test_the_stub_is_not_started(name):
    _, exercise = exercises()[name]
    notebook = Notebook(ROOT / "solutions" / f"{exercises()[name][0]}.ipynb")
    blank = next(
        cell.source for cell in notebook.blank().cells if cell.source.startswith(notebook.exercises[name][:20])
    )
    verdict = examine(notebook.definitions(instead={name: blank})[name])
    assert verdict.mark == "○" and "not started" in verdict.text, verdict.text


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f"{f.exercise}-{f.misconception or f.new.strip()[:24]}")
def test_a_wrong_solution_is_rejected_and_its_mistake_named(fault):
    verdict = examine(definitions(fault.exercise, fault)[fault.exercise])
    assert verdict.mark == "✗", verdict.text
    if fault.misconception:
        _, exercise = exercises()[fault.exercise]
        missing = [part for part in sentence_of(exercise, fault.misconception) if part not in verdict.text]
        assert not missing, f"expected {missing} in:\n{verdict.text}"


@pytest.mark.parametrize("name", list(exercises()))
def test_every_misconception_has_a_wrong_solution(name):
    _, exercise = exercises()[name]
    known = [misconception.id for misconception in exercise.misconceptions]
    tried = {fault.misconception for fault in FAULTS if fault.exercise == name}
    assert len(known) >= 3 and len(set(known)) == len(known)
    assert set(known) == tried - {None}
    assert None in tried, "expected a wrong solution without a known misconception, too"


def test_exercise_names_are_unique_in_the_course():
    names = [exercise.name for lab in labs() for exercise in lab.EXERCISES]
    assert len(set(names)) == len(names)


def test_the_executed_source_is_what_an_error_shows():
    namespace: dict = {}
    _execute("def f():\n    raise ValueError", "somewhere", namespace)
    import linecache

    assert linecache.getline("somewhere", 2) == "    raise ValueError"
