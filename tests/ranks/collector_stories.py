"""What a learner may do to the garbage collector, and it to tensors: each story looks at awkward moments."""

from __future__ import annotations

import gc
import threading

import torch

from distlab.models import gpt
from tests.ranks.heap_stories import train_a_step


def cycles(look):
    for size in (1000, 2000):
        ring = [torch.ones(size)]
        ring.append(ring)
        look()
        del ring
        look()
    gc.collect()
    look()


def generations(look):
    old = [torch.ones(size) for size in (10, 20, 30)]
    for generation in (0, 1, 2):
        gc.collect(generation)
        old.append(torch.ones(100))
        look()
    del old[::2]
    look()


def a_collector_that_is_off(look):
    gc.disable()
    look()
    kept = [[torch.ones(10)] for _ in range(5000)]
    look()
    gc.enable()
    kept += [[torch.ones(10)] for _ in range(5000)]
    look()


def a_collector_that_never_rests(look):
    gc.set_threshold(1, 1, 1)
    model = gpt(width=16, num_layers=1)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        train_a_step(model, optimizer, look)


def addresses_used_again(look):
    for size in range(1, 200):
        tensors = [torch.ones(size) for _ in range(5)]
        if size % 3 == 0:
            look()
        del tensors[size % 5]
        if size % 7 == 0:
            gc.collect(size % 2)
            look()


def made_by_threads(look):
    kept = []

    def make():
        for size in range(1, 400):
            kept.append([torch.ones(size)])
            if size % 100 == 0:
                gc.collect(0)

    for _ in range(3):
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        look()
    kept.clear()
    look()


class Phoenix:
    def __init__(self, nest: list):
        self.nest, self.tensor, self.itself = nest, torch.ones(1000), self

    def __del__(self):
        self.nest.append(self.tensor)


def resurrected(look):
    for generation in (0, 1, 2):
        nest = []
        Phoenix(nest)
        for younger in range(generation):
            gc.collect(younger)
        look()
        gc.collect(generation)
        assert nest
        look()
        del nest[:]
        look()


class Undying(torch.Tensor):
    def __del__(self):
        graves.append(self)


graves = []


def a_tensor_that_comes_back(look):
    tensor = torch.ones(1000).as_subclass(Undying)
    look()
    del tensor
    look()
    graves.clear()
    look()


def callbacks_that_make_tensors(look):
    kept = []
    gc.callbacks.append(lambda phase, info: kept.append([torch.ones(10)]))
    for generation in (0, 1, 2):
        gc.collect(generation)
        look()
    gc.callbacks.clear()
    kept.append([torch.ones(20)])
    gc.collect()
    look()
    kept.append([torch.ones(30)])
    gc.collect()
    look()


STORIES = {
    story.__name__: story
    for story in (
        cycles,
        generations,
        a_collector_that_is_off,
        a_collector_that_never_rests,
        addresses_used_again,
        made_by_threads,
        resurrected,
        a_tensor_that_comes_back,
        callbacks_that_make_tensors,
    )
}
