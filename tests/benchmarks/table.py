"""The table of what was measured: groups of rows, each row compared with the first of its group."""

import os
import platform
from dataclasses import dataclass, field
from importlib.metadata import version

WIDTHS = (52, 10, 10, 12)


@dataclass(frozen=True)
class Row:
    """Seconds that something took, as the median of repeats; `first` is the first call, where it differs."""

    name: str
    seconds: float
    first: float | None = None


@dataclass(frozen=True)
class Group:
    """Rows to compare with one another, the first being what the others are measured by."""

    title: str
    rows: list[Row] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def ratio(self, name, to=None):
        """Returns how many times as long as `to`, or as the first row, the row of this name took."""
        seconds = {row.name: row.seconds for row in self.rows}
        return seconds[name] / seconds[to or self.rows[0].name]


def table(groups):
    """Returns the groups as one text."""
    heading = line("seconds (median of repeats)", "median", "ratio", "first call")
    body = [text for group in groups for text in ("", *lines(group))]
    return "\n".join([machine(), "", heading, "-" * len(heading), *body[1:]])


def lines(group):
    yield group.title
    for row in group.rows:
        first = "" if row.first is None else f"{row.first:.3f}"
        yield line("  " + row.name, f"{row.seconds:.3f}", f"{group.ratio(row.name):.2f}", first)
    yield from (f"  -> {remark}" for remark in group.remarks)


def line(name, *numbers):
    cells = zip(numbers, WIDTHS[1:], strict=True)
    return name.ljust(WIDTHS[0]) + "".join(number.rjust(width) for number, width in cells)


def machine():
    """Returns in one line what the numbers below it hold for."""
    python, torch = platform.python_version(), version("torch")
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {python}, torch {torch}"
