"""Shows what the course has to say: as text, and in a notebook also with colour and lines that wrap at words."""

from __future__ import annotations

import html
import re
import sys

# Mid tones that are legible on white and on black: text keeps the theme's own colour.
COLOURS = {"✓": "#1a9850", "✗": "#d6453d", "○": "#8a8f98"}
_MARK = re.compile(r"^(\s*)([✓✗○])(?= )")
_CODE = re.compile(r"`([^`\n]+)`")
_CAME = re.compile(r"\bexpected (.+), got (.+)$")
_PRINTED = re.compile(r"^\s*\[ranks? [^\]]*\] .*$")
_MONOSPACE = "font-family:var(--jp-code-font-family,monospace);font-size:90%"
_STYLE = "white-space:pre-wrap;overflow-wrap:break-word;line-height:1.45;max-width:60em"


def show(text: str, rich: str = "") -> None:
    """Prints ``text``, or in a notebook displays it with its HTML, ``rich`` or made from the text."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None or not hasattr(shell, "kernel"):
        print(text)
        return
    from IPython.display import display

    display({"text/plain": text, "text/html": rich or as_html(text)}, raw=True)


def as_html(text: str) -> str:
    """The same words: the mark in its colour, names in ``code``, what was expected apart from what came."""
    lines = "\n".join(map(_line, text.splitlines()))
    return f'<div style="{_STYLE}">{lines}</div>'


def _line(line: str) -> str:
    escaped = html.escape(line, quote=False)
    if _PRINTED.match(line):
        return f'<span style="{_MONOSPACE}">{escaped}</span>'
    escaped = _CODE.sub(r"<code>\1</code>", escaped)
    escaped = _CAME.sub(r"expected <b>\1</b>, got <b>\2</b>", escaped)
    return _MARK.sub(_mark, escaped)


def _mark(match: re.Match) -> str:
    return f'{match[1]}<b style="color:{COLOURS[match[2]]}">{match[2]}</b>'
