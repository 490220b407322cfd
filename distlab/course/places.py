"""Where the course lies on this disk."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path.cwd().resolve()  # the folder of the notebook, in which its kernel starts
DEMOS = ROOT / "labs" / "demos.ipynb"  # for instructors; the one notebook that is no lab


def lab_file(folder: str, name: str) -> Path | None:
    """The notebook of lab ``name`` ("data_parallel", or "02_data_parallel") in "labs" or "solutions", if it is there.

    A learner whose notebooks lie outside the course (on a hub, say) has their own labs in the folder of the notebook
    that runs, or, as nbgrader fetches them, each in a folder beside it; of several the one that was saved last.
    """
    is_elsewhere = folder == "labs" and not HERE.is_relative_to(ROOT)
    for place in [[HERE, HERE.parent / "*"] if is_elsewhere else [], [ROOT / folder]]:
        for pattern in (f"{name}.ipynb", f"[0-9][0-9]_{name}.ipynb"):
            if found := [path for inside in place for path in inside.parent.glob(f"{inside.name}/{pattern}")]:
                return max(found, key=lambda path: path.stat().st_mtime_ns)
    return None


def progress_folders() -> list[Path]:
    """Where passed checks may be kept, the best place first.

    That is DISTLAB_HOME, or the ignored folder .distlab of the course; then .distlab in the learner's home.
    """
    best, home = os.environ.get("DISTLAB_HOME") or ROOT / ".distlab", os.path.expanduser("~")
    return [Path(best), *([Path(home, ".distlab")] if os.path.isdir(home) else [])]


def progress_file() -> Path | None:
    """Where passed checks are kept: in the first of those folders that can be written, None if none can."""
    files = (folder / "progress.json" for folder in progress_folders())
    return next((file for file in files if _can_be_written(file)), None)


def _can_be_written(file: Path) -> bool:
    """Whether a file can be read, if it is there, and its folder written; makes the folder."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    is_readable = not os.path.lexists(file) or os.path.isfile(file) and os.access(file, os.R_OK)
    return os.access(file.parent, os.W_OK | os.X_OK) and is_readable
