"""A room of learners on one small server: eight kernels at once run lab 02's checks, and none is timed out."""

from __future__ import annotations

import asyncio

import nbformat
from nbclient import NotebookClient

from distlab.course.checks import data_parallel
from distlab.course.notebook import Notebook
from distlab.course.places import ROOT, lab_file
from tests.said import said

LEARNERS = 8
CELL_LIMIT = 600  # seconds: two cores, eight learners, and whatever else this computer has to do


def solved_lab() -> nbformat.NotebookNode:
    """Lab 02 as somebody hands it in, with what its checks need and no experiments."""
    path = lab_file("solutions", "data_parallel")
    wanted = {cell.id for cell in Notebook(path).defining}
    node = nbformat.read(path, as_version=4)
    node.cells = [cell for cell in node.cells if cell.id in wanted or cell.source.startswith("check(")]
    return node


async def work(home) -> list[str]:
    """Runs one learner's kernel, with progress of its own; returns what its checks printed."""
    node = solved_lab()
    node.cells.insert(0, nbformat.v4.new_code_cell(f"import os; os.environ['DISTLAB_HOME'] = {str(home)!r}"))
    client = NotebookClient(node, timeout=CELL_LIMIT, kernel_name="python3", store_widget_state=False)
    await client.async_execute(cwd=ROOT / "labs")
    checks = [cell for cell in node.cells if cell.source.startswith("check(")]
    return ["".join(map(said, cell.outputs)) for cell in checks]


def test_eight_kernels_at_once_pass_every_check(tmp_path):
    async def room() -> list[list[str]]:
        return await asyncio.gather(*(work(tmp_path / str(learner)) for learner in range(LEARNERS)))

    printed = asyncio.run(room())
    for of_one in printed:
        assert len(of_one) == len(data_parallel.EXERCISES)
        assert all(text.startswith("✓ ") for text in of_one), of_one
