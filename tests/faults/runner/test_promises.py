"""The page of promises names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_test_that_the_page_names_exists():
    rows = [line for line in (ROOT / "docs/promises.md").read_text().splitlines() if line.startswith("|")]
    named = {name for row in rows for name in re.findall(r"`(\w+_\w+)`", row.rpartition(" | ")[2])}
    sources = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
    defined = {name for source in sources for name in re.findall(r"def (\w+)\(", source)}
    assert len(named) > 80
    assert named - defined == set()
