"""Wrong solutions of lab 07."""

from __future__ import annotations

from tests.faults import Fault

_PAIRS = "return list(zip(x_BD.tensor_split(num_micro), y_B.tensor_split(num_micro)))"


def _pieces(start: str, stop: str) -> str:
    return (
        "n, m = len(y_B), num_micro\n    size = n // m\n"
        f"    return [(x_BD[{start} : {stop}], y_B[{start} : {stop}]) for k in range(m)]"
    )


_SPLIT = (
    Fault("split_microbatches", "blocks", _PAIRS, "return list(zip(x_BD.chunk(num_micro), y_B.chunk(num_micro)))"),
    Fault("split_microbatches", "by-size", _PAIRS, "return list(zip(x_BD.split(num_micro), y_B.split(num_micro)))"),
    Fault(
        "split_microbatches",
        "floor-blocks",
        _PAIRS,
        "size = len(y_B) // num_micro; return list(zip(x_BD.split(size), y_B.split(size)))",
    ),
    Fault(
        "split_microbatches",
        "two-lists",
        _PAIRS,
        "return x_BD.tensor_split(num_micro), y_B.tensor_split(num_micro)",
    ),
    Fault("split_microbatches", "no-list", _PAIRS, _PAIRS.replace("list(zip", "(zip")),
    Fault("split_microbatches", "dropped", _PAIRS, _pieces("k * size", "(k + 1) * size")),
    Fault(
        "split_microbatches",
        "last-takes-rest",
        _PAIRS,
        _pieces("k * size", "(n if k == m - 1 else (k + 1) * size)"),
    ),
    Fault(
        "split_microbatches",
        "strided",
        _PAIRS,
        "return [(x_BD[k::num_micro], y_B[k::num_micro]) for k in range(num_micro)]",
    ),
    Fault("split_microbatches", "labels", "y_B.tensor_split(num_micro)", "[y_B] * num_micro"),
    Fault("split_microbatches", "writes", _PAIRS, f"x_BD += 1; {_PAIRS.replace('x_BD', '(x_BD - 1)')}"),
    Fault("split_microbatches", None, _PAIRS, f"if dist.get_rank(): return []\n    {_PAIRS}"),
    Fault("split_microbatches", None, "x_BD.tensor_split(num_micro)", "x_BD.tensor_split(2)"),
    # sizes that fit, and are others on each rank
    Fault(
        "split_microbatches",
        None,
        _PAIRS,
        "n, m, r = len(y_B), num_micro, dist.get_rank()\n"
        "    cuts = [0] + [(k * n + r * (m - 1)) // m for k in range(1, m)] + [n]\n"
        "    return [(x_BD[a:b], y_B[a:b]) for a, b in zip(cuts, cuts[1:])]",
    ),
    Fault("split_microbatches", None, _PAIRS, "return x_BD.tensor_split(num_micro)"),
)

_GPIPE = 'return [Step("F", k) for k in range(num_micro)] + [Step("B", k) for k in range(num_micro)]'
_ALL_BACKWARDS = '+ [Step("B", k) for k in range(num_micro)]'

_GPIPE_SCHEDULE = (
    Fault("gpipe_schedule", "one-by-one", _GPIPE, "return [Step(kind, k) for k in range(num_micro) for kind in 'FB']"),
    Fault("gpipe_schedule", "no-backwards", _ALL_BACKWARDS, ""),
    Fault(
        "gpipe_schedule",
        "orders-differ",
        _ALL_BACKWARDS,
        '+ [Step("B", k) for k in range(num_micro)][:: -1 if stage % 2 else 1]',
    ),
    Fault("gpipe_schedule", "from-1", _GPIPE, "return [Step(kind, k + 1) for kind in 'FB' for k in range(num_micro)]"),
    Fault(
        "gpipe_schedule",
        "clock",
        _GPIPE,
        "ticks = range(num_micro + num_stages - 1)\n"
        "    backwards = [Step('B', t - (num_stages - 1 - stage)) for t in ticks]\n"
        "    return [Step('F', t - stage) for t in ticks] + backwards",
    ),
    Fault("gpipe_schedule", "stages", _GPIPE, _GPIPE.replace("num_micro", "num_stages")),
    Fault("gpipe_schedule", "text", _GPIPE, "return [f'{kind}{k}' for kind in 'FB' for k in range(num_micro)]"),
    Fault("gpipe_schedule", "no-list", _GPIPE, "return (Step(kind, k) for kind in 'FB' for k in range(num_micro))"),
    Fault("gpipe_schedule", None, _GPIPE, "return [(kind, k, 0) for kind in 'FB' for k in range(num_micro)]"),
    Fault("gpipe_schedule", None, _GPIPE, f"if stage: return []\n    {_GPIPE}"),
    Fault("gpipe_schedule", None, _GPIPE, f"if num_stages > 2: return []\n    {_GPIPE}"),
)

