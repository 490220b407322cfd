"""Panel: a picture with controls. One image is drawn anew where it stands; words beside it say what it shows."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from uuid import uuid4

import ipywidgets as widgets

from distlab.show.board import Board
from distlab.show.picture import images_of
from distlab.show.vector import svg_of

CSS_CLASS = "distlab-panel"  # by which a page can find panels
_LABEL = {"description_width": "initial"}
_APART = {"margin": "2px 20px 2px 4px"}
_SPEEDS = (0.4, 0.8, 1.6)  # seconds a step
_LETTER, _SLIDES, _LEAST = 0.58, 11, 4.5  # em: a letter, what slides with its room, the room of a value
_LINES, _SIZE = 5, "clamp(15px, 1.2vw, 22px)"  # of words: larger on a wide page, which is projected
_HIGHEST = "max(240px, min(66vh, 100vh - 330px))"  # of a picture: its controls and words have room beside it
_ROW = {"flex_flow": "row wrap", "margin": "0 0 0 6px"}
# Controls grow with the page, as words do; a value is never cut: ipywidgets would cut it at 148 pixels.
_STYLE = f"""<style>
.{CSS_CLASS} {{ --jp-widgets-font-size: clamp(13px, 0.95vw, 18px); --jp-widgets-inline-height: 2.1em; }}
.{CSS_CLASS} .widget-readout {{ max-width: none; flex-shrink: 0; }}
</style>"""


def slider(label: str, low: int, high: int, value: int) -> widgets.IntSlider:
    """A whole number to slide, moved by the arrow keys too."""
    return widgets.IntSlider(value, low, high, description=label, tooltip=label, style=_LABEL, layout=_as_wide(label))


def choice(label: str, options: Mapping[str, object] | Sequence, value: object) -> widgets.SelectionSlider:
    """One of several, by their names, to slide through with the arrow keys; as wide as the longest needs.

    A list that drops down would be of no use without a mouse: what is typed there, JupyterLab takes for its own, moves
    to another cell and changes the notebook.
    """
    pairs = list(options.items()) if isinstance(options, Mapping) else [(str(option), option) for option in options]
    layout = _as_wide(label, *(name for name, _ in pairs))
    return widgets.SelectionSlider(
        options=pairs, value=value, description=label, tooltip=label, style=_LABEL, layout=layout
    )


def _as_wide(label: str, *names: str) -> dict[str, str]:
    """The layout of a slider with room for its label and the longest of the names that it shows."""
    room = max([_LEAST, *(_LETTER * len(name) for name in names)])
    return _APART | {"width": f"{_LETTER * len(label) + _SLIDES + room:.1f}em"}


def switch(label: str, value: bool = False) -> widgets.Checkbox:
    """Yes or no."""
    return widgets.Checkbox(
        value, description=label, tooltip=label, indent=False, layout=_APART | {"width": "max-content"}
    )


def _button(words: str) -> widgets.Button:
    return widgets.Button(description=words, tooltip=words, layout={"width": "max-content"})


class Panel:
    """Shows ``draw(**values)``, a Board, and draws it anew whenever a control moves.

    ``controls`` has a widget by the name of draw's parameter. With ``num_steps``, draw takes a ``step`` too, from 0 to
    ``num_steps(**values)``, to play, or to go through by hand. Every picture must be of one size. In a notebook without
    a kernel the picture and its words stand there as they were when the cell was run.
    """

    def __init__(
        self,
        draw: Callable[..., Board],
        controls: Mapping[str, widgets.Widget],
        num_steps: Callable[..., int] | None = None,
    ):
        self._draw, self._controls, self._num_steps = draw, dict(controls), num_steps
        self._is_setting, self._name = False, new_name()
        self._rows = [widgets.HBox(list(self._controls.values()), layout=_ROW)]
        if num_steps:
            self._add_player()
        for control in controls.values():
            control.observe(self._moved, "value")
        self._image, self._words = widgets.HTML(layout={"width": "100%"}), widgets.HTML()
        style = widgets.HTML(_STYLE, layout={"display": "none"})
        self._redraw()
        self.widget = widgets.VBox([*self._rows, style, self._image, self._words], layout={"width": "100%"})
        self.widget.add_class(CSS_CLASS)

    @property
    def values(self) -> dict[str, object]:
        """What the controls are set to."""
        return {name: control.value for name, control in self._controls.items()}

    def set(self, **values) -> None:
        """Moves controls, as a hand would, and draws once."""
        self._is_setting = True
        for name, value in values.items():
            self._controls[name].value = value
            if self._num_steps and name != "step":
                self._fit_steps()
        self._is_setting = False
        self._redraw()

    def _add_player(self) -> None:
        self._play = widgets.Play(show_repeat=False, layout={"display": "none"})  # its buttons have no names
        toggle = widgets.ToggleButton(description="▶ play", tooltip="play", layout={"width": "max-content"})
        widgets.jslink((toggle, "value"), (self._play, "playing"))
        toggle.observe(self._say_whether_it_plays, "value")
        speed = choice("seconds a step", _SPEEDS, _SPEEDS[1])
        speed.observe(lambda change: setattr(self._play, "interval", round(1000 * change["new"])), "value")
        self._play.interval = round(1000 * speed.value)
        back, forth, reset = map(_button, ("◀ back", "step ▶", "reset"))
        back.on_click(lambda _: self._go(-1))
        forth.on_click(lambda _: self._go(+1))
        reset.on_click(lambda _: self._begin_again())
        self._beside_step = (toggle, back, forth, reset), (speed, self._play)
        self._player = widgets.HBox(layout=_ROW)
        self._rows.append(self._player)
        self._add_step(self._num_steps(**self.values))

    def _add_step(self, most: int) -> None:
        """Makes the slider of steps, a new one for each number: its End key would go to the end that it had at first.

        (noUiSlider keeps for its keys the range with which it was made.)
        """
        step = self._controls["step"] = slider("step", 0, most, 0)
        step.observe(self._moved, "value")
        self._play.value, self._play.max = 0, most
        self._link = widgets.jslink((self._play, "value"), (step, "value"))
        before, after = self._beside_step
        self._player.children = (*before, step, *after)

    def _go(self, way: int) -> None:
        step = self._controls["step"]
        step.value = min(step.max, max(0, step.value + way))

    def _begin_again(self) -> None:
        self._play.playing = False
        self._controls["step"].value = 0

    def _say_whether_it_plays(self, change) -> None:
        change["owner"].description = "❚❚ pause" if change["new"] else "▶ play"

    def _fit_steps(self) -> None:
        """Begins at the first step again where their number is another now."""
        values = self.values
        values.pop("step")
        before, most = self._controls["step"], self._num_steps(**values)
        if most != before.max:
            self._play.playing = False
            self._link.unlink()
            self._add_step(most)
            before.close()

    def _moved(self, change) -> None:
        if self._is_setting:
            return
        if self._num_steps and change["owner"] is not self._controls["step"]:
            self._is_setting = True
            self._fit_steps()
            self._is_setting = False
        self._redraw()

    def _redraw(self) -> None:
        self.picture = self._draw(**self.values)
        self._image.value = picture_as_html(self.picture, self._name)
        self._words.value = words_as_html(self.picture)

    def __repr__(self) -> str:
        return self.picture.text()

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, object]:
        return self.widget._repr_mimebundle_() | {"text/plain": self.picture.text()} | images_of(self.picture)


def picture_as_html(board: Board, name: str) -> str:
    """A board as wide as the page, or as high as leaves room for its controls and words; ``name`` is its own there."""
    style = f"display:block;width:100%;max-height:{_HIGHEST}"
    return svg_of(board, {"id": name, "role": "img", "aria-label": board.title, "style": style})


def new_name() -> str:
    """A name that no other picture on a page has, whichever notebook it is in."""
    return f"{CSS_CLASS}-{uuid4().hex[:12]}"


def words_as_html(board: Board) -> str:
    """A board's words, as high if they are few as if they are many, so that nothing below moves."""
    style = f"font-size:{_SIZE};line-height:1.4;min-height:{_LINES * 1.4:g}em"
    return (
        f'<div role="status" aria-live="polite" aria-label="{html.escape(board.title)}" style="{style}">'
        f"{'<br>'.join(map(html.escape, board.words))}</div>"
    )
