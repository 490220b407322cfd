"""A rank that ends where it should not: by an exception, by an exit, by a signal, in native code, without memory."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import shutil
import signal
import sys
import time
import warnings

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from tests.faults.runner import Cases

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cases = Cases()
GIGABYTE = 1 << 30


def on_rank_1() -> bool:
    """Every other rank waits for rank 1 in a barrier, which it never joins."""
    if dist.get_rank() == 1:
        return True
    dist.barrier()
    return False


@cases.fails("rank 1 raised ValueError: bad batch", rank=1, line='raise ValueError("bad batch")')
def raises():
    if on_rank_1():
        raise ValueError("bad batch")


@cases.fails("rank 1 raised ValueError: bad", rank=1, line='raise ValueError("bad") from error')
def raises_from_another():
    if on_rank_1():
        try:
            _ = 1 / 0
        except ZeroDivisionError as error:
            raise ValueError("bad") from error


@cases.fails(r"rank 1 raised ExceptionGroup: several \(2 sub-exceptions\)", rank=1, line="raise ExceptionGroup")
def raises_several():
    if on_rank_1():
        raise ExceptionGroup("several", [ValueError("a"), TypeError("b")])


@cases.fails("rank 1 raised Odd: odd", rank=1, line='raise Odd("odd")')
def raises_what_is_no_exception():
    class Odd(BaseException):
        pass

    if on_rank_1():
        raise Odd("odd")


@cases.fails("rank 1 raised KeyboardInterrupt", rank=1, line="raise KeyboardInterrupt")
def raises_an_interrupt():
    if on_rank_1():
        raise KeyboardInterrupt


@cases.fails("rank 1 raised StopIteration", rank=1, line="next(iter(()))")
def raises_stop_iteration():
    if on_rank_1():
        next(iter(()))


@cases.fails("rank 1 raised Wordless: .its text can't be read", rank=1, line="raise Wordless")
def raises_an_error_without_words():
    class Wordless(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    if on_rank_1():
        raise Wordless


@cases.fails("rank 1 raised ValueError: x{100}", rank=1)
def raises_ten_megabytes_of_text():
    if on_rank_1():
        raise ValueError("x" * 10_000_000)


@cases.fails("rank 1 raised TwoArguments", rank=1, line='raise TwoArguments("a", "b")')
def raises_an_error_that_does_not_unpickle():
    class TwoArguments(Exception):
        def __init__(self, first, second):
            super().__init__(f"{first} and {second}")

    if on_rank_1():
        raise TwoArguments("a", "b")


@cases.fails("rank 1 raised RecursionError", rank=1, line="return deeper(n + 1)")
def recurses_for_ever():
    def deeper(n):
        return deeper(n + 1)

    if on_rank_1():
        deeper(0)


@cases.fails("raised NameError: name 'averge_gradients' is not defined", line="averge_gradients()")
def misspells_a_name():
    averge_gradients()  # noqa: F821


@cases.fails("raised ModuleNotFoundError: No module named 'my_helpers'", line="import my_helpers")
def imports_what_only_the_notebook_has():
    import my_helpers  # noqa: F401


@cases.fails("raised UserWarning: careful", line='warnings.warn("careful"')
def makes_warnings_errors():
    warnings.simplefilter("error")
    warnings.warn("careful", stacklevel=1)


@cases.fails(r"rank 1 called sys.exit\(0\) and so left without finishing", rank=1, line="sys.exit(0)")
def exits_with_success():
    if on_rank_1():
        sys.exit(0)


@cases.fails(r"rank 1 called sys.exit\(no data\)", rank=1, line='sys.exit("no data")')
def exits_with_words():
    if on_rank_1():
        sys.exit("no data")


@cases.fails(r"rank 1 called os._exit\(0\) and so left without finishing", rank=1, line="os._exit(0)")
def leaves_the_hard_way():
    if on_rank_1():
        os._exit(0)


@cases.fails("rank 1 died of SIGABRT", rank=1, line="os.abort()")
def aborts():
    if on_rank_1():
        os.abort()


@cases.fails("rank 1 died of SIGSEGV .a crash in native code", rank=1, line="ctypes.string_at(0)")
def reads_where_nothing_is():
    if on_rank_1():
        ctypes.string_at(0)


@cases.fails("rank 1 died of SIGSEGV", rank=1)
def crashes_without_a_fault_handler():
    if on_rank_1():
        faulthandler.disable()
        os.kill(os.getpid(), signal.SIGSEGV)


@cases.fails("rank 1 died of SIGKILL .killed from outside, likely out of memory", rank=1)
def is_killed():
    if on_rank_1():
        os.kill(os.getpid(), signal.SIGKILL)


@cases.fails("rank 1 died of SIGTERM", rank=1)
def is_asked_to_end():
    if on_rank_1():
        os.kill(os.getpid(), signal.SIGTERM)


@cases.fails("rank 1 died of SIGFPE", rank=1)
def divides_by_zero_in_native_code():
    if on_rank_1():
        os.kill(os.getpid(), signal.SIGFPE)


@cases.fails("rank 1 ended with exit code 0 without finishing", rank=1)
def becomes_another_program():
    if on_rank_1():
        os.execv(shutil.which("true"), ["true"])


@cases.fails("rank 1 raised KeyboardInterrupt", rank=1)
def is_interrupted_alone():
    if on_rank_1():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs in the background
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)


@cases.fails("rank 1 raised RuntimeError: .*can't allocate memory", rank=1, line="torch.empty(40 * GIGABYTE")
def has_no_memory_for_a_tensor():
    if on_rank_1():
        resource.setrlimit(resource.RLIMIT_AS, (20 * GIGABYTE, 20 * GIGABYTE))
        torch.empty(40 * GIGABYTE, dtype=torch.uint8)


@cases.fails("rank 1 raised MemoryError", rank=1, line="bytearray(40 * GIGABYTE)")
def has_no_memory_for_python():
    if on_rank_1():
        resource.setrlimit(resource.RLIMIT_AS, (20 * GIGABYTE, 20 * GIGABYTE))
        bytearray(40 * GIGABYTE)


@cases.fails("rank 1 raised OSError: .*Too many open files", rank=1, line="open(os.devnull)")
def opens_too_many_files():
    if on_rank_1():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        kept = [open(os.devnull) for _ in range(200)]  # noqa: SIM115
        print(len(kept))


@cases.fails("rank 1 raised OSError: .*File too large", rank=1, line="dist.barrier()")
def has_no_room_for_files():
    if on_rank_1():
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        dist.barrier()


@cases.fails("rank 1 (died|ended|raised)", rank=1)
def closes_every_file_it_has():
    if on_rank_1():
        os.closerange(3, 200)
        time.sleep(5)


@cases.fails("raised OSError: .*Bad file descriptor", line='print("hello", flush=True)')
def closes_its_output_and_prints():
    os.close(1)
    print("hello", flush=True)


@cases.fails("rank 1 raised ValueError: unheard", rank=1, line='raise ValueError("unheard")')
def puts_something_of_its_own_in_place_of_its_output():
    class Broken:
        def flush(self):
            raise RuntimeError("no output")

    sys.stdout, sys.stderr = None, Broken()
    if on_rank_1():
        raise ValueError("unheard")


@pytest.mark.parametrize("case", cases.each())
def test_the_rank_the_reason_and_the_line_are_named(case):
    case.try_it()
