"""Every check accepts the solution, and rejects every known wrong one with the sentence that names its mistake.

The tests of each lab stand in a module of their own, ``test_faults_<lab>.py``, so that they are shared out over cores.
"""

from __future__ import annotations

import importlib
import string
import types

import pytest

from distlab.course.check import examine
from distlab.course.checks import exercises, labs
from distlab.course.exercise import Exercise, Wrong
from distlab.course.kit import naming
from distlab.course.kit.case import Job, jobs_of
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.mistakes import UNCHANGED, Given, Mistakes
from distlab.course.kit.naming import Finding
from distlab.course.notebook import Notebook
from distlab.course.patches import patches_of
from distlab.course.places import ROOT
from distlab.course.trial import Trial
from tests.course.wraps import WRAPS, applies, wrapped
from tests.faults import Fault
from tests.rights import Right


def faults_of(lab: str) -> tuple[Fault, ...]:
    """The wrong solutions of a lab ("zero")."""
    return importlib.import_module(f"tests.faults.{lab}").FAULTS


def patched(lab: str, fails: bool | None = None) -> list[Fault]:
    """The known mistakes of a lab as wrong solutions, those by which ranks fail or those by which none does."""
    known = ((name, patch) for name in names_of(lab) for patch in patches_of(module_of(lab).LAB, name))
    return [Fault(name, p.id, p.old, p.new) for name, p in known if fails is None or bool(p.fails) == fails]


def names_of(lab: str) -> list[str]:
    """The exercises of a lab."""
    return [exercise.name for exercise in module_of(lab).EXERCISES]


def module_of(lab: str) -> types.ModuleType:
    """The module of a lab's checks."""
    (module,) = [module for module in labs() if module.__name__.rpartition(".")[2] == lab]
    return module


def rights_of(lab: str) -> tuple[Right, ...]:
    """The right answers in other styles of a lab."""
    return importlib.import_module(f"tests.rights.{lab}").RIGHTS


def parametrize(metafunc: pytest.Metafunc, lab: str) -> None:
    """Gives a test of this module's the exercises or the wrong solutions of a lab."""
    if "fault" in metafunc.fixturenames:
        faults = [*patched(lab, fails=True), *faults_of(lab)]
        ids = [f"{fault.exercise}-{fault.misconception or fault.new.strip()[:24]}" for fault in faults]
        metafunc.parametrize("fault", faults, ids=ids)
    elif "experiment_of" in metafunc.fixturenames:
        of_lab = (exercise for _, exercise in exercises().values() if exercise.name in names_of(lab))
        metafunc.parametrize("experiment_of", [e.name for e in of_lab if isinstance(e.check, Experiment)])
    elif "right" in metafunc.fixturenames:
        ids = [f"{right.exercise}-{right.new.strip()[:24]}" for right in rights_of(lab)]
        metafunc.parametrize("right", rights_of(lab), ids=ids)
    elif "wrap" in metafunc.fixturenames:
        tried = [(name, wrap) for name in names_of(lab) for wrap in WRAPS if does_apply(name, wrap)]
        metafunc.parametrize(("name", "wrap"), tried, ids=[f"{name}-{wrap}" for name, wrap in tried])
    elif "name" in metafunc.fixturenames:
        metafunc.parametrize("name", names_of(lab))


def does_apply(name: str, wrap: str) -> bool:
    """Whether a wrap is tried on an exercise: its text says so, and the lab's wrong solutions give no reason not to."""
    notebook = Notebook(ROOT / "solutions" / f"{exercises()[name][0]}.ipynb")
    lab = importlib.import_module(f"tests.faults.{exercises()[name][0].partition('_')[2]}")
    return applies(wrap, notebook.exercises[name]) and (name, wrap) not in getattr(lab, "UNWRAPPED", {})


def mark_of_wrapped(name: str, wrap: str) -> str:
    """What the check says of a wrapped solution; "·" where the wrap makes no difference to it."""
    return examine(wrapped(definitions(name), name, wrap)).mark if does_apply(name, wrap) else "·"


def definitions(exercise: str, change: Fault | Right | None = None) -> dict:
    """The solutions of an exercise's lab, with one exercise changed."""
    notebook = Notebook(ROOT / "solutions" / f"{exercises()[exercise][0]}.ipynb")
    source = notebook.exercises[exercise]
    if change:
        assert source.count(change.old) == 1, f"{change.old!r} must stand once in {exercise}"
        source = source.replace(change.old, change.new)
    return notebook.definitions(instead={exercise: source})


def sentence_of(exercise: Exercise, misconception: str) -> list[str]:
    """The fixed parts of a misconception's sentence, between its fields."""
    says = next(m.says for m in exercise.misconceptions if m.id == misconception)
    return [text for text, *_ in string.Formatter().parse(says)]