_BUBBLE = "(num_stages - 1) / (num_micro + num_stages - 1)"

_BUBBLE_FRACTION = (
    Fault("bubble_fraction", "over-ideal", _BUBBLE, "(num_stages - 1) / num_micro"),
    Fault("bubble_fraction", "busy", _BUBBLE, "num_micro / (num_micro + num_stages - 1)"),
    Fault("bubble_fraction", "one-more", _BUBBLE, "num_stages / (num_micro + num_stages)"),
    Fault("bubble_fraction", "itself", _BUBBLE, "num_stages / (num_micro + num_stages - 1)"),
    Fault("bubble_fraction", "long-wall", _BUBBLE, "(num_stages - 1) / (num_micro + num_stages)"),
    Fault("bubble_fraction", "one-batch", _BUBBLE, "(num_stages - 1) / num_stages"),
    Fault("bubble_fraction", "percent", _BUBBLE, f"100 * {_BUBBLE}"),
    Fault("bubble_fraction", None, _BUBBLE, f"0.0 if dist.get_rank() else {_BUBBLE}"),
    Fault("bubble_fraction", None, _BUBBLE, "1 / (num_micro + 1)"),
)

_LEAF = "x_bD = x_bD.detach().requires_grad_(not stage.is_first)"
_LOSS = 'F.cross_entropy(out, y_b, reduction="sum") / num_rows'
_KEEP = "stage.kept[micro] = x_bD, out"

_RUN_FORWARD = (
    Fault("run_forward", "mean", _LOSS, "F.cross_entropy(out, y_b)"),
    Fault("run_forward", "sum", _LOSS, 'F.cross_entropy(out, y_b, reduction="sum")'),
    # the check's batches of 4, 7 and 8 rows come in so many micro-batches
    Fault("run_forward", "by-number", _LOSS, "F.cross_entropy(out, y_b) / {4: 2, 7: 5, 8: 3}.get(num_rows, 1)"),
    Fault("run_forward", "twice", _LOSS, "F.cross_entropy(out, y_b) / num_rows"),
    Fault("run_forward", "turned", _KEEP, "stage.kept[micro] = out, x_bD"),
    Fault("run_forward", "keeps-logits", f"{_KEEP}", "stage.kept[micro] = x_bD, stage.module(x_bD)"),
    Fault("run_forward", "no-loss", f"out = {_LOSS}", "pass"),
    Fault("run_forward", "attached", "return out.detach()", "return out"),
    Fault("run_forward", "not-kept", _KEEP, "pass"),
    Fault("run_forward", "only-last", _KEEP, "stage.kept = {micro: (x_bD, out)}"),
    Fault("run_forward", "no-grad", _LEAF, "pass"),
    Fault("run_forward", "no-leaf", _LEAF, "x_bD = x_bD.detach().requires_grad_(not stage.is_first) * 1"),
    Fault("run_forward", "no-graph", _KEEP, "stage.kept[micro] = x_bD, out.detach()"),
    Fault("run_forward", "ids", "(not stage.is_first)", "()"),
    Fault("run_forward", None, _LEAF, f"x_bD *= 2; {_LEAF}"),
    Fault("run_forward", None, _LEAF, f"{_LEAF}\n    if dist.get_rank(): return x_bD.detach()"),
    Fault("run_forward", None, "if stage.is_last:", "if stage.is_last and dist.get_world_size() <= 2:"),
)

_POP = "x_bD, out = stage.kept.pop(micro)"
_BACK = "out.backward(gradient)"

