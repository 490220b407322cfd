"""Boards and panels: one size, one image drawn anew, words that follow, and a bundle that needs no kernel."""

from __future__ import annotations

import base64
import io
from xml.etree import ElementTree

import ipywidgets as widgets
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


def named(shown: Panel) -> dict[str, widgets.Widget]:
    """The player's controls, by what they are called."""
    return {child.tooltip: child for child in shown._player.children if child is not shown._play}


def test_the_buttons_go_one_step_and_stop_at_the_ends():
    shown = panel(num_steps=lambda number, is_loud: 2)
    named(shown)["◀ back"].click()
    assert shown.values["step"] == 0
    for _ in range(3):
        named(shown)["step ▶"].click()
    assert shown.values["step"] == 2


def test_reset_stops_and_goes_to_the_first_step():
    shown = panel(num_steps=lambda number, is_loud: 2)
    shown.set(step=2)
    shown._play.playing = True
    named(shown)["reset"].click()
    assert shown.values["step"] == 0 and shown._play.playing is False and "at step 0" in repr(shown)


def test_play_has_a_speed_in_seconds_a_step():
    shown = panel(num_steps=lambda number, is_loud: 2)
    assert shown._play.interval == 800
    for seconds, milliseconds in ((0.4, 400), (1.6, 1600)):
        named(shown)["seconds a step"].value = seconds
        assert shown._play.interval == milliseconds
    assert "seconds a step" not in shown.values


def test_a_new_number_of_steps_has_a_slider_of_its_own():
    shown = panel(num_steps=lambda number, is_loud: 2 * number)
    first = shown._controls["step"]
    shown.set(is_loud=True)
    assert shown._controls["step"] is first
    shown.set(number=5)
    second = shown._controls["step"]
    assert second is not first and named(shown)["step"] is second and second.max == 10
    second.value = 10
    assert "at step 10" in repr(shown)
    shown.set(number=1, step=2)
    assert shown.values["step"] == 2 and len([c for c in shown._player.children if c.description == "step"]) == 1


def test_controls_of_a_player_have_names():
    shown = panel(num_steps=lambda number, is_loud: 2)
    assert list(named(shown)) == ["play", "◀ back", "step ▶", "reset", "step", "seconds a step"]
    assert all(control.description for control in named(shown).values())
    toggle = named(shown)["play"]
    toggle.value = True
    assert toggle.description.endswith("pause")
    toggle.value = False
    assert toggle.description.endswith("play")


def test_a_choice_is_as_wide_as_its_longest_name():
    def em(control) -> float:
        return float(control.layout.width.removesuffix("em"))

    short, long = choice("model", ["a", "b"], "a"), choice("model", ["a", "7.5B (ZeRO paper)"], "a")
    assert em(long) - em(short) > 0.5 * 17 - 4.5
    assert em(choice("model of a long name", ["a"], "a")) > em(short) + 7


def test_the_bundle_has_a_view_a_picture_and_words():
    bundle = panel()._repr_mimebundle_()
    assert set(bundle) == {"application/vnd.jupyter.widget-view+json", "text/plain", "image/png", "image/svg+xml"}
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


def test_the_picture_on_the_page_is_the_drawing_as_wide_as_the_page_and_named():
    shown = panel()
    svg = ElementTree.fromstring(shown.widget.children[-2].value)
    assert svg.get("viewBox") == "0 0 960 150" and svg.get("width") is None
    assert svg.get("role") == "img" and svg.get("aria-label") == "2 boxes"
    assert "width:100%" in svg.get("style")
    assert ["2 boxes", "quiet"] == [each.text for each in svg.iter("text")]


def test_what_a_picture_defines_has_a_name_that_no_other_on_the_page_has():
    def hatched(number):
        board = Board("hatched", 1.0)
        board.boxes([(1, 0.5, 2, 0.8)], SERIES[1])
        return board

    svgs = []
    for _ in range(2):
        shown = Panel(hatched, {"number": slider("number", 1, 2, 1)})
        svgs.append(ElementTree.fromstring(shown.widget.children[-2].value))
    (first,), (second,) = ([each.get("id") for each in svg.iter("pattern")] for svg in svgs)
    assert first != second and svgs[0].get("id") != svgs[1].get("id")
    assert any(each.get("fill") == f"url(#{first})" for each in svgs[0].iter("path"))


@pytest.mark.parametrize("align", ["left", "center", "right"])
def test_a_word_stands_where_its_width_says(align):
    board = Board("", 1.0)
    board.word(4.0, 0.5, "hello", align=align)
    columns = np.nonzero((pixels(board.png()) < 128).any(axis=0))[0] / 100
    left = 4.0 - {"left": 0, "center": 0.5, "right": 1}[align] * width_of("hello")
    assert columns.min() == pytest.approx(left, abs=0.03)
    assert columns.max() == pytest.approx(left + width_of("hello"), abs=0.03)
