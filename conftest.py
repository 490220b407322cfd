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