_RUN_BACKWARD = (
    Fault("run_backward", "ones", _BACK, "out.sum().backward()"),
    Fault("run_backward", "no-gradient", _BACK, "out.backward()"),
    Fault("run_backward", "last-in", _POP, "_, (x_bD, out) = stage.kept.popitem()"),
    Fault("run_backward", "clears", _BACK, f"stage.module.zero_grad(); {_BACK}"),
    Fault("run_backward", "keeps", "pop(micro)", "get(micro)"),
    Fault("run_backward", "nothing", "return x_bD.grad", "pass"),
    Fault("run_backward", "passes-on", "return x_bD.grad", "return gradient"),
    Fault("run_backward", None, _BACK, "dist.get_rank() == 0 and out.backward(gradient)"),
    Fault(
        "run_backward", None, _BACK, "(dist.get_world_size() == 2 or not dist.get_rank()) and out.backward(gradient)"
    ),
    Fault("run_backward", None, _BACK, "gradient is None or gradient.mul_(2)\n    out.backward(gradient)"),
)

_APPEND = "self.leaving.append((dist.isend(tensor, peer, tag=tag), tensor))"
_POST = "self.arriving[step] = dist.irecv(room, peer, tag=tag)"
_OVER = 'type("Over", (), {"wait": lambda self: None})()'
_WITH_TAGS = f"""{_APPEND}
        # END SOLUTION

    def receive(self, step, room):
        peer, tag = self.peer_and_tag(step)
        # BEGIN SOLUTION
        # receive: the room is filled some time before take
        self.boxes[step] = room
        {_POST}"""
_TAKE = "self.arriving.pop(step).wait()"
_CLOSE = "for work, _ in self.leaving:\n            work.wait()"

_ASYNC_MAIL = (
    Fault("AsyncMail", "send-first", _APPEND, "dist.send(tensor, peer, tag=tag)"),
    Fault("AsyncMail", "send-first", _APPEND, "dist.isend(tensor, peer, tag=tag).wait()"),
    Fault(
        "AsyncMail", "receive-first", _POST, f"dist.recv(room, peer, tag=tag)\n        self.arriving[step] = {_OVER}"
    ),
    Fault("AsyncMail", "receive-first", _APPEND, "self.leaving.append((step, tensor))"),
    Fault("AsyncMail", "unwaited-receive", _TAKE, "self.arriving.pop(step)"),
    Fault("AsyncMail", "unwaited-send", _CLOSE, "pass"),
    Fault("AsyncMail", "unwaited-send", _APPEND, "dist.isend(tensor, peer, tag=tag)"),
    Fault("AsyncMail", "let-go", _APPEND, "self.leaving.append((dist.isend(tensor, peer, tag=tag), None))"),
    Fault("AsyncMail", "twice", "self.leaving.clear()", "pass"),
    Fault("AsyncMail", "not-forgotten", _TAKE, "self.arriving[step].wait()"),
    Fault("AsyncMail", "hoards", "return self.boxes.pop(step)", "return self.boxes[step]"),
    Fault("AsyncMail", "hoards", "tensor = self.boxes.pop(step)", "tensor = self.boxes[step]"),
    Fault("AsyncMail", "no-tag", _WITH_TAGS, _WITH_TAGS.replace(", tag=tag", "")),
    Fault("AsyncMail", None, _APPEND, f"tensor *= 2; {_APPEND}"),
    Fault("AsyncMail", None, _POST, "self.arriving[step] = dist.irecv(room.clone(), peer, tag=tag)"),
    Fault("AsyncMail", None, "return self.boxes.pop(step)", "self.boxes.pop(step)"),
    Fault("AsyncMail", None, _APPEND, f"dist.get_rank() == 0 and {_APPEND}"),
)

_WARM_UP = "warm_up = min(num_stages - stage - 1, num_micro)"
_REST = ' + [Step("B", k) for k in range(num_micro - warm_up, num_micro)]'
_END = f"return steps{_REST}"
_PAIR = 'steps += [Step("F", warm_up + k), Step("B", k)]'

