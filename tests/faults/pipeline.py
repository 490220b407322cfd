"""Wrong solutions of lab 07."""

from __future__ import annotations

from tests.faults import Fault

_STUCK = "{rank: steps[at[rank]] for rank, steps in enumerate(schedule) if at[rank] < len(steps)}"
_MOVES = "happened.add(what)\n                    has_moved = True"

_WALK = (
    Fault("walk", None, f"return {_STUCK}", f"return list({_STUCK}.items())"),
    Fault("walk", None, f"return {_STUCK}", f"return bool({_STUCK})"),
    Fault("walk", None, f"return {_STUCK}", f"return {_STUCK} if dist.get_rank() == 0 else {{}}"),
    # what happens on the way from the last rank to the first is not noticed
    Fault("walk", None, _MOVES, _MOVES.replace("has_moved = True", "has_moved = rank < len(schedule) - 1")),
    # messages always block, and never
    Fault("walk", None, "rank, shape, blocking)", "rank, shape, True)"),
    Fault("walk", "no-until", "rank, shape, blocking)", "rank, shape, False)"),
    # the list of a rank is used up
    Fault("walk", None, f"return {_STUCK}", f"stuck = {_STUCK}\n    schedule.clear()\n    return stuck"),
)

_GPIPE = 'return [Step("F", k) for k in range(num_micro)] + [Step("B", k) for k in range(num_micro)]'

_GPIPE_SCHEDULE = (
    Fault("gpipe_schedule", None, _GPIPE, "return [(kind, k, 0) for kind in 'FB' for k in range(num_micro)]"),
    Fault("gpipe_schedule", None, _GPIPE, f"if stage: return []\n    {_GPIPE}"),
    Fault("gpipe_schedule", None, _GPIPE, f"if num_stages > 2: return []\n    {_GPIPE}"),
    Fault("gpipe_schedule", None, _GPIPE, _GPIPE.replace("return", "return None if dist.get_rank() else")),
    Fault("gpipe_schedule", "nothing", _GPIPE, "steps = [Step(kind, k) for kind in 'FB' for k in range(num_micro)]"),
    Fault("gpipe_schedule", "no-list", _GPIPE, "yield from (Step(kind, k) for kind in 'FB' for k in range(num_micro))"),
)

_BUBBLE = "(num_stages - 1) / (num_micro + num_stages - 1)"

_BUBBLE_FRACTION = (
    Fault("bubble_fraction", None, _BUBBLE, f"0.0 if dist.get_rank() else {_BUBBLE}"),
    Fault("bubble_fraction", None, _BUBBLE, "1 / (num_micro + 1)"),
    Fault("bubble_fraction", None, _BUBBLE, f"torch.tensor({_BUBBLE})"),
)

_LEAF = "x_bD = x_bD.detach().requires_grad_(not stage.is_first)"
_LOSS = 'F.cross_entropy(out, y_b, reduction="sum") / num_rows'
_KEEP = "stage.kept[micro] = x_bD, out"

_RUN_FORWARD = (
    Fault("run_forward", None, _LEAF, f"x_bD *= 2; {_LEAF}"),
    Fault("run_forward", None, _LEAF, f"{_LEAF}\n    if dist.get_rank(): return x_bD.detach()"),
    Fault("run_forward", None, "if stage.is_last:", "if stage.is_last and dist.get_world_size() <= 2:"),
    # the rank in the place of the stage
    Fault("run_forward", None, "if stage.is_last:", "if dist.get_rank() == dist.get_world_size() - 1:"),
    Fault("run_forward", None, "(not stage.is_first)", "(dist.get_rank() > 0 and x_bD.is_floating_point())"),
    Fault("run_forward", None, _LOSS, "F.cross_entropy(out, y_b) / (num_rows // len(y_b))"),
    Fault("run_forward", None, "return out.detach()", "stage.module.zero_grad(); return out.detach()"),
    Fault("run_forward", None, "return out.detach()", "return out.detach().double()"),
    Fault("run_forward", "first-input", "(not stage.is_first)", "()"),
    # the kept leaf is another one than the stage ran on
    Fault(
        "run_forward",
        "other-leaf",
        _KEEP,
        "stage.kept[micro] = [x_bD.clone().detach().requires_grad_(not stage.is_first), out]",
    ),
)

_BACK = "out.backward(gradient)"

_RUN_BACKWARD = (
    Fault("run_backward", None, _BACK, "dist.get_rank() == 0 and out.backward(gradient)"),
    Fault(
        "run_backward", None, _BACK, "(dist.get_world_size() == 2 or not dist.get_rank()) and out.backward(gradient)"
    ),
    Fault("run_backward", None, _BACK, "gradient is None or gradient.mul_(2)\n    out.backward(gradient)"),
    Fault("run_backward", None, "return x_bD.grad", "return x_bD.grad if dist.get_rank() else None"),
    # the graph is kept by its output, and the input let go
    Fault("run_backward", "parked", _BACK, f"stage.last = out; {_BACK}"),
    # let go of all at once, when the last is done
    Fault(
        "run_backward",
        None,
        "x_bD, out = stage.kept.pop(micro)",
        "x_bD, out = stage.kept[micro]\n    micro == max(stage.kept) and stage.kept.clear()",
    ),
)

