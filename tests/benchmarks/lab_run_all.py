"""Run all cells of lab 02's solution."""

import nbclient
import nbformat

from tests.benchmarks.table import Group, Row
from tests.benchmarks.timing import ROOT, seconds

NOTEBOOK = ROOT / "solutions" / "02_data_parallel.ipynb"
TITLE = "lab 02, run all, solution"


def measure():
    if not NOTEBOOK.exists():
        return Group(TITLE, remarks=[f"skipped: there is no {NOTEBOOK.relative_to(ROOT)}"])
    taken = seconds(run_all)
    return Group(TITLE, [Row("with the start of the kernel, once", taken)], ["aim: under 60 s on two cores"])


def run_all():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(NOTEBOOK.parent)}}
    nbclient.NotebookClient(notebook, timeout=120, resources=resources).execute()