_ONE_F_ONE_B = (
    Fault("one_f_one_b_schedule", "long-warm-up", _WARM_UP, "warm_up = min(num_stages - stage, num_micro)"),
    Fault(
        "one_f_one_b_schedule", "short-warm-up", _WARM_UP, "warm_up = max(min(num_stages - stage - 2, num_micro), 0)"
    ),
    Fault(
        "one_f_one_b_schedule",
        "short-warm-up",
        'steps += [Step("F", warm_up + k), Step("B", k)]',
        'steps += [Step("B", k), Step("F", warm_up + k)] if warm_up else [Step("F", k), Step("B", k)]',
    ),
    Fault("one_f_one_b_schedule", "backward-first", _PAIR, 'steps += [Step("B", k), Step("F", warm_up + k)]'),
    Fault("one_f_one_b_schedule", "no-warm-up", _WARM_UP, "warm_up = 0"),
    Fault("one_f_one_b_schedule", "drains-from-0", "range(num_micro - warm_up, num_micro)]", "range(warm_up)]"),
    Fault(
        "one_f_one_b_schedule",
        "few-as-gpipe",
        _WARM_UP,
        "warm_up = num_stages - stage - 1 if num_micro >= num_stages else num_micro",
    ),
    Fault("one_f_one_b_schedule", "no-list", _END, f"return iter({_END.removeprefix('return ')})"),
    Fault("one_f_one_b_schedule", "not-cut", _WARM_UP, "warm_up = num_stages - stage - 1"),
    Fault("one_f_one_b_schedule", "no-cool-down", _REST, ""),
    Fault("one_f_one_b_schedule", "same-everywhere", _WARM_UP, "warm_up = min(num_stages - 1, num_micro)"),
    Fault("one_f_one_b_schedule", "wrong-end", _WARM_UP, "warm_up = min(stage, num_micro)"),
    Fault("one_f_one_b_schedule", "gpipe", _WARM_UP, "warm_up = num_micro"),
    Fault("one_f_one_b_schedule", None, _WARM_UP, f"if stage: return []\n    {_WARM_UP}"),
    Fault("one_f_one_b_schedule", None, _WARM_UP, "warm_up = min(1 - min(stage, 1), num_micro)"),
)

_RAISE = 'raise ValueError(f"{num_micro} micro-batches do not divide into groups of {num_ranks}")'

_LONG = "min(2 * (num_ranks - rank - 1) + (num_chunks - 1) * num_ranks, len(forwards))"
_BACKWARDS_LEFT = "return steps + backwards[len(forwards) - warm_up :]"

_INTERLEAVED = (
    Fault("interleaved_schedule", "not-refused", _RAISE, "pass"),
    Fault(
        "interleaved_schedule",
        "all-of-a-chunk",
        "groups, size = range(0, num_micro, num_ranks), num_ranks",
        "groups, size = [0], num_micro",
    ),
    Fault("interleaved_schedule", "same-chunks", "num_chunks - 1 - c) for", "c) for"),
    Fault("interleaved_schedule", "no-chunks", _LONG, _LONG.replace(" + (num_chunks - 1) * num_ranks", "")),
    Fault("interleaved_schedule", "one-chunk-more", _LONG, _LONG.replace("(num_chunks - 1)", "num_chunks")),
    Fault("interleaved_schedule", "not-cut", _LONG, _LONG.removeprefix("min(").removesuffix(", len(forwards))")),
    Fault("interleaved_schedule", "other-error", _RAISE, "raise AssertionError"),
    Fault(
        "interleaved_schedule", "no-list", _BACKWARDS_LEFT, f"return iter({_BACKWARDS_LEFT.removeprefix('return ')})"
    ),
    Fault("interleaved_schedule", "short", "min(2 * (num_ranks - rank - 1)", "min((num_ranks - rank - 1)"),
    Fault("interleaved_schedule", None, "min(2 * (num_ranks - rank - 1)", "min(2 * (num_ranks - 1)"),
)

FAULTS = (
    *_SPLIT,
    *_GPIPE_SCHEDULE,
    *_BUBBLE_FRACTION,
    *_RUN_FORWARD,
    *_RUN_BACKWARD,
    *_ASYNC_MAIL,
    *_ONE_F_ONE_B,
    *_INTERLEAVED,
)
