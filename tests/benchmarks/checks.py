"""How long a learner waits for check(): right answers, wrong ones, and the first check of a fresh kernel."""

import os
import statistics
import tempfile
from functools import partial

from distlab import run
from distlab.course.check import examine
from distlab.course.checks import exercises
from distlab.course.notebook import Notebook
from distlab.course.patches import patches_of
from distlab.course.places import ROOT
from tests.benchmarks.table import Group, Row
from tests.benchmarks.timing import fresh_python, last_line, seconds

TITLE = "check(), all exercises, processes warm"
FIRST = """
import json, time
from distlab.course.check import examine
from distlab.course.notebook import Notebook
from distlab.course.places import ROOT
learners = Notebook(ROOT / "solutions" / "02_data_parallel.ipynb").definitions()["split_batch"]
begun = time.perf_counter()
examine(learners)
print(json.dumps(time.perf_counter() - begun))
"""


def measure():
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DISTLAB_HOME"] = folder
        run(print, ranks=1)  # from here on processes are warm
        right = {name: seconds(partial(examine, solution(name))) for name in exercises()}
        wrong = {name: seconds(partial(examine, mistaken(name))) for name in exercises() if patches(name)}
    first = last_line(fresh_python("-c", FIRST))
    rows = [row for times, what in ((right, "right"), (wrong, "wrong")) for row in rows_of(times, what)]
    rows.append(Row("the first check of a fresh process", first))
    return Group(TITLE, rows, [f"aims: median 1.0 s, at most 4 s, first 5 s; {len(right)} right, {len(wrong)} wrong"])


def rows_of(times, what):
    slowest = max(times, key=times.__getitem__)
    yield Row(f"a {what} answer, median", statistics.median(times.values()))
    yield Row(f"a {what} answer, slowest: {slowest}", times[slowest])


def lab_of(name):
    return Notebook(ROOT / "solutions" / f"{exercises()[name][0]}.ipynb")


def patches(name):
    return patches_of(exercises()[name][0], name)


def solution(name):
    return lab_of(name).definitions()[name]


def mistaken(name):
    lab = lab_of(name)
    return lab.definitions(instead={name: patches(name)[-1].applied(lab.exercises[name])})[name]
