"""Numbers in words."""

from __future__ import annotations

import math


def quantity(value: float, unit: str) -> str:
    """A number with its unit in at most four digits: ``quantity(3e-6, "s")`` is "3 µs"."""
    if not value or math.isinf(value):
        return f"{value:g} {unit}"
    power = min(max(math.floor(math.log10(abs(value)) / 3), -3), 5)
    shown = f"{value / 1000**power:.4g}"
    if float(shown) >= 1000 and power < 5:
        power, shown = power + 1, "1"
    return f"{float(shown):g} {['n', 'µ', 'm', '', 'k', 'M', 'G', 'T', 'P'][power + 3]}{unit}"
