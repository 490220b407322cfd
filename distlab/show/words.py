"""Words: sentences in lines of a text or of a picture."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

COLUMNS = 110  # of a text
IN_A_PICTURE = 86  # characters of a line that fits into one
MOST_NOTES = 3  # in a picture
_NO_BREAK = "\N{NO-BREAK SPACE}"


def wrap(*texts: str, width: int = COLUMNS) -> list[str]:
    """Each text in as many lines as it needs, no number apart from its unit."""
    together = (re.sub(r"(?<=\d) (?=\S)", _NO_BREAK, text) for text in texts)
    wrapped = (textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False) for text in together)
    return [line.replace(_NO_BREAK, " ") for lines in wrapped for line in lines]


def in_short(notes: Sequence[str]) -> list[str]:
    """What stands of some notes in a picture, which many readers see without its text: the first, and how many more."""
    more = [f"and {len(notes) - MOST_NOTES:,} notes more: print() shows them all"] if len(notes) > MOST_NOTES else []
    return [*(f"note: {note}" for note in notes[:MOST_NOTES]), *more]
