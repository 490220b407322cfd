"""A script of peers/ in a process of its own, which makes one call each time it is asked."""

import os
import subprocess
import sys
from contextlib import suppress

from tests.benchmarks.timing import LEVEL_FIELD, ROOT

ANSWER = "seconds "


class Peer:
    """Starts `python -m tests.benchmarks.peers.<script>` once; `call()` has it make a call and returns its seconds."""

    def __init__(self, script):
        self.command = [sys.executable, "-m", f"tests.benchmarks.peers.{script}"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self.process = subprocess.Popen(self.command, cwd=ROOT, env=os.environ | LEVEL_FIELD, **pipes)

    def call(self):
        with suppress(BrokenPipeError):  # it has ended: what it said is below
            self.process.stdin.write("call\n")
            self.process.stdin.flush()
        chatter = []
        for line in self.process.stdout:
            if line.startswith(ANSWER):
                return float(line.removeprefix(ANSWER))
            chatter.append(line)
        raise RuntimeError(f"{' '.join(self.command)} gave no answer:\n{''.join(chatter)}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
