"""What is known of the heap is what a walk over all of it finds, at awkward moments too."""

from __future__ import annotations

import gc
import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn

from distlab.events import Memory
from distlab.models import gpt
from distlab.ranks.launch import Settings, launch
from distlab.ranks.limits import WorkLimit
from distlab.ranks.watching import memory, spans
from distlab.ranks.watching.spans import span
from tests.ranks import collector_stories, full_walk, heap_stories, test_memory
from tests.ranks.heap_stories import train_a_step
from tests.ranks.test_memory import looks, settled

for module in (sys.modules[__name__], collector_stories, full_walk, heap_stories, test_memory):
    cloudpickle.register_pickle_by_value(module)

STORIES = heap_stories.STORIES | collector_stories.STORIES


def compared(story, ranks: int = 1) -> list[tuple[Memory, Memory]]:
    """What rank 0 knows and what it finds by a walk, at each moment at which ``story(look)`` looks."""

    def tell():
        pairs = []
        heap = spans._logs[0].heap
        ways = [lambda: memory.held(0.0, heap)[0]._replace(allocator=0), full_walk.held]

        def look():
            found = [way() for way in ways]
            pairs.append(tuple(map(tuple, found if len(pairs) % 2 == 0 else found[::-1])))
            ways.reverse()  # neither is always the first to look

        story(look)
        return pairs

    pairs = launch(tell, (), Settings(ranks), WorkLimit(20), quiet=True).values[0]
    return [(Memory(*known), Memory(*found)) for known, found in pairs]


@pytest.mark.parametrize("story", STORIES, ids=str)
def test_what_is_known_is_what_a_walk_finds(story):
    for known, found in compared(STORIES[story]):
        assert known == found


def test_the_same_with_buckets_of_ddp_and_what_was_sent():
    def train(look):
        model = nn.parallel.DistributedDataParallel(gpt(width=16, num_layers=1))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            train_a_step(model, optimizer, look)
        sent = torch.ones(100)
        dist.all_reduce(sent)
        look()

    for known, found in compared(train, ranks=2):
        assert known == found


def test_what_a_learner_freezes_is_still_seen():
    def freeze():
        kept = [torch.ones(10)]
        gc.freeze()
        kept.append(torch.ones(20))
        gc.freeze()
        gc.unfreeze()
        gc.freeze()
        with span("end"):
            pass
        return kept

    assert looks(freeze, ranks=1)[-1].other == 4 * 30


def test_a_learners_mode_does_not_see_that_somebody_looks():
    class Note(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            called.append(func)
            return func(*args, **(kwargs or {}))

    called = []

    def look_inside():
        kept = torch.ones(10, requires_grad=True).exp()
        with Note(), span("look"):
            pass
        return len(kept), len(called)

    result = launch(look_inside, (), Settings(1), WorkLimit(10), quiet=True)
    assert result.values == [(10, 0)] and result.recording.events(Memory, 0)[0].activations == 40


@settled
def test_ranks_that_were_forked_and_spawned_hold_the_same():
    def train():
        model = gpt(width=16, num_layers=1)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            with span("step"):
                model(torch.ones(2, 8, dtype=torch.int64)).square().mean().backward()
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
                optimizer.step()

    def looks_of(start):
        settings = Settings(2, start=start)
        events = launch(train, (), settings, WorkLimit(60), quiet=True).recording.events(Memory, 0)
        return [memory._replace(time=0.0) for memory in events]

    assert looks_of("fork") == looks_of("spawn")


def test_a_heap_of_modules_does_not_use_up_the_budget():
    def look_often():
        import matplotlib.pyplot  # noqa: F401 - some 100,000 objects

        with span("step"):
            for _ in range(300):
                dist.barrier()

    recording = launch(look_often, (), Settings(1), WorkLimit(60), quiet=True).recording
    assert not recording.notes
