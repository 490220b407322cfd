"""A drawing with text as text, legible on white and on dark: it has no ground of its own."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from distlab.show.colours import INK, MID, Look

_FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
# Pixels of a drawing about 920 wide: at 700, the least that a notebook shows, the small ones are 11 points.
SMALL, NORMAL, LARGE = 19, 20, 22
_MONOSPACE = "Menlo, Consolas, 'Liberation Mono', monospace"
_ADVANCE = 0.6  # of a monospaced letter, of its size
_CORNER = 4
_HEAD = 8  # of an arrow
_RISE = 0.36  # of the type size: from the middle of a line to its baseline


class Drawing:
    """Boxes, texts and arrows at given places, in pixels from the top left; ``svg()`` is the file.

    ``title`` names it and ``description`` says what there is to see, for those who can't.
    """

    def __init__(self, width: float, height: float, title: str, description: str):
        size = {"viewBox": f"0 0 {width:g} {height:g}", "width": f"{width:g}", "height": f"{height:g}"}
        named = {"role": "img", "aria-labelledby": "title description", "font-family": _FONT}
        self._root = ElementTree.Element("svg", {"xmlns": "http://www.w3.org/2000/svg"} | size | named)
        for name, words in (("title", title), ("desc", description)):
            id = "description" if name == "desc" else name
            ElementTree.SubElement(self._root, name, {"id": id}).text = words

    def box(self, x: float, y: float, width: float, height: float, look: Look, words: str = "",
            size: float = NORMAL) -> None:  # fmt: skip
        """A filled box with a word in its middle; text on a fill is dark whatever lies behind the drawing."""
        place = {"x": f"{x:g}", "y": f"{y:g}", "width": f"{width:g}", "height": f"{height:g}"}
        self._add("rect", place | {"rx": f"{_CORNER}", "fill": look.colour})
        if words:
            self.text(x + width / 2, y + height / 2, words, size=size, colour=INK)

    def frame(self, x: float, y: float, width: float, height: float, colour: str = MID) -> None:
        """A box without a fill, dotted: nothing is there, or it waits."""
        place = {"x": f"{x:g}", "y": f"{y:g}", "width": f"{width:g}", "height": f"{height:g}"}
        self._add("rect", place | {"rx": f"{_CORNER}", "fill": "none", "stroke": colour, "stroke-dasharray": "3 4"})

    def text(self, x: float, y: float, words: str, *, size: float = NORMAL, anchor: str = "middle", colour: str = MID,
             bold: bool = False) -> None:  # fmt: skip
        """Words whose line has its middle at ``y``; ``anchor`` is start, middle or end."""
        place = {"x": f"{x:g}", "y": f"{y + _RISE * size:g}", "font-size": f"{size:g}", "text-anchor": anchor}
        weight = {"font-weight": "bold"} if bold else {}
        self._add("text", place | {"fill": colour} | weight).text = words

    def code(self, x: float, y: float, line: str, *, size: float, colour: str) -> None:
        """A line of code from ``x`` on; its indentation is kept by place, since blanks at the start collapse."""
        words = line.lstrip(" ")
        place = {"x": f"{x + (len(line) - len(words)) * _ADVANCE * size:g}", "y": f"{y + _RISE * size:g}"}
        face = {"font-size": f"{size:g}", "font-family": _MONOSPACE, "fill": colour}
        if words:
            self._add("text", place | face).text = words

    def line(self, points: Sequence[tuple[float, float]], colour: str = MID, width: float = 1.5) -> None:
        """A line through some points."""
        path = " ".join(f"{'L' if number else 'M'}{x:g} {y:g}" for number, (x, y) in enumerate(points))
        self._add("path", {"d": path, "fill": "none", "stroke": colour, "stroke-width": f"{width:g}"})

    def arrow(self, points: Sequence[tuple[float, float]], colour: str = MID, width: float = 1.5) -> None:
        """A line through some points, the last of its parts level or upright, with a head at its end."""
        (a, b), (x, y) = points[-2:]
        along = ((x > a) - (x < a), (y > b) - (y < b))
        across = (-along[1], along[0])
        back = (x - _HEAD * along[0], y - _HEAD * along[1])
        sides = [(back[0] + way * _HEAD / 2 * across[0], back[1] + way * _HEAD / 2 * across[1]) for way in (1, -1)]
        self.line([*points[:-1], back], colour, width)
        head = " ".join(f"{p:g},{q:g}" for p, q in ((x, y), *sides))
        self._add("polygon", {"points": head, "fill": colour})

    def svg(self) -> str:
        """The file's text."""
        ElementTree.indent(self._root)
        return ElementTree.tostring(self._root, encoding="unicode") + "\n"

    def _add(self, name: str, attributes: dict[str, str]) -> ElementTree.Element:
        return ElementTree.SubElement(self._root, name, attributes)
