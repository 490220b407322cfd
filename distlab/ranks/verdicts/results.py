"""Finds code that goes on with what a collective returned, although collectives work in place and return None."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import textwrap
import tokenize
import traceback
import types
from typing import TypeGuard

from distlab.ranks.cells import Source, is_learners

_MOST = 12  # calls, from the innermost
_RETURN_NONE = (
    r"all_reduce|broadcast|all_gather|all_gather_into_tensor|all_gather_object|broadcast_object_list|barrier"
    r"|reduce_scatter|reduce_scatter_tensor|all_to_all|all_to_all_single|gather_object|scatter_object_list"
)
_CALL = re.compile(
    rf"(torch\.distributed|dist|distributed)\.({_RETURN_NONE}|reduce|scatter|gather|send)|({_RETURN_NONE})"
)


def running_functions(error: BaseException, sources: dict[str, Source]) -> tuple[str, ...]:
    """The texts of the learner's functions that were running when it was raised, and of those that they call."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = [frame for frame in frames if is_learners(frame.f_code.co_filename, sources)][-_MOST:]
    codes = dict.fromkeys(code for frame in ours for code in (frame.f_code, *_called(frame, sources)))
    return tuple(_text(code, sources) for code in codes)


def _called(frame: types.FrameType, sources: dict[str, Source]) -> list[types.CodeType]:
    names = [*frame.f_code.co_names, *frame.f_code.co_freevars]
    values = [frame.f_locals.get(name, frame.f_globals.get(name)) for name in names]
    codes = [value.__code__ for value in values if isinstance(value, types.FunctionType)]
    return [code for code in codes if is_learners(code.co_filename, sources)]


def _text(code: types.CodeType, sources: dict[str, Source]) -> str:
    source = sources.get(code.co_filename)
    lines = source.text.splitlines(keepends=True) if source else linecache.getlines(code.co_filename)
    try:
        return textwrap.dedent("".join(inspect.getblock(lines[code.co_firstlineno - 1 :])))
    except (SyntaxError, tokenize.TokenError):  # a lambda inside a longer statement, for instance
        return ""


def takes_a_result(source: str, line: str) -> bool:
    """Whether ``line``, in a function whose text is ``source`` or that calls it, plausibly uses such a result."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # as above
        return False
    return any(_reaches(statement, line) for statement in ast.walk(tree) if isinstance(statement, ast.stmt))


def _reaches(statement: ast.stmt, line: str) -> bool:
    """Whether a statement takes what a collective returns, and ``line`` is that statement, or uses what it set."""
    nodes = _own_nodes(statement)
    bodies = [node.body for node in nodes if isinstance(node, ast.Lambda)]
    taken = [node for node in nodes if _is_collective(node) and node not in bodies]
    if not taken or (isinstance(statement, ast.Expr) and statement.value in taken):
        return False
    if isinstance(statement, ast.Return) and statement.value in taken:
        return True  # the line may have called this function
    if isinstance(statement, ast.Assign) and statement.value in taken:
        return any(re.search(rf"(?<!\w){re.escape(ast.unparse(target))}(?!\w)", line) for target in statement.targets)
    return any(f"{ast.unparse(node.func)}(" in line for node in taken)


def _own_nodes(statement: ast.stmt) -> list[ast.AST]:
    """The expressions of one statement, without those of statements inside it."""
    nodes, rest = [], [child for child in ast.iter_child_nodes(statement) if not isinstance(child, ast.stmt)]
    while rest:
        node = rest.pop()
        nodes.append(node)
        rest += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]
    return nodes


def _is_collective(node: ast.AST) -> TypeGuard[ast.Call]:
    if not isinstance(node, ast.Call) or not _CALL.fullmatch(ast.unparse(node.func)):
        return False
    return not any(keyword.arg == "async_op" for keyword in node.keywords)
