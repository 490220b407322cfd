"""Each lab in a browser: Run All Cells leaves no traceback on the blank one, and every ✓ on the solved one."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from distlab.course.places import ROOT
from tests.said import said

# The lab with which everybody begins, blank; the longest blank one; a solved one with hangs and all kinds of pictures.
# nbval runs all of them anyway; DISTLAB_BROWSER=all opens them all here too.
PATTERNS = {"labs": "0[07]_*.ipynb", "solutions": "01_*.ipynb"}
if os.environ.get("DISTLAB_BROWSER") == "all":
    PATTERNS = dict.fromkeys(PATTERNS, "[0-9]*.ipynb")
NOTEBOOKS = [
    f"{folder}/{path.name}" for folder, pattern in PATTERNS.items() for path in sorted((ROOT / folder).glob(pattern))
]
MARK = {"labs": "○", "solutions": "✓"}


def printed(cell: dict) -> str:
    return "".join(map(said, cell["outputs"]))


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_run_all_cells_in_the_browser(lab, notebook):
    lab.open(notebook)
    cells = lab.run_all(notebook, seconds=240)
    if folder := os.environ.get("DISTLAB_SCREENSHOTS"):
        lab.page.screenshot(path=Path(folder) / f"{notebook.replace('/', '_')}.png")
    assert not [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]
    checks = [cell for cell in cells if "".join(cell["source"]).startswith("check(")]
    assert checks and all(printed(cell).startswith(MARK[notebook.split("/")[0]]) for cell in checks)


def test_the_token_stays_in_force(lab):
    api = lab.url.split("/lab?")[0] + "/api/contents"
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(api)
