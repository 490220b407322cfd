"""The look of every picture: colours that everyone can tell apart, sizes of letters, and which thing has which.

Nothing is told by colour alone: a box has a letter, or a hatch where it has no room for one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

# Okabe & Ito 2008, "Color Universal Design".
okabe_ito = {
    "orange": "#E69F00",
    "sky blue": "#56B4E9",
    "green": "#009E73",
    "yellow": "#F0E442",
    "blue": "#0072B2",
    "vermillion": "#D55E00",
    "purple": "#CC79A7",
    "black": "#000000",
}
INK, WHITE = "#222222", "#FFFFFF"  # of what stands on a fill
MID = "#7A7F87"  # of lines and words that stand on whatever the page has: as far from white as from black
TEXT = f"var(--jp-content-font-color1, {MID})"  # of words beside boxes: as the page has them, if it is JupyterLab's
RULE = "#A3A9B2"  # of lines that divide
GREY, FAINT = "#A6A6A6", "#D3D7DD"  # of fills

WIDTH = 9.6  # inches of every picture, at DPI pixels each
DPI = 100
LETTERS, TITLE = 14.5, 16.0  # points; where a page gives a picture 700 pixels, the least, LETTERS are 11 points high
_PALE = "40"  # opacity, of FF: after a colour's six digits


class Look(NamedTuple):
    """How a box of one kind is filled."""

    colour: str
    hatch: str

    @property
    def ink(self) -> str:
        """The colour of words on it; what is pale lets the page's ground through."""
        if self.colour.endswith(_PALE) and len(self.colour) > 7:
            return TEXT
        return WHITE if self.colour in _DARK else INK

    @property
    def plain(self) -> Look:
        """The same without a hatch, for boxes that have a letter."""
        return Look(self.colour, "")

    @property
    def pale(self) -> Look:
        """The same as if it lay behind others: without a hatch, on white and on dark near to the ground."""
        return Look(self.colour + _PALE, "")


_DARK = {
    okabe_ito["blue"],
    okabe_ito["green"],
    okabe_ito["vermillion"],
    okabe_ito["black"],
    "#262B33",
    "#5B636E",
    "#00664A",
}
CARD = Look("#262B33", "")  # of code: dark, wherever it lies
CARD_INK, CARD_MID = "#F2F4F7", "#AEB6C2"  # of words on a card
UNLABELLED = Look("#C4C9D0", "")
PLAIN = Look("#B9C3CF", "")  # what all ranks have in common
COMMUNICATION = Look(okabe_ito["vermillion"], "")  # of whatever kind
# Two that lie beside each other in their order differ in lightness, or one of them has a hatch.
_BY_LETTER = {
    "F": Look(okabe_ito["sky blue"], ""),
    "B": Look(okabe_ito["orange"], "////"),
    "W": Look(okabe_ito["green"], ""),
}
_OTHERS = (
    Look(okabe_ito["purple"], "\\\\\\\\"),
    Look(okabe_ito["yellow"], ""),
    Look(GREY, ""),
    Look(okabe_ito["purple"], "xxxx"),
    Look(okabe_ito["yellow"], "++++"),
)
_SECOND = {
    "F": Look(okabe_ito["blue"], ""),
    "B": Look(okabe_ito["vermillion"], "////"),
    "W": Look("#00664A", ""),
}
FORWARD, BACKWARD = _BY_LETTER["F"], _BY_LETTER["B"]
SERIES = (*_BY_LETTER.values(), *_OTHERS)
_OF_MESSAGES = {
    "send": Look("#5B636E", ""),
    "recv": Look(GREY, ""),
    "all_reduce": Look(okabe_ito["vermillion"], ""),
    "all_gather": Look(okabe_ito["blue"], "\\\\\\\\"),
    "reduce_scatter": Look(okabe_ito["purple"], "////"),
    "all_to_all": Look(okabe_ito["green"], "xxxx"),
    "broadcast": Look(okabe_ito["yellow"], "...."),
    "gather": Look("#8FB8DE", "||||"),
    "scatter": Look("#E8B7D2", "||||"),
    "reduce": Look("#F0A878", "----"),
    "barrier": Look(FAINT, ""),
}
# All fills, of which a picture of pixels has its palette.
COLOURS = tuple(
    dict.fromkeys([*okabe_ito.values(), UNLABELLED.colour, GREY, *(o.colour for o in _OF_MESSAGES.values())])
)


def look_of_message(kind: str) -> Look:
    """What a kind of message has in every picture, whatever else is in it: "all_gather", and its list form too."""
    return next((look for name, look in _OF_MESSAGES.items() if kind.startswith(name)), COMMUNICATION)


def stem(label: str) -> str:
    """A span's label without its number: "F" of "F12", "F.1" of "F12.1", which is in a second chunk of layers."""
    before, dot, chunk = label.rpartition(".")
    if dot and chunk.isdecimal() and before[-1:].isdecimal():
        return f"{stem(before)}.{chunk}"
    return label.rstrip("0123456789").strip() or label


def looks_of_spans(labels: Iterable[str]) -> dict[str, Look]:
    """By stem: F, B and W first, by their first letter, then the rest in order of names, each in turn.

    Of several stems with the same first letter the shortest has its look, and its second chunk a darker one.
    """
    stems = sorted({stem(label) for label in labels if label}, key=lambda name: (len(name), name))
    looks = {}
    for letter, look in _BY_LETTER.items():
        for name in [name for name in stems if name[0].upper() == letter][:1]:
            looks |= {name: look} | {second: _SECOND[letter] for second in stems if second == f"{name}.1"}
    others = sorted(set(stems) - set(looks))
    return looks | {name: _OTHERS[number % len(_OTHERS)] for number, name in enumerate(others)}


def looks_in_turn(names: Iterable[str]) -> dict[str, Look]:
    """A look for each name, in their order."""
    return {name: SERIES[number % len(SERIES)] for number, name in enumerate(names)}
