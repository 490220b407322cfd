"""A drawing with text as text, legible on white and on dark: it has no ground of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from xml.etree import ElementTree

from distlab.show.look import INK, MID, Look

_FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
# Pixels of a drawing about 920 wide: at 700, the least that a notebook shows, the small ones are 11 points.
SMALL, NORMAL, LARGE = 19, 20, 22
_MONOSPACE = "Menlo, Consolas, 'Liberation Mono', monospace"
_ADVANCE = 0.6  # of a monospaced letter, of its size
_CORNER = 4
_HEAD = 8  # of an arrow
_RISE = 0.36  # of the type size: from the middle of a line to its baseline
_TILE = 8  # pixels: a hatch repeats
_HATCHES = {  # lines in a tile, and beyond its corners, where they would else be cut
    "/": "M-2 2L2 -2M0 8L8 0M6 10L10 6",
    "\\": "M-2 6L2 10M0 0L8 8M6 -2L10 2",
    "x": "M-2 2L2 -2M0 8L8 0M6 10L10 6M-2 6L2 10M0 0L8 8M6 -2L10 2",
    "|": "M4 0V8",
    "-": "M0 4H8",
    "+": "M4 0V8M0 4H8",
    ".": "M3 4H5",
}


class Drawing:
    """Boxes, texts and arrows at given places, in pixels from the top left; ``svg()`` is the file.

    ``title`` names it and ``description`` says what there is to see, for those who can't. Unless it ``fills`` the
    column in which a page shows it, it is so many pixels large. ``name`` begins the names of what it defines.
    """

    def __init__(self, width: float, height: float, title: str, description: str, fills: bool = False,
                 name: str = ""):  # fmt: skip
        size = {} if fills else {"width": f"{width:g}", "height": f"{height:g}"}
        named = {"role": "img", "aria-labelledby": "title description", "font-family": _FONT}
        box = {"viewBox": f"0 0 {width:g} {height:g}"}
        self._root = ElementTree.Element("svg", {"xmlns": "http://www.w3.org/2000/svg"} | box | size | named)
        self._hatches: set[str] = set()
        self._name = f"{name}-" if name else ""
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

    def boxes(self, boxes: Iterable[tuple[float, float, float, float]], look: Look, gap: float = 0.0) -> None:
        """Many boxes of one look, each as (x0, y0, x1, y1); ``gap`` is what stays free between two that touch."""
        path = "".join(
            f"M{x0 + gap / 2:.5g} {y0 + gap / 2:.5g}H{x1 - gap / 2:.5g}V{y1 - gap / 2:.5g}H{x0 + gap / 2:.5g}Z"
            for x0, y0, x1, y1 in boxes
        )
        self._fill(path, look)

    def area(self, points: Sequence[tuple[float, float]], look: Look) -> None:
        """A polygon."""
        self._fill(f"M{'L'.join(f'{x:.5g} {y:.5g}' for x, y in points)}Z", look)

    def frame(self, x: float, y: float, width: float, height: float, colour: str = MID, *, line: float = 1.0,
              dashes: str = "3 4") -> None:  # fmt: skip
        """A box without a fill, dotted: nothing is there, or it waits."""
        place = {"x": f"{x:g}", "y": f"{y:g}", "width": f"{width:g}", "height": f"{height:g}"}
        look = {"rx": f"{_CORNER}", "fill": "none", "stroke-width": f"{line:g}"}
        dashed = {"stroke-dasharray": dashes} if dashes else {}
        self._add("rect", place | look | dashed | _painted("stroke", colour))

    def text(self, x: float, y: float, words: str, *, size: float = NORMAL, anchor: str = "middle", colour: str = MID,
             bold: bool = False, rim: str = "") -> None:  # fmt: skip
        """Words whose line has its middle at ``y``; ``anchor`` is start, middle or end, ``rim`` a colour around."""
        place = {"x": f"{x:.5g}", "y": f"{y + _RISE * size:.5g}", "font-size": f"{size:.4g}", "text-anchor": anchor}
        weight = {"font-weight": "bold"} if bold else {}
        around = {"stroke": rim, "stroke-width": "4", "paint-order": "stroke", "stroke-linejoin": "round"}
        self._add("text", place | _painted("fill", colour) | weight | (around if rim else {})).text = words

    def code(self, x: float, y: float, line: str, *, size: float, colour: str) -> None:
        """A line of code from ``x`` on; its indentation is kept by place, since blanks at the start collapse."""
        words = line.lstrip(" ")
        place = {"x": f"{x + (len(line) - len(words)) * _ADVANCE * size:g}", "y": f"{y + _RISE * size:g}"}
        face = {"font-size": f"{size:g}", "font-family": _MONOSPACE, "fill": colour}
        if words:
            self._add("text", place | face).text = words

    def line(self, points: Sequence[tuple[float, float]], colour: str = MID, width: float = 1.5,
             dashes: str = "") -> None:  # fmt: skip
        """A line through some points."""
        self.lines([points], colour, width, dashes)

    def lines(self, lines: Iterable[Sequence[tuple[float, float]]], colour: str, width: float,
              dashes: str = "") -> None:  # fmt: skip
        """Many lines of one look."""
        path = " ".join(
            " ".join(f"{'L' if number else 'M'}{x:.5g} {y:.5g}" for number, (x, y) in enumerate(points))
            for points in lines
        )
        dashed = {"stroke-dasharray": dashes} if dashes else {}
        look = {"fill": "none", "stroke-width": f"{width:.3g}"} | dashed | _painted("stroke", colour)
        self._add("path", {"d": path} | look)

    def arrow(self, points: Sequence[tuple[float, float]], colour: str = MID, width: float = 1.5,
              head: float = _HEAD) -> None:  # fmt: skip
        """A line through some points with a head at its end."""
        (a, b), (x, y) = points[-2:]
        length = math.hypot(x - a, y - b) or 1.0
        along = ((x - a) / length, (y - b) / length)
        across = (-along[1], along[0])
        back = (x - head * along[0], y - head * along[1])
        sides = [(back[0] + way * head / 2 * across[0], back[1] + way * head / 2 * across[1]) for way in (1, -1)]
        self.line([*points[:-1], back], colour, width)
        corners = " ".join(f"{p:.5g},{q:.5g}" for p, q in ((x, y), *sides))
        self._add("polygon", {"points": corners} | _painted("fill", colour))

    def image(self, png: str, x: float, y: float, width: float, height: float) -> None:
        """A PNG, in base64, its pixels as they are."""
        place = {"x": f"{x:.5g}", "y": f"{y:.5g}", "width": f"{width:.5g}", "height": f"{height:.5g}"}
        how = {"preserveAspectRatio": "none", "style": "image-rendering:pixelated"}
        self._add("image", place | how | {"href": f"data:image/png;base64,{png}"})

    def svg(self, attributes: Mapping[str, str] | None = None) -> str:
        """The file's text; ``attributes`` instead of its name and size, for a drawing inside a page."""
        if attributes is None:
            ElementTree.indent(self._root)
            return ElementTree.tostring(self._root, encoding="unicode") + "\n"
        inside = ElementTree.Element("svg", {k: self._root.attrib[k] for k in ("viewBox", "font-family")} | attributes)
        inside.extend(each for each in self._root if each.tag not in ("title", "desc"))  # a title is a tip at the mouse
        return ElementTree.tostring(inside, encoding="unicode")

    def _fill(self, path: str, look: Look) -> None:
        self._add("path", {"d": path, "fill": look.colour})
        if look.hatch:
            self._add("path", {"d": path, "fill": f"url(#{self._hatch(look)})"})

    def _hatch(self, look: Look) -> str:
        """The id of a pattern of white lines."""
        name = f"{self._name}hatch-{ord(look.hatch[0])}"
        if name not in self._hatches:
            self._hatches.add(name)
            size = {"width": f"{_TILE}", "height": f"{_TILE}", "patternUnits": "userSpaceOnUse"}
            pattern = ElementTree.SubElement(ElementTree.SubElement(self._root, "defs"), "pattern", {"id": name} | size)
            style = {"stroke": "#FFFFFF", "stroke-width": "1.4", "fill": "none"}
            ElementTree.SubElement(pattern, "path", {"d": _HATCHES[look.hatch[0]]} | style)
        return name

    def _add(self, name: str, attributes: dict[str, str]) -> ElementTree.Element:
        return ElementTree.SubElement(self._root, name, attributes)


def _painted(what: str, colour: str) -> dict[str, str]:
    """A fill or stroke; a colour that the page has is one of style sheets, which an attribute can't name."""
    return {"style": f"{what}:{colour}"} if colour.startswith("var(") else {what: colour}
