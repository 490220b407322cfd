"""What is said of a wrong answer that no misconception of its exercise explains, and the digits of a difference."""

from __future__ import annotations

import linecache

import pytest
import torch

from distlab.course.check import examine
from distlab.course.compare import difference
from distlab.course.suspects import suspects


def define(source: str, name: str):
    """Defines a function or class as a cell does: with lines that can be looked up."""
    filename = f"<suspect {abs(hash(source))}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace = {"__name__": "__main__"}
    exec(compile(source, filename, "exec"), namespace)
    return namespace[name]


def of_function(line: str) -> list[str]:
    return suspects(define(f"def f(self, x, g=None):\n    {line}\n", "f"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("y = dist.all_reduce(x)", "`y = dist.all_reduce(x)`: dist.all_reduce works in place and returns None"),
        ("return torch.distributed.broadcast(x, 0)", "dist.broadcast works in place and returns None"),
        ("dist.all_reduce(x.clone())", "`dist.all_reduce(x.clone())` works on a copy"),
        ("dist.broadcast(x.detach().clone(), src=0)", "works on a copy"),
        ("dist.reduce(x, dst=0)", "dist.reduce leaves the result on one rank"),
        ("self.weight = torch.empty(3, requires_grad=True)", "`self.weight` is a plain tensor"),
        ("if x.dim() > 1:\n        pass", "`x.dim() > 1` leaves out vectors"),
        ("if x.ndim >= 2:\n        pass", "leaves out vectors"),
    ],
)
def test_a_suspicious_line_is_shown_with_what_it_does(line, words):
    (sentence,) = of_function(line)
    assert words in sentence


@pytest.mark.parametrize(
    "line",
    [
        "work = dist.all_reduce(x, async_op=True)",
        "dist.all_reduce(x)",
        "y = x.clone()",
        "y = other.all_reduce(x)",
        "self.weight = torch.nn.Parameter(torch.empty(3))",
        "self.mask = torch.ones(3)",
        "y = x.dim() - 1",
    ],
)
def test_innocent_lines_are_not_suspected(line):
    assert of_function(line) == []


def test_code_that_nobody_can_read_is_not_suspected():
    assert suspects(print) == suspects(eval("lambda: 1")) == []


MEAN = """
import torch
import torch.distributed as dist
def average_gradients(model, num_rows):
    for parameter in model.parameters():
        if parameter.grad is not None and parameter.dim() > 1:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
"""


def test_a_check_that_knows_no_better_names_the_suspect_and_one_that_does_names_its_own():
    unknown = examine(define(MEAN, "average_gradients"))
    assert unknown.mark == "✗" and "`parameter.dim() > 1` leaves out vectors" in unknown.text
    both = "\n".join(line for line in MEAN.splitlines() if "/= dist" not in line).replace(
        " and parameter.dim() > 1", ""
    )
    known = examine(define(f"{both}\n            y = parameter.dim() > 1\n", "average_gradients"))
    assert "summed over 3 ranks, never divided" in known.text and "leaves out vectors" not in known.text


@pytest.mark.parametrize(
    ("want", "got", "says"),
    [
        (37.0, 38.0, "expected 37, got 38"),
        (1.00000001, 1.0, "expected 1.00000001, got 1, the same rounded to float32"),
        (0.1, 0.1000000015, "expected 0.1, got 0.100000002"),
        (1 / 3, torch.tensor(1 / 3).item(), "got 0.33333334, the same rounded to float32"),
        (1e300, 2.0, "expected 1e+300, got 2"),
    ],
)
def test_a_difference_is_shown_with_the_digits_that_differ(want, got, says):
    assert says in difference(got, want)
    tensors = torch.tensor([got], dtype=torch.float64), torch.tensor([want], dtype=torch.float64)
    assert says in difference(*tensors)
