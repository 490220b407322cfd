"""Mistakes in lab 07."""

from __future__ import annotations

from distlab.course.patches import Patch

_GPIPE = 'return [Step("F", k) for k in range(num_micro)] + [Step("B", k) for k in range(num_micro)]'
_BACKWARDS = '+ [Step("B", k) for k in range(num_micro)]'
_CLOCK = """ticks = range(num_micro + num_stages - 1)
    backwards = [Step("B", t - (num_stages - 1 - stage)) for t in ticks]
    return [Step("F", t - stage) for t in ticks] + backwards"""

_GPIPE_SCHEDULE = (
    Patch("one-by-one", _GPIPE, "return [Step(kind, k) for k in range(num_micro) for kind in 'FB']"),
    Patch("no-backwards", _BACKWARDS, ""),
    Patch("orders-differ", _BACKWARDS, f"{_BACKWARDS}[:: -1 if stage % 2 else 1]"),
    Patch("orders-differ", _BACKWARDS, f"{_BACKWARDS}[:: 1 if stage % 2 else -1]"),
    Patch("from-1", _GPIPE, "return [Step(kind, k + 1) for kind in 'FB' for k in range(num_micro)]"),
    Patch("clock", _GPIPE, _CLOCK),
    Patch("stages", _GPIPE, _GPIPE.replace("num_micro", "num_stages")),
    Patch("tuples", _GPIPE, "return [(kind, k, 0) for kind in 'FB' for k in range(num_micro)]"),
    Patch("text", _GPIPE, "return [f'{kind}{k}' for kind in 'FB' for k in range(num_micro)]"),
    Patch("no-list", _GPIPE, "return (Step(kind, k) for kind in 'FB' for k in range(num_micro))"),
    Patch("nothing", "return ", ""),
)

_NEXT = "at[rank] += 1"
_WHILE, _ROUND = "while has_moved:", "for rank, steps in enumerate(schedule):"
_BEGIN, _GO_ON = "if before <= happened and what not in happened:", "if what not in happened or not until <= happened:"
_STUCK = "{rank: steps[at[rank]] for rank, steps in enumerate(schedule) if at[rank] < len(steps)}"

_WALK = (
    Patch("once", _WHILE, "for _ in range(1):"),
    Patch("no-until", _GO_ON, "if what not in happened:"),
    Patch("no-before", _BEGIN, "if what not in happened:"),
    Patch("until-first", _BEGIN, "if before | until <= happened and what not in happened:"),
    Patch(
        "gives-up",
        f"                    break\n                {_NEXT}",
        f"                    return {_STUCK}\n                {_NEXT}",
    ),
    Patch("positions", "{rank: steps[at[rank]] for", "{rank: at[rank] for"),
    Patch("one-of-them", f"return {_STUCK}", f"return dict(list({_STUCK}.items())[:1])"),
    Patch("everyone", _STUCK, "{rank: (steps + [None])[at[rank]] for rank, steps in enumerate(schedule)}"),
)

_BUBBLE = "(num_stages - 1) / (num_micro + num_stages - 1)"

_BUBBLE_FRACTION = (
    Patch("over-ideal", _BUBBLE, "(num_stages - 1) / num_micro"),
    Patch("busy", _BUBBLE, "num_micro / (num_micro + num_stages - 1)"),
    Patch("one-more", _BUBBLE, "num_stages / (num_micro + num_stages)"),
    Patch("itself", _BUBBLE, "num_stages / (num_micro + num_stages - 1)"),
    Patch("long-wall", _BUBBLE, "(num_stages - 1) / (num_micro + num_stages)"),
    Patch("one-batch", _BUBBLE, "(num_stages - 1) / num_stages"),
    *(Patch("rounded", _BUBBLE, f"round({_BUBBLE}, {digits})") for digits in (2, 3, 4)),
    Patch("percent", _BUBBLE, f"100 * {_BUBBLE}"),
)

_LEAF = "x_bD = x_bD.detach().requires_grad_(not stage.is_first)"
_LOSS = 'F.cross_entropy(out, y_b, reduction="sum") / num_rows'
_KEEP = "stage.kept[micro] = x_bD, out"
_NUMBERS = {3: 2, 4: 2, 7: 5, 8: 3}  # of the micro-batches in which the check's batches of so many rows come

