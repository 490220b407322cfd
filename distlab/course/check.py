"""check(): tries an exercise and says what holds, what is wrong, or that it is not started."""

from __future__ import annotations

import os
import traceback
import types
from dataclasses import dataclass

from distlab.course import progress
from distlab.course.checks import exercises
from distlab.course.exercise import Exercise, NotStarted, Wrong
from distlab.course.kit.stored import seed
from distlab.course.missing import is_made_by, missing_names, where_to_run
from distlab.course.notebook import Notebook
from distlab.course.places import lab_file
from distlab.course.shown import show
from distlab.course.suspects import suspects
from distlab.course.trial import Trial
from distlab.ranks.interrupts import Interrupted

PASSED, FAILED, NOT_STARTED = "✓", "✗", "○"
_STUB = "`raise NotImplementedError` still stands in it. Put your code in its place"


class CheckFailed(Exception):
    """Raised under nbgrader only, where an exercise that has not passed must fail its cell."""


@dataclass(frozen=True)
class Verdict:
    """What a check found: ``mark`` is ✓, ✗ or ○."""

    mark: str
    text: str

    def __str__(self) -> str:
        return f"{self.mark} {self.text}"


def check(exercise) -> None:
    """Tries an exercise on real ranks and prints what it finds; give it the function or class itself.

    Never raises at a learner's desk, unless they stop it: then Interrupted, of which a notebook shows only the message.
    Under nbgrader (NBGRADER_EXECUTION is set) anything but ✓ raises CheckFailed, so that it scores.
    """
    try:
        verdict = examine(exercise)
    except KeyboardInterrupt:
        name = getattr(exercise, "__name__", repr(exercise))
        raise Interrupted(f"Interrupted before check({name}) had found anything.") from None
    show(str(verdict))
    if "NBGRADER_EXECUTION" in os.environ and verdict.mark != PASSED:
        raise CheckFailed(str(verdict))


def examine(learners) -> Verdict:
    """Tries an exercise and returns the verdict, noting it when it passes."""
    name = getattr(learners, "__name__", None)
    if name not in exercises():
        return Verdict(
            NOT_STARTED,
            f"{name or repr(learners)} is not an exercise of this course. Exercises: {', '.join(exercises())}",
        )
    lab, exercise = exercises()[name]
    if missing := missing_names(learners, lab):
        return Verdict(NOT_STARTED, f"{name}: {where_to_run(missing)}")
    waiting = _waiting(exercise, learners)
    why = progress.since_when(waiting, namespace_of(learners))
    if waiting and lab_file("solutions", progress.lab_of(waiting[0])) is None:
        checks = ", ".join(f"check({earlier})" for earlier in waiting)
        return Verdict(NOT_STARTED, f"{name}: {checks} must show ✓ first{why}")
    borrowed = _borrowed(waiting, learners)
    names = ", ".join(borrowed)
    note = f"\n  (with the course's own {names}, since yours has not passed its check{why})" if borrowed else ""
    instead = {id(mine): course for mine, course in borrowed.values()}
    verdict = _try(exercise, learners, Trial(seed(), instead))
    if verdict.mark == PASSED and (where := progress.record_pass(name, learners)):
        note += f"\n  ({where})"
    return Verdict(verdict.mark, verdict.text + note)


def _try(exercise: Exercise, learners, trial: Trial) -> Verdict:
    name = exercise.name
    try:
        holds = exercise.check(learners, trial)
        return Verdict(PASSED, "\n  ".join([f"{name}: {holds}", *trial.printed()]))
    except NotStarted as stub:
        if stub.why:
            return Verdict(NOT_STARTED, f"{name}: {stub.why}")
        if stub.function in exercises() and stub.function != name:
            return Verdict(NOT_STARTED, f"{name}: write `{stub.function}` first")
        return Verdict(NOT_STARTED, f"{name}: not started: {_STUB}; hint({name}) helps")
    except Wrong as wrong:
        # Numbers that depend on who was quicker explain nothing; several misconceptions may predict exactly what came.
        explained = [
            *(line[0].upper() + line[1:] for line in trial.loose_ends[:1]),
            *exercise.explain(wrong.believed, wrong.fields),
        ] or ([wrong.general] if wrong.general else suspects(learners)[:1])
        first, *others = explained or [wrong.plain]
        sentences = [first, *(f"Or: {other}" for other in others)]
        lines = "\n".join([*sentences, wrong.detail, *trial.printed()])
        return Verdict(FAILED, f"{name}, {wrong.case}:\n  " + lines.replace("\n", "\n  "))
    except Exception as error:  # whatever a check of ours raises, a learner gets a verdict
        return _stopped(exercise, error)


def _stopped(exercise: Exercise, error: Exception) -> Verdict:
    """What is said where the check itself could not go on."""
    lab, _ = exercises()[exercise.name]
    wanted = error.name if isinstance(error, NameError) else None
    if isinstance(error, KeyError):
        wanted = next(iter(error.args), None)
    if is_made_by(wanted, lab):
        return Verdict(NOT_STARTED, f"{exercise.name}: {where_to_run([wanted])}")
    place = traceback.extract_tb(error.__traceback__)[-1]
    lines = [
        f"{exercise.name}: the check itself failed. That is the course's mistake, not yours. Please report it:",
        f"{type(error).__name__}: {error}",
        f"{os.path.basename(place.filename)}, line {place.lineno}: {place.line}",
    ]
    return Verdict(FAILED, "\n  ".join(lines))


def _waiting(exercise: Exercise, learners) -> list[str]:
    """The earlier exercises that this one uses and that have not passed, in the lab's order."""
    namespace = namespace_of(learners)
    used = [name for name in exercises() if name in exercise.uses]
    return [n for n in used if n in namespace and not progress.has_passed(n, namespace[n])]


def _borrowed(waiting: list[str], learners) -> dict[str, tuple[object, object]]:
    """For each earlier exercise that has not passed: the learner's object and the solution's, which takes its place."""
    namespace = namespace_of(learners)
    labs = {name: Notebook(lab_file("solutions", progress.lab_of(name))).definitions() for name in waiting}
    return {name: (namespace[name], labs[name][name]) for name in waiting}


def namespace_of(learners) -> dict:
    """The names that a function or class of the notebook sees."""
    members = [learners, *vars(learners).values()] if isinstance(learners, type) else [learners]
    return next((member.__globals__ for member in members if isinstance(member, types.FunctionType)), {})
