"""The table of what was measured: groups of rows, each row compared with the first of its group."""

import contextlib
import math
import os
import platform
import traceback
from dataclasses import dataclass, field
from importlib.metadata import version

WIDTHS = (52, 10, 10, 12)


@dataclass(frozen=True)
class Row:
    """Seconds that something took, as the median of repeats; `first` is the first call, where it differs.

    Where it failed, `failure` says how, and there are no seconds.
    """

    name: str
    seconds: float = math.nan
    first: float | None = None
    failure: str = ""


@dataclass(frozen=True)
class Group:
    """Rows to compare with one another, the first being what the others are measured by."""

    title: str
    rows: list[Row] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def failed(self):
        """Whether something of it is missing."""
        return any(row.failure for row in self.rows)

    def ratio(self, name, to=None):
        """Returns how many times as long as `to`, or as the first row, the row of this name took; NaN if one failed."""
        seconds = {row.name: row.seconds for row in self.rows}
        return seconds[name] / seconds[to or self.rows[0].name]

    @contextlib.contextmanager
    def attempt(self, *names):
        """Adds rows of these names that say how the block failed, if it does, and goes on."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.rows.extend(Row(name, failure=in_a_line(error)) for name in names)


def table(groups):
    """Returns the groups as one text."""
    return "\n".join([heading(), *map(part, groups)])


def heading():
    """Returns what stands above all groups."""
    columns = line("seconds (median of repeats)", "median", "ratio", "first call")
    return "\n".join([machine(), "", columns, "-" * len(columns)])


def part(group):
    """Returns what the table says of one group."""
    return "\n".join(["", *lines(group)])


def lines(group):
    yield group.title
    for row in group.rows:
        if row.failure:
            yield f"{line('  ' + row.name)}failed: {row.failure}"
            continue
        first = "" if row.first is None else f"{row.first:.3f}"
        yield line("  " + row.name, f"{row.seconds:.3f}", ratio(group.ratio(row.name)), first)
    yield from (f"  -> {remark}" for remark in group.remarks)


def ratio(number):
    """Returns a ratio in words; there is none where one of the two failed."""
    return "" if math.isnan(number) else f"{number:.2f}"


def in_a_line(error):
    """Returns what an error says in one line: the first, or where that announces others (a traceback, say) the last."""
    said = f"{type(error).__name__}: {error}".strip().splitlines()
    return said[-1 if said[0].endswith(":") else 0].strip()


def line(name, *numbers):
    cells = zip(numbers, WIDTHS[1:])
    return name.ljust(WIDTHS[0]) + "".join(number.rjust(width) for number, width in cells)


def machine():
    """Returns in one line what the numbers below it hold for."""
    python, torch = platform.python_version(), version("torch")
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {python}, torch {torch}"
