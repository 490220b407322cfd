"""A board is drawn twice, as an SVG and as a PNG, and both have all that is on it."""

from __future__ import annotations

import base64
import io
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from distlab.show.board import Board
from distlab.show.look import DPI, INK, MID, SERIES, TEXT, WIDTH, Look
from distlab.show.vector import svg_of

_SVG = "{http://www.w3.org/2000/svg}"
DARK = Look("#0072B2", "")


def elements(board: Board, name: str) -> list[ElementTree.Element]:
    """The elements of that name in a board's SVG."""
    return list(ElementTree.fromstring(board.svg()).iter(_SVG + name))


def pixels(board: Board) -> np.ndarray:
    """Grey values of a board's PNG."""
    return np.asarray(Image.open(io.BytesIO(board.png())).convert("L")).astype(int)


def with_everything() -> Board:
    """One of each mark, each in a square inch of its own from the second on."""
    board = Board("one of each", 2.0)
    board.boxes([(1.1, 1.1, 1.9, 1.9)], DARK)
    board.area([(2.1, 1.9), (2.5, 1.1), (2.9, 1.9)], DARK)
    board.frames([(3.1, 1.1, 3.9, 1.9)], INK)
    board.lines([(4.1, 1.1, 4.9, 1.9)], INK)
    board.arrows([(5.1, 1.1, 5.9, 1.9)], INK)
    board.image(np.ones((2, 2)), (6.1, 1.1, 6.9, 1.9))
    board.word(7.5, 1.5, "word")
    return board


def test_both_drawings_have_every_mark_at_its_place():
    board, squares = with_everything(), range(1, 8)
    seen = pixels(board)
    assert all((seen[100:200, 100 * n : 100 * (n + 1)] < 200).any() for n in squares)
    assert (seen[100:200, :100] > 200).all() and (seen[100:200, 800:] > 200).all()
    shown = dict(path=3, rect=1, polygon=1, image=1, text=2)  # an arrow is a line and a head
    assert {name: len(elements(board, name)) for name in shown} == shown | {"path": 4}


def test_an_svg_fills_the_column_that_it_is_shown_in_and_is_named_for_screen_readers():
    (root,) = elements(with_everything(), "svg")
    assert root.get("viewBox") == f"0 0 {WIDTH * DPI:g} 200"
    assert root.get("width") is None and root.get("height") is None  # JupyterLab cuts nothing down that has a size
    assert root.get("role") == "img" and [each.text for each in root][:2] == ["one of each", "one of each"]


def test_a_drawing_inside_a_page_has_no_tip_at_the_mouse_and_the_pages_colour():
    board = with_everything()
    inside = svg_of(board, {"role": "img", "aria-label": board.title, "style": "width:100%"})
    assert "<title" not in inside and 'aria-label="one of each"' in inside and TEXT in inside


def test_words_beside_boxes_are_the_pages_or_grey_and_on_boxes_the_looks():
    board = Board("", 1.0)
    board.word(1, 0.5, "beside")
    board.numbers([(2, 0.5, "7")], DARK)
    board.numbers([(3, 0.5, "8")], SERIES[1])
    beside, seven, eight = elements(board, "text")
    assert MID in beside.get("style") and seven.get("fill") == DARK.ink and eight.get("fill") == INK
    assert seven.get("stroke") is None and eight.get("stroke") == SERIES[1].colour  # a rim keeps the hatch off


@pytest.mark.parametrize("look", SERIES)
def test_a_hatch_is_in_both_drawings(look):
    board = Board("", 1.0)
    board.boxes([(1, 0.1, 2, 0.9)], look)
    assert len(elements(board, "pattern")) == bool(look.hatch)
    inside = pixels(board)[20:80, 110:190]
    assert (inside.std() > 5) == bool(look.hatch)


def test_what_lies_above_is_drawn_later_whatever_came_first():
    board = Board("", 1.0)
    board.word(1.5, 0.5, "on it", colour=INK)
    board.boxes([(1, 0.1, 2, 0.9)], SERIES[0])
    board.lines([(0.5, 0.5, 3, 0.5)], INK, under=True)
    names = [each.tag.removeprefix(_SVG) for each in ElementTree.fromstring(board.svg())]
    assert names[2:] == ["path", "path", "text"] and pixels(board)[50, 105] > 100  # the line is under the box


def test_values_are_squares_of_grey():
    board = Board("", 1.0)
    board.image(np.array([[0.0, 1.0]]), (1, 0.1, 2, 0.9))
    (image,) = elements(board, "image")
    seen = Image.open(io.BytesIO(base64.b64decode(image.get("href").partition(",")[2])))
    assert [seen.getpixel((x, 0)) for x in (0, 1)] == [255, 0]
    assert pixels(board)[50, 120] > 240 and pixels(board)[50, 180] < 15


def test_text_is_text_and_escaped():
    board = Board("a < b & c", 1.0)
    assert re.search(r">a &lt; b &amp; c</text>", board.svg())
    assert elements(board, "text")[0].text == "a < b & c"


def test_a_legend_takes_as_many_lines_as_it_needs():
    board = Board("", 2.0)
    last = board.key(0.2, 0.5, {f"a rather long name, {number}": SERIES[number] for number in range(6)})
    words = {each.text: (float(each.get("x")), float(each.get("y"))) for each in elements(board, "text")}
    assert len(words) == 6 and len({y for _, y in words.values()}) == 2 and last > 0.7
    assert max(x for x, _ in words.values()) < WIDTH * DPI - 150
