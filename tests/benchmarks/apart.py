"""Measures a group apart from the others: what raises, exits or crashes there leaves the rest of the table."""

import importlib
import multiprocessing
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from tests.benchmarks.table import Group, Row, in_a_line


def measured(name, module):
    """Returns the groups that a module measured in a process of its own, which may crash."""
    print(f"measuring {name} ...", file=sys.stderr, flush=True)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        try:
            return process.submit(measure, name, module).result()
        except BrokenProcessPool as error:
            return [failed(name, error)]


def measure(name, module):
    """Returns groups, or if that failed one that says how."""
    try:
        groups = importlib.import_module(module).measure()
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        return [failed(name, error)]
    return [groups] if isinstance(groups, Group) else groups


def failed(name, error):
    return Group(name, [Row("(all of it)", failure=in_a_line(error))])
