"""Colours that everyone can tell apart, each with a hatch, so that nothing is told by colour alone."""

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
INK, GREY, PALE, FAINT, WHITE = "#222222", "#A6A6A6", "#8A8A8A", "#D9D9D9", "#FFFFFF"
MID = "#7A7F87"  # of lines and words that stand on whatever the page has: as far from white as from black
CARD_INK, CARD_MID = "#F2F4F7", "#AEB6C2"  # of words on a card


class Look(NamedTuple):
    """How a box of one kind is filled."""

    colour: str
    hatch: str


CARD = Look("#262B33", "")  # of code: dark, wherever it lies
UNLABELLED = Look("#C4C9D0", "")
COMMUNICATION = Look(okabe_ito["vermillion"], "")
_BY_LETTER = {
    "F": Look(okabe_ito["sky blue"], ""),
    "B": Look(okabe_ito["orange"], "////"),
    "W": Look(okabe_ito["green"], "...."),
}
_OTHERS = (
    Look(okabe_ito["purple"], "\\\\\\\\"),
    Look(okabe_ito["yellow"], "||||"),
    Look(GREY, "----"),
    Look(okabe_ito["purple"], "xxxx"),
    Look(okabe_ito["yellow"], "++++"),
)
FORWARD, BACKWARD = _BY_LETTER["F"], _BY_LETTER["B"]
PLAIN = Look("#B9C3CF", "")  # what all ranks have in common
SERIES = (*_BY_LETTER.values(), *_OTHERS)


def stem(label: str) -> str:
    """A span's label without its number: "F" of "F12"."""
    return label.rstrip("0123456789").strip() or label


def looks_of_spans(labels: Iterable[str]) -> dict[str, Look]:
    """By stem: F, B and W first, by their first letter, then the rest in order of names, each in turn.

    Of several stems with the same first letter the shortest has its look.
    """
    stems = sorted({stem(label) for label in labels if label}, key=lambda name: (len(name), name))
    looks = {}
    for letter, look in _BY_LETTER.items():
        looks |= {name: look for name in [name for name in stems if name[0].upper() == letter][:1]}
    others = sorted(set(stems) - set(looks))
    return looks | {name: _OTHERS[number % len(_OTHERS)] for number, name in enumerate(others)}


def looks_in_turn(names: Iterable[str]) -> dict[str, Look]:
    """A look for each name, in their order."""
    return {name: SERIES[number % len(SERIES)] for number, name in enumerate(names)}
