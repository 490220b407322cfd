"""What in a learner's own code often explains a wrong result, in any exercise; said where a check knows no better."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator

_IN_PLACE = (
    "all_reduce broadcast reduce all_gather all_gather_into_tensor gather scatter reduce_scatter reduce_scatter_tensor "
    "all_to_all all_to_all_single"
).split()
_MAKERS = "empty zeros ones rand randn tensor full".split()


def suspects(obj) -> list[str]:
    """Sentences about the code of a function or class, in the order of its lines; [] if there is nothing to suspect."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(obj)))
    except (OSError, TypeError, SyntaxError):  # its source is not known
        return []
    nodes = sorted(ast.walk(tree), key=lambda node: getattr(node, "lineno", 0))
    return list(dict.fromkeys(sentence for node in nodes for sentence in _of(node)))


def _of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Assign | ast.Return) and (name := _collective(node.value)) and not _is_async(node.value):
        yield (
            f"`{ast.unparse(node)}`: dist.{name} works in place and returns None. What it gives is in the tensor that "
            "you hand it."
        )
    if isinstance(node, ast.Assign) and (name := _plain_attribute(node)):
        yield (
            f"`self.{name}` is a plain tensor, so the module has no such parameter: nobody trains, moves or saves it. "
            "Wrap it in nn.Parameter."
        )
    if isinstance(node, ast.Call):
        yield from _of_call(node)
    if isinstance(node, ast.Compare) and _asks_for_matrices(node):
        yield f"`{ast.unparse(node)}` leaves out vectors, such as biases and the weights of norms."


def _of_call(call: ast.Call) -> Iterator[str]:
    name = _collective(call)
    if name and call.args and _is_clone(call.args[0]):
        yield f"`{ast.unparse(call)}` works on a copy, which nobody sees afterwards: give it the tensor itself."
    if name == "reduce":
        yield "dist.reduce leaves the result on one rank, dst, and something unspecified on the others."


def _collective(node: ast.AST | None) -> str:
    """The collective of torch.distributed that a call makes, "" for anything else."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return ""
    owner = ast.unparse(node.func.value)
    return node.func.attr if owner in ("dist", "torch.distributed") and node.func.attr in _IN_PLACE else ""


def _is_async(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Call) and any(keyword.arg == "async_op" for keyword in node.keywords)


def _is_clone(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "clone"


def _plain_attribute(node: ast.Assign) -> str:
    """The attribute of self that is a new tensor which asks for gradients, "" for anything else."""
    target, made = node.targets[0], node.value
    if not isinstance(target, ast.Attribute) or ast.unparse(target.value) != "self" or not isinstance(made, ast.Call):
        return ""
    is_made_here = isinstance(made.func, ast.Attribute) and made.func.attr in _MAKERS
    wants_grad = any(keyword.arg == "requires_grad" for keyword in made.keywords)
    return target.attr if is_made_here and wants_grad else ""


def _asks_for_matrices(node: ast.Compare) -> bool:
    left = ast.unparse(node.left)
    right = node.comparators[0]
    is_one = isinstance(right, ast.Constant) and (type(node.ops[0]), right.value) in ((ast.Gt, 1), (ast.GtE, 2))
    return left.endswith((".dim()", ".ndim")) and is_one
