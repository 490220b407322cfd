"""Wrong solutions: a module that names its lab gets that lab's exercises and faults."""

from __future__ import annotations

import sys
import types

import pytest

from tests.course import faults


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrises the tests of a ``test_faults_<lab>.py``."""
    if lab := getattr(metafunc.module, "LAB", None):
        faults.parametrize(metafunc, lab)


@pytest.fixture
def main(monkeypatch):
    """A notebook's ``__main__`` of its own."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    return module
