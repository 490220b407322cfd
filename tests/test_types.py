"""Types: mypy finds nothing in what all else builds on; pyproject.toml says where it looks, and how closely."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import distlab

ROOT = Path(distlab.__file__).parents[1]


def test_mypy_finds_nothing():
    mypy = [sys.executable, "-m", "mypy", "--no-error-summary"]
    result = subprocess.run(mypy, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
