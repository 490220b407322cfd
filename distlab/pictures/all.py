"""All drawings, by the name of their file, and where they are written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from distlab.course.places import ROOT
from distlab.pictures import demo, five_steps, hero, ring, staircase
from distlab.show.drawing import Drawing

# Beside the notebooks, so that a class release and an assignment have them in the same place.
FOLDERS = ROOT / "labs" / "pictures", ROOT / "solutions" / "pictures"
HERO, DEMO = ROOT / "docs" / "hero.svg", ROOT / "docs" / "demo.svg"  # the README's
DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "01_ring": ring.draw,
    "02_five_steps": five_steps.draw,
    "07_staircase": staircase.draw,
}


def write_pictures(*folders: Path) -> list[Path]:
    """Writes the drawings beside labs and solutions, and the README's two; only those of the labs where ``folders`` are
    named. Returns the files."""
    written = []
    for folder in folders or FOLDERS:
        folder.mkdir(exist_ok=True)
        for name, draw in DRAWINGS.items():
            written.append(folder / f"{name}.svg")
            written[-1].write_text(draw().svg(), encoding="utf-8")
    if not folders:
        for path, svg in {HERO: hero.draw().svg(), DEMO: demo.svg()}.items():
            path.write_text(svg, encoding="utf-8")
            written.append(path)
    return written
