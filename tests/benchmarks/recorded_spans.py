"""Recording in spans: CPU seconds of training steps that are recorded, against the same steps that are not.

Memory is looked at where messages are issued and done inside a span: that is what a full recording costs most for.
"""

import statistics
import sys
import time
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist

from distlab import run, span
from distlab.course.notebook import Notebook
from distlab.models import gpt
from tests.benchmarks.table import Group, Row
from tests.benchmarks.timing import ROOT

NOTEBOOK = ROOT / "solutions" / "08_tensor_parallel.ipynb"
STEPS, ROWS, LENGTH, LAYERS, WIDTH, HEADS = 10, 8, 32, 2, 64, 8
WAYS = {"not recorded": False, "not recorded, again": False, 'record="messages"': "messages", "record=True": True}


@dataclass(frozen=True)
class Load:
    """Steps to record on some ranks: ``aims`` are the most times the CPU seconds that each way may take."""

    title: str
    train: object
    ranks: int
    aims: dict[str, float]
    turns: int = 9
    start: str = "auto"

    def measure(self):
        """Takes each way in turn; returns a Group of CPU seconds a step, all ranks and this process together."""
        ways = {name: Way(WAYS[name]) for name in ("not recorded", "not recorded, again", *self.aims)}
        for turn in range(self.turns):
            print(f"\r  turn {turn + 1} of {self.turns}", end="", file=sys.stderr, flush=True)
            for way in ways.values():
                way.take_turn(self)
        print(file=sys.stderr)
        plain, again, *_ = ways.values()
        remarks = [f"{name}: {ways[name].against(plain):.2f} × (aim: at most {aim})" for name, aim in self.aims.items()]
        noise = f"turn by turn; {again.against(plain):.2f} × where neither is recorded"
        rows = [Row(name, statistics.median(way.seconds)) for name, way in ways.items()]
        notes = {note for way in ways.values() for note in way.notes}
        return Group(self.title, rows, [*remarks, noise, *notes])


@dataclass
class Way:
    """A way to record, its CPU seconds a step, turn by turn, and what its recordings had to say."""

    record: bool | str
    seconds: list[float] = field(default_factory=list)
    notes: set[str] = field(default_factory=set)

    def take_turn(self, load):
        start = time.process_time()
        options = {"device": "cpu", "timeout": 300, "record": self.record, "start": load.start}
        result = run(load.train, ranks=load.ranks, **options)
        self.seconds.append((time.process_time() - start) / STEPS + sum(result.values))
        self.notes.update(result.recording.notes if result.recording else ())

    def against(self, plain):
        return statistics.median(mine / its for mine, its in zip(self.seconds, plain.seconds, strict=True))


def measure():
    """Returns a Group for each load."""
    parallel = partial(train, partial(cut, Notebook(NOTEBOOK).definitions()["make_parallel"]))
    summing = partial(train, sum_gradients_up)
    most, full = {'record="messages"': 1.06, "record=True": 1.6}, "record=True"
    title = "a GPT, {}, {} ranks, spans of step, F, B, U; CPU seconds a step".format
    loads = [
        Load(title("lab 08's tensor-parallel", 4), parallel, 4, most),
        Load(title("lab 08's tensor-parallel", 8), parallel, 8, most),
        Load(title("the same with a large heap", 4), partial(after_imports, parallel), 4, {full: 1.8}, turns=3),
        Load(title("the same spawned", 4), parallel, 4, {full: 2}, turns=3, start="spawn"),
        Load(title("an all-reduce a parameter", 4), summing, 4, {full: 1.4}),
    ]
    return [load.measure() for load in loads]


def train(prepare):
    """Returns this rank's CPU seconds a step after the first; ``prepare(model)`` returns what follows a backward."""
    ids_BT = torch.randint(0, 96, (ROWS, LENGTH))
    model = gpt(width=WIDTH, num_layers=LAYERS, num_heads=HEADS)
    share = prepare(model)
    optimizer = torch.optim.Adam(model.parameters())
    step(model, ids_BT, optimizer, share)
    start = time.process_time()
    for _ in range(STEPS):
        step(model, ids_BT, optimizer, share)
    return (time.process_time() - start) / STEPS


def step(model, ids_BT, optimizer, share):
    with span("step"):
        optimizer.zero_grad()
        with span("F"):
            loss = model(ids_BT).square().mean()
        with span("B"):
            loss.backward()
            share(model)
        with span("U"):
            optimizer.step()


def cut(make_parallel, model):
    """Cuts a GPT by the lab's classes, whose passes share what is to be shared."""
    make_parallel(model)
    return lambda model: None


def sum_gradients_up(model):
    return all_reduce_each


def all_reduce_each(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def after_imports(train):
    """Trains where this rank itself has imported much, which nothing has frozen."""
    import matplotlib.pyplot  # noqa: F401
    import torch._inductor.compile_fx  # noqa: F401

    return train()
