"""What the tests' own options do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import conftest

ROOT = Path(conftest.__file__).parent


def chosen(lab: str) -> list[str]:
    """Which of some tests are run for ``--lab``."""
    names = (
        "solutions/07_pipeline.ipynb::Cell 3",
        "labs/07_pipeline.ipynb::Cell 3",
        "solutions/05_zero.ipynb::Cell 3",
        "tests/test_pipeline.py::test_a",
        "tests/course/test_faults_pipeline.py::test_b",
        "tests/course/test_faults_zero.py::test_b",
        "tests/course/test_notebooks.py::test_c[solutions/07_pipeline]",
        "tests/machine/test_pipelines.py::test_d",
    )
    items = [SimpleNamespace(nodeid=name, path=ROOT / name.partition("::")[0]) for name in names]
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    conftest.pytest_collection_modifyitems(SimpleNamespace(getoption=lambda name: lab, hook=hook, rootpath=ROOT), items)
    return [item.nodeid for item in items]


def test_one_lab_is_its_notebooks_its_checks_and_its_technique():
    assert chosen("07") == [
        "solutions/07_pipeline.ipynb::Cell 3",
        "labs/07_pipeline.ipynb::Cell 3",
        "tests/test_pipeline.py::test_a",
        "tests/course/test_faults_pipeline.py::test_b",
        "tests/course/test_notebooks.py::test_c[solutions/07_pipeline]",
    ]


def test_without_the_option_all_are_run():
    assert len(chosen("")) == 8


def test_an_unknown_lab_is_told_which_there_are():
    with pytest.raises(pytest.UsageError, match="there is no lab 77; there are 00_start_here"):
        chosen("77")