_RUN_FORWARD = (
    Patch("mean", _LOSS, "F.cross_entropy(out, y_b)"),
    Patch("sum", f"{_LOSS}", 'F.cross_entropy(out, y_b, reduction="sum")'),
    Patch("by-number", _LOSS, f"F.cross_entropy(out, y_b) / {_NUMBERS}.get(num_rows, 1)"),
    Patch("twice", _LOSS, "F.cross_entropy(out, y_b) / num_rows"),
    Patch("turned", _KEEP, "stage.kept[micro] = out, x_bD"),
    Patch("keeps-logits", _KEEP, "stage.kept[micro] = x_bD, stage.module(x_bD)"),
    Patch("no-loss", f"out = {_LOSS}", "pass"),
    Patch("attached", "return out.detach()", "return out"),
    Patch("not-kept", _KEEP, "pass"),
    Patch("only-last", _KEEP, "stage.kept = {micro: (x_bD, out)}"),
    Patch("no-grad", _LEAF, "pass"),
    Patch("no-leaf", _LEAF, f"{_LEAF} * 1"),
    Patch("other-leaf", _KEEP, "stage.kept[micro] = x_bD.detach().requires_grad_(not stage.is_first), out"),
    Patch("no-graph", _KEEP, "stage.kept[micro] = x_bD, out.detach()"),
    Patch("parked", _KEEP, f"{_KEEP}; vars(stage).setdefault('outs', []).append(out)"),
    Patch("first-input", "(not stage.is_first)", "(x_bD.is_floating_point())"),
    Patch("by-count", _KEEP, "stage.kept[len(stage.kept)] = x_bD, out"),
    Patch("floored", _LOSS, "F.cross_entropy(out, y_b) / (num_rows // len(y_b))"),
)

_POP = "x_bD, out = stage.kept.pop(micro)"
_BACK = "out.backward(gradient)"

