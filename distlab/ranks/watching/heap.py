"""The objects of some classes on Python's heap, known without a walk over it.

A walk takes time for every object of every module that a rank has imported. Weak references take none: an object begins
in the garbage collector's youngest generation, and leaves it only by a collection, which says when it starts. So it is
enough to look through the youngest generation then, and whenever somebody asks.

Where that could have missed an object, what has grown older is looked through too: a finalizer may bring back an object
whose weak references the collector has cleared; callbacks that are called after ours, and other threads, may make some.
"""

from __future__ import annotations

import functools
import gc
import sys
import weakref

from distlab.ranks.watching.uncompiled import uncompiled, with_uncompiled_methods


@with_uncompiled_methods
class Heap:
    """Knows the objects of some classes, and of those derived from them, that are made from now on.

    What is there already is hidden from the collector (``gc.freeze``), on ranks that were forked and on those that were
    spawned: what modules hold is not what a rank holds.
    """

    def __init__(self, *bases: type):
        self._known: dict[type, dict[int, weakref.ref]] = {base: {} for base in bases}
        gc.freeze()
        gc.freeze = self._seeing(gc.freeze)
        self._threads = set(sys._current_frames())
        self._num_before, self._is_in_doubt = 0, False
        self.num_seen = 0
        gc.callbacks.append(self._follow)

    def living(self) -> list[list]:
        """For each of the classes its objects that are alive; adds to ``num_seen`` how many objects were looked at."""
        if self._follow in gc.callbacks:
            self._see(gc.get_objects(0))
        else:  # somebody has taken it out
            gc.callbacks.append(self._follow)
            self._see(gc.get_objects())
        return [_alive(known) for known in self._known.values()]

    def _follow(self, phase: str, info: dict) -> None:
        """Is called by the collector before and after each collection."""
        if phase == "start":
            self._see(gc.get_objects(0))
            self._num_before = self._num_alive()
            self._is_in_doubt = gc.callbacks[-1] != self._follow or not sys._current_frames().keys() <= self._threads
        elif self._is_in_doubt or self._num_alive() < self._num_before:
            self._see(_older_than(info["generation"]))

    def _seeing(self, freeze):
        """``gc.freeze``, which hides objects from the collector, as a function that looks at them first."""

        @functools.wraps(freeze)
        def see_and_freeze() -> None:
            self._see(gc.get_objects(0))
            freeze()

        return uncompiled(see_and_freeze)

    def _see(self, objects: list) -> None:
        """Remembers which of these objects are of the classes. A collection may start anywhere in here."""
        self.num_seen += len(objects)
        kinds = set(map(type, objects))
        for base, known in self._known.items():
            if wanted := {kind for kind in kinds if issubclass(kind, base)}:
                refs = [weakref.ref(obj) for obj in objects if type(obj) in wanted]
                known.update(zip(map(id, refs), refs))  # an object has one such reference, as long as it lives

    def _num_alive(self) -> int:
        return sum(len(_alive(known)) for known in self._known.values())


def _alive(known: dict[int, weakref.ref]) -> list:
    """The objects that still are; forgets the others. The dictionary is copied first: a collection may add to it."""
    refs = [*known.values()]
    alive = [obj for ref in refs if (obj := ref()) is not None]
    if len(alive) < len(refs):
        for ref in refs:
            if ref() is None:
                known.pop(id(ref), None)
    return alive


def _older_than(generation: int) -> list:
    """The objects that a collection of a generation may have left."""
    return gc.get_objects(min(generation + 1, 2)) if sys.version_info < (3, 14) else gc.get_objects()
