"""The drawn ideas: made anew they are what is in the repository, and labs refer to them so that they are found."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from distlab.course.notebook import Notebook
from distlab.course.places import ROOT
from distlab.pictures import demo, hero, ring, staircase
from distlab.pictures.all import DEMO, DRAWINGS, FOLDERS, HERO, write_pictures

SVG = "{http://www.w3.org/2000/svg}"
LINK = re.compile(r"!\[([^\]]*)\]\(([^)]*pictures/[^)]*)\)")
NOTEBOOKS = [path for folder in ("labs", "solutions") for path in sorted((ROOT / folder).glob("*.ipynb"))]


def test_the_pictures_are_made_from_their_scripts(tmp_path):
    fresh = write_pictures(tmp_path)
    for folder in FOLDERS:
        assert {path.name for path in fresh} == {path.name for path in folder.iterdir()}
        for path in fresh:
            assert path.read_text() == (folder / path.name).read_text(), f"run python -m distlab pictures: {path.name}"


def test_the_readmes_picture_is_what_a_check_and_a_run_show():
    assert hero.draw().svg() == HERO.read_text(), "run python -m distlab pictures"
    assert "Every gradient is 3 times too large" in hero.verdict() and len(hero.lanes()) == 4
    assert "(docs/hero.svg)" in (ROOT / "README.md").read_text()


def test_the_readmes_demo_is_drawn_by_the_demo_and_says_in_words_what_it_shows():
    assert demo.svg() == DEMO.read_text(), "run python -m distlab pictures"
    assert "4 × too large" in demo.board().written and demo.board().written.count("≠ one process") == 1
    root = ElementTree.fromstring(DEMO.read_text())
    assert "do not equal one process" in root.find(f"{SVG}desc").text and "var(" not in DEMO.read_text()
    line = next(line for line in (ROOT / "README.md").read_text().splitlines() if "(docs/demo.svg)" in line)
    assert len(line) > 100  # it says what there is to see


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_picture_says_what_it_shows_and_has_its_words_as_words(name):
    root = ElementTree.fromstring(DRAWINGS[name]().svg())
    title, description = root.find(f"{SVG}title").text, root.find(f"{SVG}desc").text
    assert 10 < len(title) < 80 < len(description)
    words = [text for text in root.iter(f"{SVG}text") if text.text]
    width = float(root.get("width"))
    assert len(words) > 20 and 700 <= width <= 1200
    assert all(float(text.get("font-size")) * 700 / width >= 14 for text in words)  # 11 points, at 700 pixels


@pytest.mark.parametrize("name", DRAWINGS)
def test_nothing_of_a_picture_lies_outside_it(name):
    root = ElementTree.fromstring(DRAWINGS[name]().svg())
    width, height = float(root.get("width")), float(root.get("height"))
    for box in root.iter(f"{SVG}rect"):
        x, y, wide, high = (float(box.get(key)) for key in ("x", "y", "width", "height"))
        assert 0 <= x and 0 <= y and x + wide <= width and y + high <= height
    for text in root.iter(f"{SVG}text"):
        size = float(text.get("font-size"))
        half = 0.25 * size * len(text.text)  # about
        anchor = {"start": 0, "middle": -half, "end": -2 * half}[text.get("text-anchor")]
        assert 0 <= float(text.get("x")) + anchor and float(text.get("x")) + anchor + 2 * half <= width + 8, text.text
        assert size * 0.7 <= float(text.get("y")) <= height


def test_every_picture_is_in_a_lab_and_every_link_leads_to_one():
    found = set()
    for path in NOTEBOOKS:
        for alt, target in (link for cell in Notebook(path).cells for link in LINK.findall(cell.source)):
            assert (path.parent / target).resolve().is_file() and alt, (path.name, target)
            found.add((path.parent / target).stem)
    assert found == set(DRAWINGS)


def test_the_ring_shows_what_a_reduce_scatter_leaves():
    for rank in range(ring.RANKS):
        whole = [chunk for chunk in range(ring.RANKS) if len(ring.held(rank, chunk, 2)) == ring.RANKS]
        assert whole == [(rank + 1) % ring.RANKS]


def test_the_staircase_has_every_step_once_and_each_stage_after_its_neighbour():
    ticks = range(14)
    for stage in range(4):
        steps = [step for tick in ticks if (step := staircase.step_at(stage, tick))]
        assert steps == [f"{kind}{micro}" for kind in "FB" for micro in range(4)]
    for micro in range(4):
        when = [[staircase.step_at(stage, tick) for tick in ticks].index(f"F{micro}") for stage in range(4)]
        assert when == sorted(when) and when[0] == micro
