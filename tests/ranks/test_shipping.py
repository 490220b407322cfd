"""What crosses to the ranks and back: by copy, by name, or with a word on why not and what to do instead."""

from __future__ import annotations

import functools
import importlib.util
import operator
import socket
import sys
import threading
import types
import warnings

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from distlab import RankError, run
from distlab.ranks.shipping import packing

cloudpickle.register_pickle_by_value(sys.modules[__name__])
LOCK = threading.Lock()


def there_and_back(thing):
    """A thing as a function on a rank finds it."""
    fn, _ = packing.unpack(packing.pack(lambda: thing, ()).data)
    return fn()


@pytest.mark.parametrize(
    "path",
    [
        "ops",
        "ops.aten",
        "ops.aten.add",
        "ops.aten.add.Tensor",
        "ops.aten.mm.default",
        "ops.c10d",
        "ops.c10d.allreduce_",
        "ops.higher_order",
        "ops.higher_order.cond",
        "classes",
        "classes.some_namespace",
        "backends.cudnn",
        "backends.mkldnn",
        "backends",
        "_VF",
        "utils.deterministic",
    ],
)
def test_operators_and_modules_of_unusual_classes_go_by_name(path):
    thing = operator.attrgetter(path)(torch)
    assert there_and_back(thing) is thing


def test_operators_in_a_function_compute_on_forked_and_on_spawned_ranks():
    ops = torch.ops

    def compute(add=torch.ops.aten.add, aten=ops.aten, overload=torch.ops.aten.mul.Tensor):
        one = torch.ones(1)
        return overload(add(one, aten.add.Tensor(one, one)), ops.aten.neg(one)).item()

    assert run(compute).values == run(compute, start="spawn").values == [-3.0, -3.0]


def test_a_module_that_loads_itself_later_goes_by_name(monkeypatch):
    spec = importlib.util.find_spec("colorsys")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    lazy = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "colorsys", lazy)
    spec.loader.exec_module(lazy)
    assert type(lazy) is not types.ModuleType and there_and_back(lazy) is lazy


