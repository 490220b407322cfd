"""What messages known to puzzle people mean, and what to do: one table, in the order in which it is searched."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from distlab.ranks.verdicts.results import takes_a_result

if TYPE_CHECKING:
    from distlab.ranks.verdicts.failures import Failure


class _Hint(NamedTuple):
    """What a text "Type: message" that ``pattern`` finds means, if ``fits`` holds of the failure."""

    pattern: str
    says: str
    fits: Callable[[Failure], bool] = lambda failure: True


def _has_no_result(failure: Failure) -> bool:
    """Whether the learner's line plausibly uses what a collective returned."""
    return bool(failure.frames) and any(takes_a_result(text, failure.frames[-1].code) for text in failure.functions)


def _reads_the_command_line(failure: Failure) -> bool:
    return bool(re.search(r"argparse|optparse|docopt|click|\bparse_(known_)?args\b|\bsys\.argv\b", failure.traceback))


_HINTS = (
    _Hint(
        "initialize the default process group twice",
        "run() has already made the process group: leave out init_process_group.",
    ),
    _Hint(
        "Expected to have finished reduction",
        "a parameter got no gradient in the step *before* this one; DDP notices one step late. Use every parameter in "
        "the loss, or pass find_unused_parameters=True. If a layer was replaced after the wrap, replace it first and "
        "wrap then: DDP still waits for the old one.",
    ),
    _Hint(
        "modified by an inplace operation",
        "a message writes into its tensors in place, which counts here as any other change does. If the backward pass "
        "still needs the old numbers, send or receive in a clone.",
    ),
    _Hint("SyncBatchNorm layers only work with", "SyncBatchNorm needs GPUs; on CPU average the statistics yourself."),
    _Hint(
        "needs a non-CPU accelerator",
        "this class refuses CPU tensors; torch.distributed.fsdp.fully_shard takes them.",
    ),
    _Hint(
        r"[Rr]ank \d+ is not part of (the parent )?group",
        "src= and dst= are global ranks, and this one is not in the group. Give a global rank that is in it, or "
        "group_src= and group_dst= with a rank as the group counts, from 0.",
    ),
    _Hint(
        "does not support|No backend type associated",
        "the backend has no such operation for these tensors; gloo serves CPU tensors, NCCL serves CUDA tensors.",
    ),
    _Hint("address already in use", "let run() make the process group; it needs no port."),
    _Hint("Invalid scalar type|unsupported dtype", "gloo sends floating-point and integer tensors; convert first."),
    _Hint(
        "No module named",
        "the ranks import it from disk: it must be a file beside the notebook or an installed package.",
    ),
    _Hint(
        "'_OpNamespace'.* has no attribute",
        "the ranks do not know this operator. If the notebook has registered it, register it inside the function too.",
    ),
    _Hint(
        r"^FileNotFoundError|PytorchStreamReader failed|^EOFError: Ran out of input|^JSONDecodeError",
        "if another rank writes this file, let all ranks meet in dist.barrier() after it is written and before it is "
        "read.",
    ),
    _Hint(
        r"\bNoneType\b",
        "collectives work in place and return None (or a Work with async_op=True): go on with the tensor that you "
        "gave, not with what the call returned.",
        _has_no_result,
    ),
    _Hint(
        r"\b(Watched)?Work\b",
        "with async_op=True a call returns a Work at once: call its wait(), then go on with the tensor that you gave.",
        lambda failure: failure.type in ("TypeError", "AttributeError"),
    ),
    _Hint(
        "^(SystemExit|IndexError)",
        "a rank has no command line: give parse_args() a list, parse_args([...]), or give values to run as arguments, "
        "run(fn, values).",
        _reads_the_command_line,
    ),
)


def hint_for(failure: Failure) -> str:
    """What the message of a rank's failure means, or nothing."""
    text = f"{failure.type}: {failure.message}"
    return next((hint.says for hint in _HINTS if re.search(hint.pattern, text) and hint.fits(failure)), "")
