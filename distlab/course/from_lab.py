"""from_lab(): what an earlier lab built, for a later one to stand on."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

from distlab.course.checks import exercises
from distlab.course.notebook import Notebook
from distlab.course.places import lab_file
from distlab.course.progress import has_passed


class NotFinished(LookupError):
    """An earlier lab's exercises have not passed, and there is no solution to stand in for them."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the one line that helps."""
        return [str(self)]


def from_lab(name: str, solution: bool = False) -> SimpleNamespace:
    """Returns the definitions of lab ``name`` ("data_parallel"): yours where their checks passed, the solution's
    otherwise.

    Prints which is which. Your notebook must have been saved. ``solution=True`` takes the solution's only. Raises
    ValueError for an unknown lab, NotFinished where an exercise has not passed and this copy of the course has no
    solutions.
    """
    learners, solutions = lab_file("labs", name), lab_file("solutions", name)
    if learners is None and solutions is None:
        raise ValueError(
            f"there is no lab {name!r}; labs: {', '.join(sorted({lab for lab, _ in exercises().values()}))}"
        )
    passed = {} if solution or learners is None else _passed(Notebook(learners))
    source = Notebook(solutions or learners)
    missing = [exercise for exercise in source.exercises if exercise not in passed]
    if missing and solutions is None:
        raise NotFinished(
            f"this copy of the course has no solutions: finish {', '.join(missing)} in {learners.name} and save it"
        )
    print(f"from {source.path.stem}: {_account(source, passed)}")
    return SimpleNamespace(**_public(source.definitions(instead=passed)))


def _passed(learners: Notebook) -> dict[str, str]:
    """The learner's exercises that have passed: name and source."""
    defined = learners.definitions(forgiving=True)
    return {n: text for n, text in learners.exercises.items() if n in defined and has_passed(n, defined[n])}


def _account(source: Notebook, passed: dict[str, str]) -> str:
    names = source.exercises
    return ", ".join(f"{name} ({'yours' if name in passed else 'the solution'})" for name in names)


def _public(namespace: dict[str, object]) -> dict[str, object]:
    return {k: v for k, v in namespace.items() if not k.startswith("_") and not isinstance(v, ModuleType)}
