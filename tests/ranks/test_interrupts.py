"""One interrupt ends a run, and those that come later wait for its clean-up; a script shows the words once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest

from distlab.ranks.interrupts import Interrupted, OneInterrupt, put_off


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_later_interrupts_wait_for_the_clean_up():
    cleaned = False
    with pytest.raises(Interrupted, match="stopped here"):
        with OneInterrupt("stopped here"):
            try:
                press()
            finally:
                press()
                press()
                cleaned = True
    assert cleaned and signal.getsignal(signal.SIGINT) is signal.default_int_handler


class Dies:
    """Presses the key while it is taken away, where Python keeps what is raised to itself."""

    def __del__(self):
        press()


class Gone:
    """Something to refer to weakly."""


def in_a_del() -> None:
    Dies()


def in_a_callback() -> None:
    gone = Gone()
    reference = weakref.ref(gone, lambda _: press())
    del gone
    assert reference() is None


@pytest.mark.parametrize("swallows", [in_a_del, in_a_callback])
def test_an_interrupt_that_python_swallows_comes_again(swallows):
    before = sys.unraisablehook
    started = time.monotonic()
    with pytest.raises(Interrupted, match="stopped here"):
        with OneInterrupt("stopped here"):
            swallows()
            time.sleep(20)
    assert time.monotonic() - started < 10 and sys.unraisablehook is before


def test_what_else_python_swallows_is_told_as_ever(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    with OneInterrupt("stopped here"):
        class_that_fails = type("Fails", (), {"__del__": lambda self: 1 / 0})
        class_that_fails()
    assert [unraisable.exc_type for unraisable in told] == [ZeroDivisionError]


def test_an_interrupt_that_is_put_off_comes_at_the_end():
    with pytest.raises(Interrupted, match="at the end"):
        with OneInterrupt("stopped here") as interrupt:
            interrupt.hold("at the end")
            press()
            over = True
    assert over


def test_what_already_says_where_it_stopped_keeps_its_words():
    with pytest.raises(Interrupted, match="rank 0 stood there"):
        with OneInterrupt("stopped here"):
            try:
                press()
            except KeyboardInterrupt:
                raise Interrupted("rank 0 stood there") from None


def test_an_error_goes_before_an_interrupt_that_was_put_off():
    with pytest.raises(ValueError, match="bad"):
        with OneInterrupt("stopped here") as interrupt:
            interrupt.hold("at the end")
            press()
            raise ValueError("bad")


def test_what_must_not_be_torn_is_done_before_an_interrupt_comes():
    done = False
    with pytest.raises(KeyboardInterrupt):
        with put_off():
            press()
            press()
            done = True
    assert done and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_of_what_must_not_be_torn_ends_the_run_around_it():
    with pytest.raises(Interrupted, match="stopped here"):
        with OneInterrupt("stopped here"):
            with put_off():
                press()


def test_a_handler_of_the_programs_own_stays_in_charge(monkeypatch):
    came = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append(1))
    try:
        with OneInterrupt("stopped here"):
            press()
            press()
        assert came == [1, 1]
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_nothing_is_changed():
    seen = []

    def enter():
        with OneInterrupt("stopped here"):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


@pytest.mark.parametrize("times", [1, 3])
def test_an_interrupted_script_shows_the_words_once(tmp_path, times):
    script = tmp_path / "script.py"
    script.write_text(
        "import pathlib, time\nimport torch.distributed as dist\nfrom distlab import run\n"
        f"def job():\n    pathlib.Path({str(tmp_path)!r}, f'rank-{{dist.get_rank()}}').touch()\n    time.sleep(60)\n"
        "run(job)\n"
    )
    process = subprocess.Popen(
        [sys.executable, script],
        env=os.environ | {"PYTHONPATH": os.getcwd()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 120
    while len(list(tmp_path.glob("rank-*"))) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    for _ in range(times):
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert out == "" and process.returncode
    assert err.count("Interrupted. When you stopped it:\nrank 0 is still busy at") == 1
    assert "During handling of the above exception" not in err
