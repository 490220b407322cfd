"""The runner agrees with the oracle on random programs; a failure prints the seed, which repeats it alone."""

from __future__ import annotations

import os
import random
import re
from collections import Counter

import pytest

from distlab import RankError, run
from distlab.ranks.verdicts.loose_ends import loose_ends
from tests.fuzz.oracle import Expected, expect
from tests.fuzz.programs import Program, play, right, with_slip

FIRST = int(os.environ.get("DISTLAB_FUZZ_SEED", 0))
NUM_SEEDS = int(os.environ.get("DISTLAB_FUZZ_PROGRAMS", 520))
BATCH = 20
_WAITS = re.compile(r"waits in (\w+)(?: (?:to|from) rank (\d+))?")


def make(seed: int) -> Program:
    dice = random.Random(seed)
    return right(dice) if seed % 4 == 0 else with_slip(dice)


def disagreement(program: Program, expected: Expected) -> str:
    """What the runner made of a program that it should not have, "" if it agrees."""
    try:
        done = run(play, program, ranks=len(program.ranks), device="cpu", timeout=20, record="messages")
    except RankError as error:
        return _wrong_error(error, expected)
    if expected.fate == "finishes":
        loose = loose_ends(done.recording)
        if bool(loose) != expected.forgets:
            return f"expected {'a' if expected.forgets else 'no'} note of what is never waited for, got {loose}"
        return "" if done.values == expected.heard else f"expected to hear {expected.heard}, got {done.values}"
    return "" if expected.fate == "either" else f"expected that it {expected.fate}, but it finished"


def _wrong_error(error: RankError, expected: Expected) -> str:
    said = str(error)
    if "not finished after" in error.verdict:
        return f"nothing was found until the time limit: {said}"
    if expected.fate == "finishes":
        return f"expected that it finishes, got: {said}"
    if expected.fate == "does not fit":
        fits = "different" not in error.verdict and "the receive is" not in error.verdict
        return f"expected a mismatch to be named, got: {said}" if fits else ""
    if expected.fate == "is refused":
        return "" if "raised ValueError" in error.verdict else f"expected a ValueError, got: {said}"
    if expected.fate == "deadlocks":
        waiting = {rank: _WAITS.match(str(failure)) for rank, failure in error.failures.items()}
        got = {rank: (found[1], found[2]) for rank, found in waiting.items() if found}
        want = {
            rank: [(op.kind, str(op.peer) if op.is_p2p else None) for op in ops] for rank, ops in expected.stuck.items()
        }
        fits = got.keys() == want.keys() and all(got[rank] in want[rank] for rank in got)
        return "" if fits else f"expected to be stuck: {want}, got {got}: {said}"
    return ""


@pytest.mark.parametrize("batch", range(NUM_SEEDS // BATCH))
def test_the_runner_agrees_with_the_oracle(batch):
    for seed in range(FIRST + batch * BATCH, FIRST + (batch + 1) * BATCH):
        program = make(seed)
        expected = expect(program)
        wrong = disagreement(program, expected)
        assert not wrong, f"seed {seed} (DISTLAB_FUZZ_SEED={seed}): {wrong}\n{program}"


def test_the_programs_are_of_every_kind():
    fates = Counter(expect(make(seed)).fate for seed in range(NUM_SEEDS))
    assert all(fates[fate] >= NUM_SEEDS // 20 for fate in ("finishes", "deadlocks", "does not fit")), fates
    assert NUM_SEEDS - fates["either"] >= 500, fates
