"""LivePanel: buttons that start something which takes a while, and a picture and text that follow it."""

from __future__ import annotations

import html
import threading
from collections.abc import Callable, Mapping

import ipywidgets as widgets

from distlab.show.board import Board
from distlab.show.panel import CSS_CLASS, new_name, picture_as_html, words_as_html
from distlab.show.picture import images_of

_OUTPUT_PX = 170

Show = Callable[[Board, str], None]


class LivePanel:
    """Starts ``actions[name](show)`` when the button of that name is pressed; ``show(picture, output)`` draws anew.

    An action runs in a thread of its own, so that the notebook can be used meanwhile; all buttons are disabled until it
    is over. Every picture must be of the size of ``first``, which stands there before.
    """

    def __init__(self, first: Board, actions: Mapping[str, Callable[[Show], None]]):
        self.buttons = [self._button(name, action) for name, action in actions.items()]
        self._image = widgets.HTML(layout={"width": "100%"})
        self._words, self._output = widgets.HTML(), widgets.HTML()
        self.thread: threading.Thread | None = None
        self._is_busy, self._name = False, new_name()
        self.show(first, "")
        parts = [widgets.HBox(self.buttons), self._image, self._words, self._output]
        self.widget = widgets.VBox(parts, layout={"width": "100%"})
        self.widget.add_class(CSS_CLASS)

    def show(self, picture: Board, output: str) -> None:
        """Draws a picture, its words, and what was printed."""
        self.picture, self.output = picture, output
        style = f"height:{_OUTPUT_PX}px;overflow:auto;font-size:14px;line-height:1.35;margin:0"
        self._output.value = (
            f'<pre tabindex="0" aria-label="output of the ranks" style="{style}">{html.escape(output)}</pre>'
        )
        self._image.value = picture_as_html(picture, self._name)
        self._words.value = words_as_html(picture)  # last: who reads them finds the rest there

    def press(self, name: str) -> None:
        """Starts an action, as its button would, unless one is under way."""
        next(button for button in self.buttons if button.description == name).click()

    def _button(self, name: str, action: Callable[[Show], None]) -> widgets.Button:
        button = widgets.Button(description=name, tooltip=name, layout={"width": "max-content"})
        button.on_click(lambda _: self._start(action))
        return button

    def _start(self, action: Callable[[Show], None]) -> None:
        if self._is_busy:
            return
        self._is_busy = True
        self._disable(True)
        self.thread = threading.Thread(target=self._run, args=(action,), daemon=True)
        self.thread.start()

    def _run(self, action: Callable[[Show], None]) -> None:
        try:
            action(self.show)
        finally:
            self._is_busy = False  # before the buttons can be pressed again, or a quick press would be lost
            self._disable(False)

    def _disable(self, value: bool) -> None:
        for button in self.buttons:
            button.disabled = value

    def __repr__(self) -> str:
        return self.picture.text()

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, object]:
        return self.widget._repr_mimebundle_() | {"text/plain": repr(self)} | images_of(self.picture)
