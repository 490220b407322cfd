"""What a run leaves behind: a Run when every rank finished, a RankError when one did not."""

from __future__ import annotations

from dataclasses import dataclass, field

from distlab.ranks.output import name_ranks
from distlab.ranks.shipping.packing import unpack_value
from distlab.ranks.verdicts.failures import Failure, one_line_each, report
from distlab.recording import Recording

_VALUE_WIDTH = 100
NONE_HAD_BEGUN = (
    "Interrupted before the function began on any rank: they were still being started (a notebook's first run waits "
    "for torch to be imported)."
)


@dataclass(frozen=True)
class Run:
    """A finished run.

    ``values[r]`` is what rank r returned, its tensors detached and copied to the CPU; ``output[r]`` is what it printed.
    ``recording`` is what happened on every rank (None with ``record=False``).
    """

    name: str
    device: str
    values: list
    output: list[str] = field(repr=False)
    recording: Recording | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        where = "NCCL on GPUs" if self.device == "cuda" else "gloo on CPU"
        count = f"{len(self.values)} rank{'s' if len(self.values) > 1 else ''}"
        lines = [f"{self.name} on {count} ({where})"]
        return "\n".join(lines + [f"rank {rank}: {_short(value)}" for rank, value in enumerate(self.values)])


def _short(value) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= _VALUE_WIDTH else f"{text[: _VALUE_WIDTH - 2]} …"


def rebuilt(packed: dict[int, bytes]) -> tuple[list, dict[int, Failure]]:
    """What the ranks returned, by rank, and for each rank whose value can't be rebuilt here why not."""
    values, failures = [], {}
    for rank in sorted(packed):
        try:
            values.append(unpack_value(packed[rank]))
        except TypeError as error:
            failures[rank] = Failure("raised", "TypeError", str(error))
    return values, failures


class RankError(RuntimeError):
    """At least one rank did not finish.

    ``verdict`` says why in a sentence, ``rank`` is the one to look at first, ``original_type`` the name of the
    exception it raised ("" if none), ``failures`` maps every rank that did not finish to what happened, ``output[r]``
    is what rank r printed.
    """

    def __init__(self, verdict: str, failures: dict[int, Failure], rank: int, output: list[str]):
        super().__init__(f"{verdict}\n\n{report(failures, rank)}")
        self.verdict = verdict
        self.failures = failures
        self.rank = rank
        self.original_type = failures[rank].type
        self.output = output

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the report, without the lines of the runner."""
        return [f"RankError: {self}"]


def describe_interrupt(failures: dict[int, Failure], returned: list[int]) -> str:
    """Says where every rank stood when the learner interrupted the cell."""
    lines = one_line_each(failures) + ([f"{name_ranks(returned)} had returned"] if returned else [])
    return "\n".join(["Interrupted. When you stopped it:", *lines])
