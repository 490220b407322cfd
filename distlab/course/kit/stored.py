"""What each mistake comes to, stored: a class's copy has no solutions to patch, and its checks use one seed."""

from __future__ import annotations

import lzma
import pickle
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from distlab.course.checks import exercises
from distlab.course.kit.case import Job, jobs_of
from distlab.course.kit.mistakes import Failing, Given, Mistakes
from distlab.course.notebook import Notebook
from distlab.course.places import ROOT, lab_file
from distlab.course.trial import Trial
from distlab.ranks.shipping.packing import pack_value, unpack_value

if TYPE_CHECKING:
    from distlab.course.kit.experiment import Experiment

SEED = 20_240_229  # of a class's copy
_FILE = Path("distlab", "course", "mistakes.xz")


class Stored:
    """The known mistakes of an exercise, as :class:`Mistakes` has them, read from what was stored."""

    def __init__(self, experiment: Experiment, by_job: dict):
        self._experiment, self._by_job = experiment, by_job

    def give(self, job: Job) -> list[Given]:
        """What comes of those that end well."""
        given, _ = self._by_job.get(_key(self._experiment, job), ((), ()))
        return [Given(**fields) for fields in map(unpack_value, given)]

    def fail(self, job: Job, report: str | None = None) -> Iterator[Failing]:
        """How the others fail, whatever is reported."""
        _, failing = self._by_job.get(_key(self._experiment, job), ((), ()))
        for id, marks in failing:
            yield Failing(id, lambda marks=marks: marks)


def seed() -> int | None:
    """The seed of all checks where mistakes are stored; None where they are run, and a check draws its own."""
    return SEED if (ROOT / _FILE).exists() else None


def stored(name: str, experiment: Experiment) -> Stored | None:
    """What is stored of an exercise; None where mistakes are run instead."""
    return Stored(experiment, _all().get(name, {})) if seed() is not None else None


@cache
def _all() -> dict[str, dict]:
    return pickle.loads(lzma.decompress((ROOT / _FILE).read_bytes()))


def store(folder: Path, names: list[str] | None = None) -> Iterator[str]:
    """Writes what all mistakes give into a copy of the course; yields each exercise's name when it is done.

    Takes some seconds an exercise: every case is run with every mistake.
    """
    found = {}
    for name, (lab, exercise) in exercises().items():
        if hasattr(exercise.check, "cases") and (names is None or name in names):
            found[name] = _of_exercise(exercise.check, Notebook(lab_file("solutions", lab)).definitions()[name])
            yield name
    (folder / _FILE).write_bytes(lzma.compress(pickle.dumps(found)))


def _of_exercise(experiment: Experiment, solution) -> dict:
    mistakes = Mistakes(experiment, experiment.lab_of(solution), Trial(SEED))
    by_job = {}
    for jobs in jobs_of(experiment.cases, SEED):
        for job, given in zip(jobs, mistakes.give_all(jobs), strict=True):
            failing = mistakes.fail(job) if job.dtype == job.case.dtypes[0] else ()  # a start each: the dearest part
            found = [pack_value(vars(each)) for each in given], [(each.id, each.marks()) for each in failing]
            by_job[_key(experiment, job)] = found
    return by_job


def _key(experiment: Experiment, job: Job) -> tuple:
    return next(n for n, case in enumerate(experiment.cases) if case is job.case), str(job.dtype), job.seed
