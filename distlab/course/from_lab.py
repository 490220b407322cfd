"""from_lab(): what an earlier lab built, for a later one to stand on."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace

from distlab.course.checks import exercises
from distlab.course.notebook import Notebook
from distlab.course.places import lab_file
from distlab.course.progress import has_passed

_NOWHERE = (
    "it is not in the folder of this notebook, nor among the labs of the course. Save it there under the name it had"
)


class NotFinished(LookupError):
    """An earlier lab's exercise has not passed, and there is no solution to stand in for it."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the one line that helps."""
        return [str(self)]


def from_lab(name: str, solution: bool = False) -> SimpleNamespace:
    """Returns the definitions of lab ``name`` ("data_parallel"): yours where their checks passed, the solution's
    otherwise.

    Prints which is which. Your notebook must have been saved. ``solution=True`` takes the solution's only. Raises
    ValueError for an unknown lab. Where an exercise has not passed and this copy of the course has no solutions, using
    it raises NotFinished.
    """
    labs = sorted({lab for lab, _ in exercises().values()})
    if name not in (*labs, *(lab[3:] for lab in labs)):
        raise ValueError(f"there is no lab {name!r}; labs: {', '.join(labs)}")
    learners, problem = _readable(lab_file("labs", name))
    solutions = lab_file("solutions", name)
    source = Notebook(solutions) if solutions else learners
    if source is None:
        raise NotFinished(f"from_lab({name!r}) needs your notebook of that lab: {problem}")
    passed = {} if solution or learners is None else _passed(learners)
    stand_in = "the solution" if solutions else "not finished"
    print(f"from {source.path.stem}: {_account(source, passed, stand_in)}")
    if problem and not solution:
        print(f"Note: {problem}")
    found = _public(source.definitions(instead=passed))
    if solutions is None:
        found |= {name: _unfinished(name, source.path.name) for name in source.exercises if name not in passed}
    return SimpleNamespace(**found)


def _readable(path: Path | None) -> tuple[Notebook | None, str]:
    """The learner's notebook, or None and what keeps it from being read: it may be half-written, or something else."""
    if path is None:
        return None, _NOWHERE
    try:
        notebook = Notebook(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return (
            None,
            f"{path} cannot be read as a notebook ({type(error).__name__}: {error}), so nothing of yours is used",
        )
    return notebook, ""


def _unfinished(name: str, notebook: str):
    """Stands in for an exercise that is still to be written."""

    def unfinished(*args, **kwargs):
        raise NotFinished(
            f"{name} is not finished: write it in {notebook}, run check({name}) there until it shows ✓, and save; then "
            "run the cell of from_lab again"
        )

    return unfinished


def _passed(learners: Notebook) -> dict[str, str]:
    """The learner's exercises that have passed: name and source."""
    defined = learners.definitions(forgiving=True)
    return {n: text for n, text in learners.exercises.items() if n in defined and has_passed(n, defined[n])}


def _account(source: Notebook, passed: dict[str, str], stand_in: str) -> str:
    return ", ".join(f"{name} ({'yours' if name in passed else stand_in})" for name in source.exercises)


def _public(namespace: dict[str, object]) -> dict[str, object]:
    return {k: v for k, v in namespace.items() if not k.startswith("_") and not isinstance(v, ModuleType)}