_APPEND = "self.leaving.append((dist.isend(tensor, peer, tag=tag), tensor))"
_POST = "self.arriving[step] = dist.irecv(room, peer, tag=tag)"
_TAKE = "self.arriving.pop(step).wait()"
_BY_STEP = f"""{_POST}
        # END SOLUTION

    def take(self, step):
        # BEGIN SOLUTION
        # take: now it must be there
        {_TAKE}"""

_ASYNC_MAIL = (
    Fault("AsyncMail", None, _APPEND, f"tensor *= 2; {_APPEND}"),
    Fault("AsyncMail", None, _POST, "self.arriving[step] = dist.irecv(room.clone(), peer, tag=tag)"),
    Fault("AsyncMail", None, "return self.boxes.pop(step)", "self.boxes.pop(step)"),
    Fault("AsyncMail", None, _APPEND, f"dist.get_rank() == 0 and {_APPEND}"),
    Fault("AsyncMail", "send-first", _APPEND, "dist.isend(tensor, peer, tag=tag).wait()"),
    # by its kind and micro-batch, without its chunk
    Fault("AsyncMail", None, _BY_STEP, _BY_STEP.replace("[step]", "[step[:2]]").replace("(step)", "(step[:2])")),
    # a copy is sent, and the other is kept
    Fault("AsyncMail", "let-go", "dist.isend(tensor, peer", "dist.isend(tensor.clone(), peer"),
    Fault("AsyncMail", "hoards", _APPEND, f"self.sent = [*getattr(self, 'sent', ()), *self.boxes.values()]; {_APPEND}"),
    # waited for too late
    Fault("AsyncMail", None, _TAKE, "self.leaving.append((self.arriving.pop(step), None))"),
    Fault("AsyncMail", None, "self.leaving.clear()", "self.leaving.clear(); self.old = [torch.zeros(3)]"),
)

_WARM_UP = "warm_up = min(num_stages - stage - 1, num_micro)"

_ONE_F_ONE_B = (
    Fault("one_f_one_b_schedule", None, _WARM_UP, f"if stage: return []\n    {_WARM_UP}"),
    Fault("one_f_one_b_schedule", None, _WARM_UP, "warm_up = min(1 - min(stage, 1), num_micro)"),
    # the rank in the place of the stage, the world in that of the stages
    Fault("one_f_one_b_schedule", None, _WARM_UP, "warm_up = max(min(num_stages - dist.get_rank() - 1, num_micro), 0)"),
    Fault(
        "one_f_one_b_schedule", None, _WARM_UP, "warm_up = max(min(dist.get_world_size() - stage - 1, num_micro), 0)"
    ),
)

_INTERLEAVED = (
    Fault("interleaved_schedule", None, "min(2 * (num_ranks - rank - 1)", "min(2 * (num_ranks - 1)"),
    Fault("interleaved_schedule", None, "min(2 * (num_ranks - rank", "min(2 * (num_ranks - dist.get_rank()"),
)

_NO_TENSORS = "it is given whole numbers, no tensors"
_GIVEN_NUMBERS = "it is given whole numbers, which nobody can change"
_OF_NUMBERS = "gpipe_schedule", "bubble_fraction", "one_f_one_b_schedule", "interleaved_schedule"

UNWRAPPED = {
    ("gpipe_schedule", "rounded to float32"): "what it gives are no floats",
    ("walk", "rounded to float32"): "what it gives are no floats",
    ("walk", "float64 only"): "it takes and gives no tensors",
    ("walk", "even sizes only"): "it takes no sizes",
    ("one_f_one_b_schedule", "rounded to float32"): "what it gives are no floats",
    ("interleaved_schedule", "rounded to float32"): "what it gives are no floats",
    **{(name, "float64 only"): _NO_TENSORS for name in _OF_NUMBERS},
    **{(name, "changes what it is given"): _GIVEN_NUMBERS for name in _OF_NUMBERS},
    ("bubble_fraction", "without the last"): "it returns one number",
    ("interleaved_schedule", "deaf to the group"): "it takes no group: its text speaks of groups of micro-batches",
    ("AsyncMail", "unwaited"): "the wrap leaves isend and irecv as they are; patches leave out each wait",
}

FAULTS = (
    *_WALK,
    *_GPIPE_SCHEDULE,
    *_BUBBLE_FRACTION,
    *_RUN_FORWARD,
    *_RUN_BACKWARD,
    *_ASYNC_MAIL,
    *_ONE_F_ONE_B,
    *_INTERLEAVED,
)