class Lazy(types.ModuleType):
    """A package's own kind of module, as several large ones have."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name.upper()


@pytest.mark.parametrize("known_as", ["a_lazy_package", "another_name_for_it"])
def test_a_lazy_package_goes_by_the_name_under_which_it_can_be_imported(monkeypatch, known_as):
    package = Lazy("a_lazy_package")
    monkeypatch.setitem(sys.modules, known_as, package)
    assert there_and_back(package) is package


def test_a_module_that_nothing_can_import_is_named():
    nowhere = Lazy("nowhere")
    with pytest.raises(TypeError, match="It is `nowhere` that can't be copied"):
        run(lambda: nowhere.x)


class Stubborn:
    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        raise self.error


class Unwilling:
    """Goes out of its process, and into no other."""

    def __init__(self, error):
        self.error = error

    def __setstate__(self, state):
        raise state["error"]


ERRORS = [ValueError("no"), RuntimeError(), SystemExit(3), StopIteration("no"), GeneratorExit(), MemoryError("no")]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_whatever_refuses_to_be_copied_is_named_on_the_way_out(error):
    thing = Stubborn(error)
    with pytest.raises(TypeError, match=r"Stubborn.__reduce__ raised \w+.*It is `thing` that can't be copied"):
        packing.pack(lambda: thing, ())


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_whatever_refuses_to_be_copied_or_rebuilt_is_named_on_the_way_back(error):
    with pytest.raises(TypeError, match=r"returned a Stubborn .*Stubborn.__reduce__ raised \w+.*; return tensors"):
        packing.pack_value(Stubborn(error))
    data = packing.pack_value([Unwilling(error)])
    with pytest.raises(TypeError, match=r"returned a list that can't be rebuilt .*Unwilling.__setstate__ raised"):
        packing.unpack_value(data)


def test_the_words_of_an_error_that_has_none_are_not_needed():
    class Wordless(Exception):
        def __str__(self):
            raise ValueError

    with pytest.raises(TypeError, match="__str__ raised ValueError"):
        packing.pack_value(Stubborn(Wordless()))


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ({"losses": [1.0, (n for n in ())]}, r"\['losses'\]\[1\] is a generator: "),
        ([threading.Lock()], r"\[0\] is a lock: "),
        ({"log": open(__file__)}, r"\['log'\] is a TextIOWrapper: an open file belongs to its process"),  # noqa: SIM115
        ((1, {2: {3: socket}}, sys.stdout.buffer), r"\[2\] is an? \w+: "),
    ],
    ids=["generator", "lock", "file", "stream"],
)
@pytest.mark.filterwarnings("ignore:unclosed file")
def test_the_part_that_cannot_leave_is_found_in_lists_and_dicts(value, part):
    with pytest.raises(TypeError, match=rf"can't leave its process \({part}"):
        packing.pack_value(value)


def plus_one(x: torch.Tensor):
    return x + 1


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch 2.13 says it will go
    scripted = torch.jit.script(plus_one)


class Holder:
    def __init__(self):
        self.lock = LOCK

    def __call__(self):
        return self.lock

    def method(self):
        return self.lock


def helper():
    return LOCK


def takes(a, b=LOCK, *, c=None):
    return a, b, c


class Outer:
    def __call__(self):
        return helper()


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda: scripted(torch.ones(1)), "ScriptFunction cannot be pickled. It is `scripted` that"),
        (lambda: [LOCK for _ in range(3)], "It is `LOCK` that"),
        (lambda: helper(), "It is `LOCK`, which `helper` uses, that"),
        (functools.partial(takes, 1), "It is `b` that"),
        (functools.partial(takes, 1, c=threading.Lock()), "It is `b` and `c` that"),
        (functools.partial(lambda lock: lock, threading.Lock()), "It is argument 1 of the partial that"),
        (Holder(), "It is `Holder.lock` that"),
        (Holder().method, "It is `Holder.lock` that"),
        (Outer(), "It is `LOCK`, which `helper` uses, that"),
    ],
    ids=["scripted", "inner", "helper", "default", "keyword", "partial", "object", "method", "class"],
)
def test_the_variable_that_cannot_go_to_the_ranks_is_named(fn, words):
    args = (1,) if fn is takes else ()
    with pytest.raises(TypeError, match="the ranks can't be given a copy: .*make it inside the function") as caught:
        run(fn, *args)
    assert words in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_a_function_that_calls_itself_does_not_hide_what_it_uses():
    def count(n):
        return LOCK if n == 0 else count(n - 1)

    with pytest.raises(TypeError, match="`LOCK`"):
        run(count, 3)


def makes_a_module_of_its_own(folder):
    path = f"{folder}/made_on_rank_{dist.get_rank()}.py"
    with open(path, "w") as file:
        file.write("class Result:\n    pass\n")
    sys.path.insert(0, str(folder))
    return importlib.import_module(f"made_on_rank_{dist.get_rank()}").Result()


def test_an_object_whose_module_the_notebook_lacks_is_named_with_its_rank(tmp_path):
    with pytest.raises(
        RankError, match="rank 0 raised TypeError: it returned a Result that can't be rebuilt"
    ) as caught:
        run(makes_a_module_of_its_own, str(tmp_path))
    assert "No module named 'made_on_rank_1'" in caught.value.failures[1].message
    assert caught.value.original_type == "TypeError" and "packing.py" not in str(caught.value)


def test_one_rank_whose_value_cannot_be_rebuilt_is_the_only_one_named():
    with pytest.raises(RankError, match="rank 1 raised TypeError") as caught:
        run(lambda: Unwilling(ValueError("no")) if dist.get_rank() == 1 else dist.get_rank(), ranks=3)
    assert list(caught.value.failures) == [1]
