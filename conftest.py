"""For every test and every notebook cell: no streaming, progress kept apart, and checks that show what they should."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest
import torch
from nbval.plugin import IPyNbCell

from tests.said import said

EXPECTED_MARK = {"solutions": "✓", "labs": "○"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--lab 07``: only what belongs to one lab."""
    parser.addoption("--lab", metavar="NN", help="test one lab only: its notebooks, its checks, its technique")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what belongs to other labs, if one is asked for."""
    if not (wanted := config.getoption("--lab")):
        return
    labs = [path.stem for path in sorted((config.rootpath / "solutions").glob("*.ipynb"))]
    lab = next((lab for lab in labs if lab.startswith(f"{wanted}_")), None)
    if lab is None:
        raise pytest.UsageError(f"there is no lab {wanted}; there are {', '.join(labs)}")
    modules = {f"test_{lab.partition('_')[2]}.py", f"test_faults_{lab.partition('_')[2]}.py"}
    chosen = [item for item in items if lab in item.nodeid or item.path.name in modules]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def pytest_configure(config: pytest.Config) -> None:
    """Kernels started by nbval inherit this: output shown once, and a record of passed checks that is nobody's own."""
    os.environ["CI"] = "true"
    os.environ["DISTLAB_HOME"] = tempfile.mkdtemp(prefix="distlab-progress-")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes the record."""
    shutil.rmtree(os.environ.pop("DISTLAB_HOME"), ignore_errors=True)


def pytest_report_header() -> str:
    """Says with which torch the tests ran."""
    return f"torch {torch.__version__}, {os.cpu_count()} cores"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """After a notebook's check cell: ✓ in a solution, ○ in a blank lab."""
    result = yield
    if isinstance(item, IPyNbCell) and item.cell.source.startswith("check("):
        mark = EXPECTED_MARK[item.path.parent.name]
        text = "".join(map(said, item.test_outputs))
        assert text.startswith(mark), f"{item.cell.source} should show {mark}:\n{text}"
    return result


@pytest.fixture(autouse=True)
def _own_progress(tmp_path, monkeypatch):
    """Keeps what passes in one test out of the next."""
    monkeypatch.setenv("DISTLAB_HOME", str(tmp_path))
