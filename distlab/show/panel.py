"""Panel: a picture with controls. One image is drawn anew where it stands; words beside it say what it shows."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence

import ipywidgets as widgets

from distlab.show.board import Board
from distlab.show.picture import images_of
from distlab.show.vector import svg_of

CSS_CLASS = "distlab-panel"  # by which a page can find panels
_LABEL = {"description_width": "initial"}
_APART = {"margin": "2px 20px 2px 0"}
_PLAY_MS = 800
_LINES, _SIZE = 5, "clamp(15px, 1.2vw, 22px)"  # of words: larger on a wide page, which is projected
_HIGHEST = "66vh"
_ROW = {"flex_flow": "row wrap", "margin": "0 0 0 6px"}


def slider(label: str, low: int, high: int, value: int) -> widgets.IntSlider:
    """A whole number to slide, moved by the arrow keys too."""
    width = _APART | {"width": "300px"}
    return widgets.IntSlider(value, low, high, description=label, tooltip=label, style=_LABEL, layout=width)


def choice(label: str, options: Mapping[str, object] | Sequence, value: object) -> widgets.SelectionSlider:
    """One of several, by their names, to slide through with the arrow keys.

    A list that drops down would be of no use without a mouse: what is typed there, JupyterLab takes for its own, moves
    to another cell and changes the notebook. Names of more than 18 letters are cut off.
    """
    pairs = list(options.items()) if isinstance(options, Mapping) else [(str(option), option) for option in options]
    width = _APART | {"width": "320px"}
    return widgets.SelectionSlider(
        options=pairs, value=value, description=label, tooltip=label, style=_LABEL, layout=width
    )


def switch(label: str, value: bool = False) -> widgets.Checkbox:
    """Yes or no."""
    return widgets.Checkbox(
        value, description=label, tooltip=label, indent=False, layout=_APART | {"width": "max-content"}
    )


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
        self._is_setting = False
        self._rows = [widgets.HBox(list(self._controls.values()), layout=_ROW)]
        if num_steps:
            self._add_player()
        for control in self._controls.values():
            control.observe(self._moved, "value")
        self._image, self._words = widgets.HTML(layout={"width": "100%"}), widgets.HTML()
        self._redraw()
        self.widget = widgets.VBox([*self._rows, self._image, self._words], layout={"width": "100%"})
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
        most = self._num_steps(**self.values)
        play = widgets.Play(value=0, min=0, max=most, interval=_PLAY_MS, show_repeat=False, tooltip="play")
        step = widgets.IntSlider(
            0, 0, most, description="step", tooltip="step", style=_LABEL, layout={"width": "300px"}
        )
        widgets.jslink((play, "value"), (step, "value"))
        back, forth = (
            widgets.Button(description=words, tooltip=words, layout={"width": "max-content"})
            for words in ("◀ back", "step ▶")
        )
        back.on_click(lambda _: self._go(-1))
        forth.on_click(lambda _: self._go(+1))
        self._play, self._controls["step"] = play, step
        self._rows.append(widgets.HBox([play, back, forth, step], layout=_ROW))

    def _go(self, way: int) -> None:
        step = self._controls["step"]
        step.value = min(step.max, max(0, step.value + way))

    def _fit_steps(self) -> None:
        """Begins at the first step again where their number is another now."""
        values = self.values
        values.pop("step")
        step, most = self._controls["step"], self._num_steps(**values)
        if most != step.max:
            step.value = 0
            self._play.max = step.max = most

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
        self._image.value = picture_as_html(self.picture)
        self._words.value = words_as_html(self.picture)

    def __repr__(self) -> str:
        return self.picture.text()

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, object]:
        return self.widget._repr_mimebundle_() | {"text/plain": self.picture.text()} | images_of(self.picture)


def picture_as_html(board: Board) -> str:
    """A board as wide as the page, or as high as leaves room for its controls and words."""
    style = f"display:block;width:100%;max-height:{_HIGHEST}"
    return svg_of(board, {"role": "img", "aria-label": board.title, "style": style})


def words_as_html(board: Board) -> str:
    """A board's words, as high if they are few as if they are many, so that nothing below moves."""
    style = f"font-size:{_SIZE};line-height:1.4;min-height:{_LINES * 1.4:g}em"
    return (
        f'<div role="status" aria-live="polite" aria-label="{html.escape(board.title)}" style="{style}">'
        f"{'<br>'.join(map(html.escape, board.words))}</div>"
    )
