"""Areas: the bytes that a rank holds, by kind, stacked over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from distlab.events import Memory, Span
from distlab.machine.units import quantity
from distlab.show.colours import FAINT, INK, PALE, WHITE, looks_in_turn
from distlab.show.picture import INCHES, new_figure

KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers", "other")
MOST_NAMES = 14  # spans whose names are written over the picture
_LEFT, _RIGHT, _TOP, _LINE, _HEIGHT, _BOTTOM = 0.9, 0.3, 0.35, 0.14, 2.2, 0.65  # inches


class Stretch(NamedTuple):
    """A span, and the numbers of the first and the last look in it; there is none if the last is before the first."""

    name: str
    first: int
    last: int


@dataclass(frozen=True)
class Looks:
    """What one rank noted, its spans, and the numbers of the looks after which nobody looked for a while."""

    events: Sequence[Memory]
    spans: tuple[Stretch, ...] = ()
    last_before_a_gap: frozenset[int] = frozenset()

    @classmethod
    def of(cls, history: Sequence) -> Looks:
        """Reads a rank's history; its spans come out with the outer before the inner."""
        events, spans, open_ones, gaps = [], [], [], set()
        for event in history:
            if type(event) is Memory:
                events.append(event)
                if not open_ones and spans:
                    gaps.add(len(events) - 1)
            elif type(event) is Span and event.name:
                open_ones.append(len(spans))
                spans.append(Stretch(event.name, len(events), -1))
            elif type(event) is Span and open_ones:
                place = open_ones.pop()
                spans[place] = spans[place]._replace(last=len(events))  # the look right after it belongs to it
        most = len(events) - 1  # of what never ended, and where the recording was cut before a look
        spans = [span._replace(last=min(span.last, most) if span.last >= 0 else most) for span in spans]
        return cls(events, tuple(spans), frozenset(gaps))

    def during(self, name: str) -> Looks:
        """The looks inside the spans called ``name``, with the other spans that lie inside these."""
        named = [span for span in self.spans if span.name == name]
        looks = sorted({look for span in named for look in range(span.first, span.last + 1)})
        place = {look: number for number, look in enumerate(looks)}
        inner = [s for s in self.spans if s.name != name and s.first <= s.last and {s.first, s.last} <= place.keys()]
        return Looks(
            [self.events[look] for look in looks],
            tuple(Stretch(span.name, place[span.first], place[span.last]) for span in inner),
            frozenset(place[look] for look in looks if look in self.last_before_a_gap or look + 1 not in place),
        )

    @property
    def is_timed(self) -> bool:
        """Whether they have times, which looks written by hand do not."""
        return any(event.time for event in self.events)


def panels(title: Sequence[str], number: int) -> tuple[list[Axes], Figure]:
    """Axes beside each other, under the lines of a title."""
    top = _TOP + _LINE * (len(title) - 1)
    height = top + _HEIGHT + _BOTTOM
    figure = new_figure(height)
    figure.text(_LEFT / INCHES, 1 - 0.08 / height, "\n".join(title), va="top", color=INK)
    width, gap = 1 - (_LEFT + _RIGHT) / INCHES, 0.02
    each = (width - gap * (number - 1)) / number
    places = [_LEFT / INCHES + place * (each + gap) for place in range(number)]
    return [figure.add_axes((x, _BOTTOM / height, each, _HEIGHT / height)) for x in places], figure


def draw(axes: Axes, looks: Looks, top: int, by_time: bool) -> None:
    """Each kind on top of the one before; what was noted holds until the next note, pale where nobody looked."""
    events = looks.events
    begin = events[0].time
    times = [event.time - begin for event in events] if by_time else list(range(len(events)))
    times.append(times[-1] + (times[-1] / len(times) or 1.0))
    below = [0] * len(times)
    for kind, style_of in looks_in_turn(KINDS).items():
        held = [getattr(event, kind) for event in (*events, events[-1])]
        tops = [lower + bytes for lower, bytes in zip(below, held)]
        if any(held):
            style = {"facecolor": style_of.colour, "hatch": style_of.hatch, "edgecolor": WHITE, "linewidth": 0.5}
            axes.fill_between(times, below, tops, step="post", label=kind, **style)
        below = tops
    axes.axhline(max(event.total for event in events), color=PALE, linewidth=0.8, linestyle=(0, (4, 3)))
    if by_time:
        _pale(axes, [(times[look], times[look + 1]) for look in sorted(looks.last_before_a_gap)])
    _name_spans(axes, looks.spans, times)
    axes.set_xlim(0, times[-1])
    axes.set_ylim(0, 1.12 * top or 1)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(lambda bytes, _: quantity(bytes, "B"))
    if by_time:
        axes.xaxis.set_major_formatter(lambda seconds, _: quantity(seconds, "s"))
    else:
        axes.set_xticks([])
    axes.tick_params(length=2, color=PALE, labelcolor=INK)
    axes.spines[["left", "bottom"]].set_color(FAINT)


def _name_spans(axes: Axes, spans: Sequence[Stretch], times: Sequence[float]) -> None:
    """Writes the names of the outermost spans where they are, if they are few."""
    outermost: list[Stretch] = []
    for span in spans:
        if not outermost or span.first >= outermost[-1].last:
            outermost.append(span)
    if len(outermost) > MOST_NAMES:
        return
    for span in outermost:
        start, end = times[span.first], times[min(span.last, len(times) - 1)]
        axes.axvline(start, color=PALE, linewidth=0.5)
        axes.text((start + end) / 2, 0.985, span.name, transform=axes.get_xaxis_transform(), ha="center", va="top")


def explain(axes: Axes, runs: Sequence[Looks], by_time: bool) -> None:
    """A legend of the kinds that occur, below the picture."""
    from matplotlib.patches import Patch

    styles = looks_in_turn(KINDS)
    there = [kind for kind in KINDS if any(getattr(event, kind) for looks in runs for event in looks.events)]
    patches = [Patch(facecolor=styles[k].colour, hatch=styles[k].hatch, edgecolor=WHITE, label=k) for k in there]
    if by_time and any(looks.last_before_a_gap for looks in runs):
        patches.append(Patch(facecolor=WHITE, edgecolor=PALE, label="pale: not looked at"))
    where = {"loc": "upper left", "bbox_to_anchor": (0, -0.28 / _HEIGHT), "borderaxespad": 0}
    axes.legend(handles=patches, ncols=len(KINDS) + 1, frameon=False, handlelength=1.8, **where)


def _pale(axes: Axes, stretches: Sequence[tuple[float, float]]) -> None:
    """Lays a veil over what was drawn there."""
    bars = [(start, end - start) for start, end in stretches]
    axes.broken_barh(bars, (0, 1), transform=axes.get_xaxis_transform(), facecolor=WHITE, alpha=0.7, zorder=1.5)
