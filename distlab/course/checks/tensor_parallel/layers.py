"""What the checks of the four cut layers share: a whole layer, how it is cut, and what a rank's part gives."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn

from distlab.course.checks.tensor_parallel.common import (
    GROUPS,
    Seat,
    all_say,
    budget,
    drawn,
    own_group,
    own_seat,
    seats,
    there_and_back,
    wanted,
)
from distlab.course.kit.case import Job
from distlab.course.kit.driving import call
from distlab.course.kit.fixtures import Tensors, gradients_of, weights_of
from distlab.course.kit.outcome import Outcome

NO_PARAMETER = (
    "A plain tensor as an attribute is no parameter, and no optimizer would find it: wrap it in nn.Parameter."
)
KEEPS_WHOLE = (
    "The whole layer stays in memory on this rank: a slice shares the memory of what it was cut from, and so does a "
    "whole layer that is kept. Index with the list of {what}, or clone the slice."
)
FRESH = (
    "These are new random numbers, as if the model were made anew: this rank's part of whole.weight is asked for, so "
    "that all parts together are the whole layer."
)

NEXT = "the random number drawn after it"
Cut = dict[str, tuple[int, list[int]]]  # by name of a parameter, or x or y: the axis, and this rank's numbers on it


@dataclass(frozen=True)
class Layer:
    """A layer that is cut.

    ``make(job)`` builds the whole one, ``cut(job, seat)`` says what of it is a rank's, ``shapes(job)`` are those of x
    and y, whole; ``more(job, seat)`` comes between the whole layer and the group where a part is made.
    """

    name: str
    make: Callable[[Job], nn.Module]
    cut: Callable[[Job, Seat], Cut]
    shapes: Callable[[Job], tuple[tuple[int, ...], tuple[int, ...]]]
    more: Callable[[Job, Seat], tuple] = lambda job, seat: ()

    def drive(self, lab, job: Job) -> dict:
        """On a rank: its part's parameters and memory; if those are of the right shapes everywhere, all the rest."""
        seat = own_seat(job)
        whole, cut = self.whole(job, seat.group), self.cut(job, seat)
        part = call(getattr(lab, self.name), whole, *self.more(job, seat), own_group(job)).train(whole.training)
        fits = {n: p.shape for n, p in part.named_parameters()} == _shapes(_taken(weights_of(whole), cut))
        found, layer = {"the parameters": weights_of(part), **_kept(part, whole)}, weakref.ref(whole)
        del whole
        gc.collect()
        found[_THERE] = layer() is not None
        if not all_say(fits):
            return found
        data = _taken(dict(zip("xy", self.data(job, seat.group))), cut)
        part(2 * data["x"][:1])  # or what is kept from a first call would do no harm here
        torch.manual_seed(job.seed)
        found |= there_and_back(part.forward, (data["x"],), data["y"])
        return found | {"the parameters' gradients": gradients_of(part), NEXT: torch.rand(()).item()}

    def expect(self, job: Job, came: list[dict]) -> list[dict]:
        """What the whole layer gives, cut for each rank; of what came only."""
        want = []
        for seat, of_rank in zip(seats(job), came):
            weights, results, gradients, number = _alone(self, job, seat.group)
            cut = self.cut(job, seat)
            found = {"the parameters": _taken(weights, cut), **_KEPT_NOTHING}
            found |= wanted(*_taken(results, cut).values())
            found |= {"the parameters' gradients": _taken(gradients, cut), NEXT: number}
            want.append({name: value for name, value in found.items() if name in of_rank})
        return want

    def judge(self, job: Job, outcome: Outcome, forward: int = 2, backward: int = 2):
        """An all-reduce of y forward, and one of the gradient of x backward, or what is sent no more than those."""
        if "y" in outcome.values[0]:
            x, y = (torch.Size(shape).numel() for shape in self.shapes(job))
            yield from budget(job, outcome, forward * y, backward * x)

    def whole(self, job: Job, group: int) -> nn.Module:
        """Another one for each group, all parameters random; biases are far from 0."""
        whole = self.make(job).to(job.dtype)
        with torch.no_grad():
            for number, parameter in enumerate(whole.parameters()):
                numbers = drawn(job, group, 10 + number, *parameter.shape) / parameter.shape[-1] ** 0.5
                parameter.copy_(numbers + (parameter.dim() < 2))
        return whole

    def data(self, job: Job, group: int) -> tuple[torch.Tensor, torch.Tensor]:
        """x, and the gradient of y; this is 0 for outputs that no rank of the group takes."""
        x, grad_y = (drawn(job, group, which, *shape) for which, shape in enumerate(self.shapes(job)))
        cuts = [self.cut(job, seat).get("y") for seat in seats(job) if seat.group == group]
        taken = {number for cut in cuts if cut for number in cut[1]} or set(range(grad_y.shape[-1]))
        return x, grad_y * torch.tensor([number in taken for number in range(grad_y.shape[-1])])


@lru_cache(maxsize=4)
def _alone(layer: Layer, job: Job, group: int) -> tuple[Tensors, Tensors, Tensors, float]:
    """What a whole layer holds and gives: weights, y and the gradient of x, gradients, the next random number."""
    whole = layer.whole(job, group)
    x, grad_y = layer.data(job, group)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.seed)
        y = whole(x.requires_grad_())
        number = torch.rand(()).item()
    y.backward(grad_y)
    return weights_of(whole), {"y": y.detach(), "x": x.grad}, gradients_of(whole), number


def _taken(tensors: Tensors, cut: Cut) -> Tensors:
    """A rank's part of each tensor; all of those that are not cut."""
    return {
        name: tensor.index_select(cut[name][0], torch.tensor(cut[name][1])) if name in cut else tensor
        for name, tensor in tensors.items()
    }


def _shapes(tensors: Tensors) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


_THERE = "the whole layer is still in memory"
KEPT_OR_WORLD = {_THERE: "keeps-whole", **GROUPS}
_KEPT_NOTHING = {"memory shared with the whole layer": [], "more memory than its parameters need": False, _THERE: False}


def _kept(part: nn.Module, whole: nn.Module) -> dict:
    """Which of the whole layer's parameters a part keeps alive, and whether it holds more than its own."""
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in _tensors_in(part)}
    shared = [name for name, p in whole.named_parameters() if p.untyped_storage().data_ptr() in held]
    needed = sum(parameter.nbytes for parameter in part.parameters())
    return dict(zip(_KEPT_NOTHING, (shared, sum(held.values()) > needed)))


def _tensors_in(value: object) -> Iterator[torch.Tensor]:
    """The tensors of floats that a value keeps alive: a tensor, a module, or lists, tuples and dicts of them."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, nn.Module):
        for part in value.modules():
            yield from _tensors_in(vars(part))
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(one)
