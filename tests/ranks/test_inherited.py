"""What a rank takes over from the notebook's process, and what is its own."""

from __future__ import annotations

import argparse
import functools
import logging
import re
import sys
import warnings

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist

from distlab import RankError, run
from distlab.ranks.processes import inherited

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    """Gives this process its settings back."""
    before = inherited.read()
    monkeypatch.setattr(logging.root, "handlers", list(logging.root.handlers))
    with warnings.catch_warnings():
        yield
    inherited.apply(before)


@pytest.fixture(params=["fork", "spawn"])
def start(request):
    return request.param


def train():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    return parser.prog, parser.parse_args().lr, sys.argv


def test_a_function_with_a_command_line_finds_an_empty_one_of_its_own_name(start):
    assert run(train, start=start).values == [("train", 0.1, ["train"])] * 2


class Trainer:
    def __call__(self):
        return sys.argv


@pytest.mark.parametrize(
    ("fn", "name"),
    [(lambda: sys.argv, "<lambda>"), (Trainer(), "Trainer"), (functools.partial(train), "partial")],
    ids=["lambda", "object", "partial"],
)
def test_what_has_no_name_is_called_by_its_kind(fn, name):
    assert name in str(run(fn, ranks=1).values)


def test_an_argument_that_is_missing_names_the_function(capsys):
    def learn():
        parser = argparse.ArgumentParser()
        parser.add_argument("--lr", required=True)
        parser.parse_args()

    with pytest.raises(RankError, match=r"rank \d called sys.exit\(2\)"):
        run(learn)
    assert "learn: error: the following arguments are required: --lr" in capsys.readouterr().out


def ignore_future_warnings():
    warnings.filterwarnings("ignore", "old", FutureWarning)


def log_with_times():
    logging.root.handlers.clear()
    logging.basicConfig(format="%(levelname)s|%(message)s", level=logging.DEBUG)


CHANGES = {
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "grad mode": lambda: torch.set_grad_enabled(False),
    "float32 matmul precision": lambda: torch.set_float32_matmul_precision("medium"),
    "float32 precision by backend": lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "cuDNN": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "anomaly detection": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    "printing of torch": lambda: torch.set_printoptions(precision=2, sci_mode=False, linewidth=200),
    "printing of numpy": lambda: np.set_printoptions(precision=3, suppress=True, formatter={"int": str}),
    "floating-point errors of numpy": lambda: np.seterr(divide="raise"),
    "root log level": lambda: logging.root.setLevel(logging.INFO),
    "root log format": log_with_times,
    "ignored warnings": ignore_future_warnings,
    "recursion limit": lambda: sys.setrecursionlimit(2345),
}


def test_every_setting_of_the_table_is_tried_here():
    assert CHANGES.keys() == inherited._SETTINGS.keys()


@pytest.mark.parametrize("name", CHANGES)
def test_what_the_notebook_has_set_holds_on_the_ranks(name):
    before = inherited.read()[name]
    CHANGES[name]()
    here = inherited.read()[name]
    assert here != before
    found = run(lambda: inherited.read()[name], device="cpu").values
    assert all(contains(there, here) for there in found)


def contains(there, here) -> bool:
    """Whether a rank has what was found here: the same, or of a list all."""
    return all(item in there for item in here) if isinstance(here, list) else there == here


def test_all_of_it_at_once_on_ranks_that_are_fresh_pythons():
    for name, change in CHANGES.items():
        if name != "float32 precision by backend":
            change()
    here = inherited.read()
    for there in run(inherited.read, start="spawn", device="cpu").values:
        assert [name for name in here if not contains(there[name], here[name])] == []


def test_the_learner_sees_it_in_what_is_computed_logged_printed_and_warned(capsys):
    def work():
        x = torch.ones(2, requires_grad=True)
        logging.getLogger("mine").info("from %s", dist.get_rank())
        print(torch.tensor([1 / 3]))
        warnings.warn("old ways", FutureWarning, stacklevel=1)
        return x.dtype, (x * 2).requires_grad

    for name in ("default dtype", "grad mode", "root log format", "printing of torch", "ignored warnings"):
        CHANGES[name]()
    assert run(work).values == [(torch.float64, False)] * 2
    said = capsys.readouterr().out
    assert "INFO|from 1" in said and "tensor([0.33])" in said and "old ways" not in said


def test_a_run_inside_no_grad_computes_without_gradients():
    with torch.no_grad():
        assert run(torch.is_grad_enabled).values == [False, False]
    assert run(torch.is_grad_enabled).values == [True, True]


def test_precisions_set_by_torchs_newer_names_reach_the_ranks_too():
    before = torch.backends.fp32_precision
    torch.backends.fp32_precision = "ieee"
    try:
        assert run(lambda: torch.backends.fp32_precision, ranks=1).values == ["ieee"]
    finally:
        torch.backends.fp32_precision = before


def test_a_warning_of_a_class_that_only_the_notebook_has_is_left_alone():
    class Mine(UserWarning):
        pass

    warnings.simplefilter("ignore", Mine)
    assert run(dist.get_rank).values == [0, 1]


def test_filters_keep_their_patterns():
    warnings.filterwarnings("ignore", message="a+b", module="c|d")
    (found,) = run(lambda: [f for f in warnings.filters if f[1] and f[1].pattern == "a+b"], ranks=1).values
    assert found == [("ignore", re.compile("a+b", re.I), Warning, re.compile("c|d"), 0)]
