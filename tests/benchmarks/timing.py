"""Times calls here, and scripts in fresh processes."""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The same for all that is compared: one thread a process, and gloo on loopback.
LEVEL_FIELD = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"}


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def median_seconds(call, repeats):
    return statistics.median(seconds(call) for _ in range(repeats))


def fresh_python(*arguments, given=""):
    """Runs a new Python in the project's folder and returns what it printed; a failure is raised with what it said."""
    command, env = [sys.executable, *arguments], os.environ | LEVEL_FIELD
    result = subprocess.run(command, cwd=ROOT, env=env, input=given, capture_output=True, text=True)
    if result.returncode != 0:
        said = result.stdout + result.stderr
        raise RuntimeError(f"{' '.join(command)} ended with {result.returncode}:\n{said}")
    return result.stdout


def last_line(text):
    """Returns what a script reported as JSON on its last line, after whatever else it printed."""
    return json.loads(text.strip().splitlines()[-1])
