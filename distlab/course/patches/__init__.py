"""Mistakes as changes of the solutions, one module a lab: a wrong answer is compared with what each of them gives.

They quote the solutions, so a class's copy without those comes without these too.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass


@dataclass(frozen=True)
class Patch:
    """A solution with ``old`` replaced by ``new`` makes the mistake ``id``.

    ``fails`` says that ranks then raise or wait for ever, in some case at least. As text it is what their report then
    says, and the patch is tried on those that say so only: where a dozen mistakes fail, that saves their runs.
    """

    id: str
    old: str
    new: str
    fails: bool | str = False

    def applied(self, solution: str) -> str:
        """The text of the solution with the mistake in it."""
        if solution.count(self.old) != 1:
            raise ValueError(f"{self.old!r} must stand once in the solution:\n{solution}")
        return solution.replace(self.old, self.new)


def patches_of(lab: str, exercise: str) -> tuple[Patch, ...]:
    """The patches of an exercise of a lab ("02_data_parallel"); () in a copy of the course that comes without them."""
    name = f"{__name__}.{lab.partition('_')[2]}"
    return importlib.import_module(name).PATCHES.get(exercise, ()) if importlib.util.find_spec(name) else ()