def test_the_solution_passes(name):
    verdict = examine(definitions(name)[name])
    assert verdict.mark == "✓", verdict.text


def test_the_stub_is_not_started(name):
    _, exercise = exercises()[name]
    notebook = Notebook(ROOT / "solutions" / f"{exercises()[name][0]}.ipynb")
    stub = Notebook(ROOT / "labs" / notebook.path.name).exercises[name]
    verdict = examine(notebook.definitions(instead={name: stub})[name])
    assert verdict.mark == "○" and "not started" in verdict.text, verdict.text


def test_a_wrong_solution_is_rejected_and_its_mistake_named(fault):
    verdict = examine(definitions(fault.exercise, fault)[fault.exercise])
    assert verdict.mark == "✗", verdict.text
    if fault.misconception:
        _, exercise = exercises()[fault.exercise]
        missing = [part for part in sentence_of(exercise, fault.misconception) if part not in verdict.text]
        assert not missing, f"expected {missing} in:\n{verdict.text}"


def test_each_known_mistake_is_told_from_all_others(experiment_of, monkeypatch):
    """All of an exercise in one start a world size, since to check each by itself would take ten times as long."""
    exercise = exercises()[experiment_of][1]
    lab, trial = exercise.check.lab_of(definitions(experiment_of)[experiment_of]), Trial()
    mistakes, told = Mistakes(exercise.check, lab, trial), {}
    for jobs in jobs_of(exercise.check.cases, trial.seed):
        came, loose_ends = mistakes.outcomes(jobs)
        known = _Known({job: [mistakes._given(job, *pair) for pair in pairs] for job, pairs in zip(jobs, came)})
        monkeypatch.setattr(naming, "stored", lambda *_, known=known: known)
        for number, (patch, _) in enumerate(came[0]):
            outcomes = [pairs[number][1] for pairs in came]
            looks = [(job, outcome, list(exercise.check.look(job, outcome))) for job, outcome in zip(jobs, outcomes)]
            findings = [Finding(job, outcome, complaints) for job, outcome, complaints in looks if complaints]
            assert not (findings and patch is UNCHANGED), f"the solution is wrong: {findings}"
            if findings and number not in told and not loose_ends:
                wrong = exercise.check._wrong(lab, findings[0], iter(findings[1:]), trial)
                told[number] = (patch.id, wrong.believed, exercise.explain(wrong.believed, wrong.fields))
        if len(told) == len(came[0]) - 1:  # all but the solution
            break
    assert [(id, believed) for id, believed, _ in told.values() if believed != (id,)] == []
    monkeypatch.undo()
    quiet = [p for number, (p, _) in enumerate(came[0]) if number not in told and p is not UNCHANGED]
    for patch in quiet:  # what it leaves begun can be told by itself only
        test_a_wrong_solution_is_rejected_and_its_mistake_named(Fault(experiment_of, patch.id, patch.old, patch.new))


class _Known:
    """The known mistakes, with what came of them."""

    def __init__(self, given: dict[Job, list[Given]]):
        self.give = given.__getitem__


def test_a_right_answer_in_another_style_passes_and_so_does_what_uses_it(right):
    namespace = definitions(right.exercise, right)
    users = [exercise.name for _, exercise in exercises().values() if right.exercise in exercise.uses]
    for name in (right.exercise, *(user for user in users if user in namespace)):
        verdict = examine(namespace[name])
        assert verdict.mark == "✓", verdict.text


def test_a_wrapped_solution_is_rejected(name, wrap, monkeypatch):
    monkeypatch.setattr(Experiment, "_try_alone", _is_wrong)  # that is enough
    verdict = examine(wrapped(definitions(name), name, wrap))
    assert verdict.mark == "✗", verdict.text


def _is_wrong(experiment: Experiment, lab, jobs, trial, ignored="") -> None:
    raise Wrong(jobs[0].words, "rejected")


def test_every_core_exercise_has_right_answers_in_two_other_styles(name):
    lab, exercise = exercises()[name]
    styles = [right for right in rights_of(lab.partition("_")[2]) if right.exercise == name]
    assert exercise.further or len(styles) >= 2


def test_every_misconception_has_a_wrong_solution(name):
    lab, exercise = exercises()[name]
    known = [misconception.id for misconception in exercise.misconceptions]
    of_lab = lab.partition("_")[2]
    tried = {fault.misconception for fault in (*patched(of_lab), *faults_of(of_lab)) if fault.exercise == name}
    assert len(known) >= 3 and len(set(known)) == len(known)
    assert set(known) == tried - {None}
    assert None in tried, "expected a wrong solution without a known misconception, too"
