"""Where the course lies on this disk."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEMOS = ROOT / "labs" / "demos.ipynb"  # for instructors; the one notebook that is no lab


def lab_file(folder: str, name: str) -> Path | None:
    """The notebook of lab ``name`` ("data_parallel", or "02_data_parallel") in "labs" or "solutions", if it is
    there."""
    found = sorted((ROOT / folder).glob(f"{name}.ipynb")) or sorted((ROOT / folder).glob(f"[0-9][0-9]_{name}.ipynb"))
    return found[0] if found else None


def progress_file() -> Path:
    """Where passed checks are kept: in the ignored folder .distlab of the course, or in DISTLAB_HOME."""
    return Path(os.environ.get("DISTLAB_HOME", ROOT / ".distlab")) / "progress.json"
