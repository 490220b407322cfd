"""Boards and panels: one size, one image drawn anew, words that follow, and a bundle that needs no kernel."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from distlab.show.board import Board
from distlab.show.letters import width_of
from distlab.show.look import SERIES
from distlab.show.panel import Panel, choice, slider, switch


def draw(number: int, is_loud: bool, step: int = 0) -> Board:
    board = Board(f"{number} boxes", 1.5)
    board.boxes([(n, 0.5, n + 0.8, 1.0) for n in range(number)], SERIES[1])
    board.word(1, 1.2, "loud" if is_loud else "quiet")
    board.say(f"There are {number} boxes, at step {step}.", "Loud." if is_loud else "Quiet.")
    return board


def panel(**settings) -> Panel:
    controls = {"number": slider("number", 1, 5, 2), "is_loud": switch("loud")}
    return Panel(draw, controls, **settings)


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("L")).astype(int)


def test_moving_a_control_draws_the_same_image_widget_anew():
    shown = panel()
    image, words = shown.widget.children[-2:]
    before = image.value
    shown._controls["number"].value = 4
    assert shown.widget.children[-2] is image and image.value != before
    assert "There are 4 boxes" in words.value and "There are 4 boxes" in repr(shown)


def test_setting_several_controls_draws_once(monkeypatch):
    shown, drawn = panel(), []
    monkeypatch.setattr(shown, "_draw", lambda **values: drawn.append(values) or draw(**values))
    shown.set(number=5, is_loud=True)
    assert drawn == [{"number": 5, "is_loud": True}]


def test_a_player_starts_again_where_there_are_more_steps_or_fewer():
    shown = panel(num_steps=lambda number, is_loud: 2 * number)
    assert shown._controls["step"].max == 4
    shown.set(step=4)
    assert "at step 4" in repr(shown)
    shown.set(is_loud=True)
    assert shown.values["step"] == 4
    shown._controls["number"].value = 5
    assert shown.values == {"number": 5, "is_loud": True, "step": 0} and shown._controls["step"].max == 10
    assert shown._play.max == 10


def test_the_buttons_go_one_step_and_stop_at_the_ends():
    shown = panel(num_steps=lambda number, is_loud: 2)
    _, back, forth, _ = shown.widget.children[1].children
    back.click()
    assert shown.values["step"] == 0
    for _ in range(3):
        forth.click()
    assert shown.values["step"] == 2


def test_the_bundle_has_a_view_a_picture_and_words():
    bundle = panel()._repr_mimebundle_()
    assert set(bundle) == {"application/vnd.jupyter.widget-view+json", "text/plain", "image/png"}
    assert bundle["text/plain"].startswith("2 boxes\nThere are 2 boxes")
    assert Image.open(io.BytesIO(base64.b64decode(bundle["image/png"]))).size == (960, 150)


def test_every_control_says_what_it_is():
    controls = [slider("a", 1, 2, 1), choice("b", {"x": 1}, 1), choice("c", [7], 7)]
    for control, name in zip([*controls, switch("d")], "abcd"):
        assert control.description == control.tooltip == name


def test_words_are_escaped_and_read_out_when_they_change():
    def angry(number):
        board = Board("a < b", 1.0)
        board.say("<script>")
        return board

    words = Panel(angry, {"number": slider("number", 1, 2, 1)}).widget.children[-1].value
    assert "<script>" not in words and "&lt;script&gt;" in words and 'aria-live="polite"' in words


def test_the_quick_image_shows_what_the_small_one_shows():
    board = draw(3, True)
    assert np.abs(pixels(board.png()) - pixels(board.quick_png())).mean() < 2


@pytest.mark.parametrize("align", ["left", "center", "right"])
def test_a_word_stands_where_its_width_says(align):
    board = Board("", 1.0)
    board.word(4.0, 0.5, "hello", align=align)
    columns = np.nonzero((pixels(board.quick_png()) < 128).any(axis=0))[0] / 100
    left = 4.0 - {"left": 0, "center": 0.5, "right": 1}[align] * width_of("hello")
    assert columns.min() == pytest.approx(left, abs=0.03)
    assert columns.max() == pytest.approx(left + width_of("hello"), abs=0.03)
