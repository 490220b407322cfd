"""Shared by all tests: no streaming, progress kept apart, the torch version on top of the report."""

from __future__ import annotations

import os

import pytest
import torch

os.environ["CI"] = "true"


def pytest_report_header() -> str:
    return f"torch {torch.__version__}, {os.cpu_count()} cores"


@pytest.fixture(autouse=True)
def _own_progress(tmp_path, monkeypatch):
    """Keeps what passes in a test out of the learner's own record."""
    monkeypatch.setenv("DISTLAB_HOME", str(tmp_path))