_RUN_BACKWARD = (
    Patch("ones", _BACK, "out.sum().backward()"),
    Patch("no-gradient", _BACK, "out.backward()", fails=True),
    Patch("last-in", _POP, "_, (x_bD, out) = stage.kept.popitem()"),
    Patch("first-in", _POP, "x_bD, out = stage.kept.pop(next(iter(stage.kept)))"),
    Patch("clears", _BACK, f"stage.module.zero_grad(); {_BACK}"),
    Patch("clears-at-0", _BACK, f"micro or stage.module.zero_grad(); {_BACK}"),
    Patch("parked", _BACK, f"vars(stage).setdefault('done', []).append((x_bD, out)); {_BACK}"),
    Patch("keeps", "pop(micro)", "get(micro)"),
    Patch("nothing", "return x_bD.grad", "pass"),
    Patch("passes-on", "return x_bD.grad", "return gradient"),
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
_SAME_KIND = "[self.arriving.pop(other).wait() for other in list(self.arriving) if other.kind == step.kind]"

_ASYNC_MAIL = (
    Patch("send-first", _APPEND, "dist.send(tensor, peer, tag=tag)", fails=True),
    Patch("receive-first", _POST, f"dist.recv(room, peer, tag=tag); self.arriving[step] = {_OVER}", fails=True),
    Patch("receive-first", _APPEND, "self.leaving.append((step, tensor))", fails=True),
    Patch("waits-for-all", _TAKE, f"self.close(); {_TAKE}", fails=True),
    Patch(
        "waits-for-all", _TAKE, "[work.wait() for work in self.arriving.values()]; self.arriving.clear()", fails=True
    ),
    Patch("waits-for-all", _TAKE, _SAME_KIND, fails=True),
    Patch("unwaited-receive", _TAKE, "self.arriving.pop(step)", fails=True),
    Patch("unwaited-send", _CLOSE, "pass", fails=True),
    Patch("unwaited-send", _APPEND, "dist.isend(tensor, peer, tag=tag)", fails=True),
    Patch("let-go", _APPEND, "self.leaving.append((dist.isend(tensor, peer, tag=tag), None))"),
    Patch("twice", "self.leaving.clear()", "pass", fails=True),
    Patch("not-forgotten", _TAKE, "self.arriving[step].wait()"),
    Patch("hoards", "return self.boxes.pop(step)", "return self.boxes[step]"),
    Patch("hoards", "tensor = self.boxes.pop(step)", "tensor = self.boxes[step]"),
    Patch("no-tag", _WITH_TAGS, _WITH_TAGS.replace(", tag=tag", "")),
)

_WARM_UP = "warm_up = min(num_stages - stage - 1, num_micro)"
_REST = ' + [Step("B", k) for k in range(num_micro - warm_up, num_micro)]'
_END = f"return steps{_REST}"
_PAIR = 'steps += [Step("F", warm_up + k), Step("B", k)]'
_BACKWARD_FIRST = 'steps += [Step("B", k), Step("F", warm_up + k)]'
_FEW = "warm_up = num_stages - stage - 1 if num_micro >= num_stages else num_micro"

_ONE_F_ONE_B_SCHEDULE = (
    Patch("long-warm-up", _WARM_UP, "warm_up = min(num_stages - stage, num_micro)"),
    Patch("short-warm-up", _WARM_UP, "warm_up = max(min(num_stages - stage - 2, num_micro), 0)"),
    Patch("short-warm-up", _PAIR, f'{_BACKWARD_FIRST} if warm_up else [Step("F", k), Step("B", k)]'),
    Patch("backward-first", _PAIR, _BACKWARD_FIRST),
    Patch("no-warm-up", _WARM_UP, "warm_up = 0"),
    Patch("drains-from-0", "range(num_micro - warm_up, num_micro)]", "range(warm_up)]"),
    Patch("few-as-gpipe", _WARM_UP, _FEW),
    Patch("no-list", _END, f"return iter(steps{_REST})"),
    Patch("nothing", _END, f"steps{_REST}"),
    Patch("tuples", _END, f"return list(map(tuple, steps{_REST}))"),
    Patch("not-cut", _WARM_UP, "warm_up = num_stages - stage - 1"),
    Patch("no-cool-down", _REST, ""),
    Patch("same-everywhere", _WARM_UP, "warm_up = min(num_stages - 1, num_micro)"),
    Patch("wrong-end", _WARM_UP, "warm_up = min(stage, num_micro)"),
    Patch("gpipe", _WARM_UP, "warm_up = num_micro"),
)

_RAISE = 'raise ValueError(f"{num_micro} micro-batches do not divide into groups of {num_ranks}")'
_GROUPS = "groups, size = range(0, num_micro, num_ranks), num_ranks"
_LONG = "min(2 * (num_ranks - rank - 1) + (num_chunks - 1) * num_ranks, len(forwards))"
_LEFT = "steps + backwards[len(forwards) - warm_up :]"

_INTERLEAVED_SCHEDULE = (
    Patch("not-refused", _RAISE, "pass"),
    Patch("all-of-a-chunk", _GROUPS, "groups, size = [0], num_micro"),
    Patch("same-chunks", "num_chunks - 1 - c) for", "c) for"),
    Patch("no-chunks", _LONG, _LONG.replace(" + (num_chunks - 1) * num_ranks", "")),
    Patch("one-chunk-more", _LONG, _LONG.replace("(num_chunks - 1)", "num_chunks")),
    Patch("not-cut", _LONG, _LONG.removeprefix("min(").removesuffix(", len(forwards))")),
    Patch("other-error", _RAISE, "raise AssertionError"),
    Patch("no-list", _LEFT, f"iter({_LEFT})"),
    Patch("nothing", f"return {_LEFT}", _LEFT),
    Patch("tuples", _LEFT, f"list(map(tuple, {_LEFT}))"),
    Patch("one-chunk-as-1f1b", _LONG, f"{_LONG} if num_chunks > 1 else min(num_ranks - rank - 1, len(forwards))"),
    Patch("short", "min(2 * (num_ranks - rank - 1)", "min((num_ranks - rank - 1)"),
)

PATCHES = {
    "walk": _WALK,
    "gpipe_schedule": _GPIPE_SCHEDULE,
    "bubble_fraction": _BUBBLE_FRACTION,
    "run_forward": _RUN_FORWARD,
    "run_backward": _RUN_BACKWARD,
    "AsyncMail": _ASYNC_MAIL,
    "one_f_one_b_schedule": _ONE_F_ONE_B_SCHEDULE,
    "interleaved_schedule": _INTERLEAVED_SCHEDULE,
}
