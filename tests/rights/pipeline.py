"""Right answers in other styles for lab 07."""

from __future__ import annotations

from tests.rights import Right

_WALK = """    at, happened, shape, has_moved = [0] * len(schedule), set(), shape_of(schedule), True
    while has_moved:
        has_moved = False
        for rank, steps in enumerate(schedule):
            while at[rank] < len(steps):
                what, before, until = conditions(steps[at[rank]], rank, shape, blocking)
                if before <= happened and what not in happened:
                    happened.add(what)
                    has_moved = True
                if what not in happened or not until <= happened:
                    break
                at[rank] += 1
    return {rank: steps[at[rank]] for rank, steps in enumerate(schedule) if at[rank] < len(steps)}
"""
_STEP_BY_STEP = """    left = {rank: list(steps) for rank, steps in enumerate(schedule)}
    happened, before_this_round = set(), None
    while before_this_round != (len(happened), sum(map(len, left.values()))):
        before_this_round = len(happened), sum(map(len, left.values()))
        for rank, steps in reversed(left.items()):
            if not steps:
                continue
            what, needs, until = conditions(steps[0], rank, shape_of(schedule), blocking)
            if needs.issubset(happened):
                happened.add(what)
                if until.issubset(happened):
                    steps.pop(0)
    return {rank: steps[0] for rank, steps in left.items() if steps}
"""
_BY_QUEUE = """    from collections import deque
    queues = [deque(steps) for steps in schedule]
    happened, waiting = set(), deque(range(len(schedule)))
    idle = 0
    while waiting and idle < len(waiting):
        rank = waiting.popleft()
        moved = False
        while queues[rank]:
            what, before, until = conditions(queues[rank][0], rank, shape_of(schedule), blocking)
            if not before <= happened:
                break
            moved |= what not in happened
            happened |= {what}
            if not until <= happened:
                break
            queues[rank].popleft()
            moved = True
        idle = 0 if moved else idle + 1
        if queues[rank]:
            waiting.append(rank)
    return dict((rank, queue[0]) for rank, queue in enumerate(queues) if queue)
"""

_GPIPE = 'return [Step("F", k) for k in range(num_micro)] + [Step("B", k) for k in range(num_micro)]'
_APPENDED = """steps = []
    for k in range(num_micro):
        steps.append(Step(kind="F", micro=k))
    for k in reversed(range(num_micro)):
        steps.append(Step(kind="B", micro=k))
    return steps"""

_BUBBLE = "return (num_stages - 1) / (num_micro + num_stages - 1)"

_FORWARD = """x_bD = x_bD.detach().requires_grad_(not stage.is_first)
    out = stage.module(x_bD)
    if stage.is_last:
        out = F.cross_entropy(out, y_b, reduction="sum") / num_rows
    stage.kept[micro] = x_bD, out
    return out.detach()"""
_IN_PLACE = """if not stage.is_first:
        x_bD.requires_grad_()
    with torch.enable_grad():
        out = stage.module(x_bD)
        if stage.is_last:
            out = F.cross_entropy(out, y_b, reduction="none").sum().div(num_rows)
    stage.kept[micro] = (x_bD, out)
    return out.data"""
_WEIGHTED = """leaf = x_bD.clone()
    leaf.requires_grad = not stage.is_first
    result = stage.module.forward(leaf)
    if stage.is_last:
        result = F.nll_loss(result.log_softmax(dim=-1), y_b) * (len(y_b) / num_rows)
    stage.kept.update({micro: [leaf, result]})
    return result.detach().clone()"""

_BACKWARD = """x_bD, out = stage.kept.pop(micro)
    out.backward(gradient)
    return x_bD.grad"""
_BY_CASE = """x_bD, out = stage.kept[micro]
    del stage.kept[micro]
    if stage.is_last:
        out.backward()
    else:
        torch.autograd.backward([out], grad_tensors=[gradient])
    return None if stage.is_first else x_bD.grad.clone()"""
_BY_HAND = """x_bD, out = stage.kept.pop(micro)
    parameters = list(stage.module.parameters())
    wanted = parameters if stage.is_first else [*parameters, x_bD]
    found = torch.autograd.grad(out, wanted, gradient)
    for parameter, own in zip(parameters, found):
        parameter.grad = own if parameter.grad is None else parameter.grad + own
    return None if stage.is_first else found[-1]"""
_SURROGATE = """x_bD, out = stage.kept.pop(micro)
    (out if gradient is None else (out * gradient).sum()).backward()
    return x_bD.grad"""

_SEND = "tensor = self.boxes.pop(step)\n        self.leaving.append((dist.isend(tensor, peer, tag=tag), tensor))"
_RECEIVE = "self.boxes[step] = room\n        self.arriving[step] = dist.irecv(room, peer, tag=tag)"
_TAKE = "self.arriving.pop(step).wait()\n        return self.boxes.pop(step)"
_CLOSE = "for work, _ in self.leaving:\n            work.wait()\n        self.leaving.clear()"
_MAIL = f"""{_SEND}
        # END SOLUTION

    def receive(self, step, room):
        peer, tag = self.peer_and_tag(step)
        # BEGIN SOLUTION
        # receive: the room is filled some time before take
        {_RECEIVE}
        # END SOLUTION

    def take(self, step):
        # BEGIN SOLUTION
        # take: now it must be there
        {_TAKE}
        # END SOLUTION

    def close(self):
        # BEGIN SOLUTION
        # close: only now may the tensors go
        {_CLOSE}"""


def _mail(send: str, receive: str, take: str, close: str) -> str:
    texts = {_SEND: send, _RECEIVE: receive, _TAKE: take, _CLOSE: close}
    mail = _MAIL
    for old, new in texts.items():
        mail = mail.replace(old, new)
    return mail


_OBJECTS = _mail(
    "self.leaving.append(__import__('types').SimpleNamespace(kept=self.boxes.pop(step)))\n"
    "        self.leaving[-1].work = dist.isend(self.leaving[-1].kept, peer, tag=tag)",
    _RECEIVE,
    _TAKE,
    "import collections\n        left = collections.deque(self.leaving)\n"
    "        self.leaving.clear()\n        [each.work.wait() for each in left]",
)
_TOGETHER = _mail(
    "self.leaving += [(self.boxes[step], dist.isend(self.boxes.pop(step), dst=peer, tag=tag))]",
    "self.arriving[step] = room, dist.irecv(room, src=peer, tag=tag)",
    "room, work = self.arriving.pop(step)\n        work.wait()\n        return room",
    "while self.leaving:\n            self.leaving.pop()[1].wait()",
)
_BATCHED = _mail(
    "tensor = self.boxes.pop(step).contiguous()\n"
    "        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, peer, tag=tag)])\n"
    "        self.leaving.append((works, tensor))",
    "self.boxes[step] = room\n"
    "        (self.arriving[step],) = dist.batch_isend_irecv([dist.P2POp(dist.irecv, room, peer, tag=tag)])",
    "work = self.arriving.pop(step)\n        work.wait()\n        return self.boxes.pop(step)",
    "for works, tensor in self.leaving:\n            for work in works:\n                work.wait()\n"
    "        self.leaving = []",
)

_1F1B = """warm_up = min(num_stages - stage - 1, num_micro)
    steps = [Step("F", k) for k in range(warm_up)]
    for k in range(num_micro - warm_up):
        steps += [Step("F", warm_up + k), Step("B", k)]
    return steps + [Step("B", k) for k in range(num_micro - warm_up, num_micro)]"""
_BY_ROOM = """steps, forwards, backwards = [], 0, 0
    while backwards < num_micro:
        if forwards < num_micro and forwards - backwards < num_stages - stage:
            steps.append(Step("F", forwards))
            forwards += 1
        else:
            steps.append(Step("B", backwards))
            backwards += 1
    return steps"""
_BY_TICKS = """ahead = num_stages - stage - 1
    steps = []
    for tick in range(num_micro + ahead):
        if tick < num_micro:
            steps.append(Step("F", tick))
        if tick >= ahead:
            steps.append(Step("B", tick - ahead))
    return steps"""

RIGHTS = (
    Right("walk", _WALK, _STEP_BY_STEP),
    Right("walk", _WALK, _BY_QUEUE),
    Right("gpipe_schedule", _GPIPE, "return [Step(kind, k) for kind in 'FB' for k in range(num_micro)]"),
    Right("gpipe_schedule", _GPIPE, _APPENDED),
    Right("gpipe_schedule", _GPIPE, "return [*map(Step, num_micro * 'F' + num_micro * 'B', [*range(num_micro)] * 2)]"),
    Right("bubble_fraction", _BUBBLE, "return 1 - num_micro / (num_micro + num_stages - 1)"),
    Right("bubble_fraction", _BUBBLE, "idle = num_stages - 1\n    return idle and 1 / (1 + num_micro / idle)"),
    Right("run_forward", _FORWARD, _IN_PLACE),
    Right("run_forward", _FORWARD, _WEIGHTED),
    Right("run_backward", _BACKWARD, _BY_CASE),
    Right("run_backward", _BACKWARD, _BY_HAND),
    Right("run_backward", _BACKWARD, _SURROGATE),
    Right("AsyncMail", _MAIL, _TOGETHER),
    Right("AsyncMail", _MAIL, _OBJECTS),
    Right("AsyncMail", _MAIL, _BATCHED),
    Right("one_f_one_b_schedule", _1F1B, _BY_ROOM),
    Right("one_f_one_b_schedule", _1F1B, _BY_TICKS),
    Right(
        "interleaved_schedule",
        "if num_micro % num_ranks:",
        "if num_micro // num_ranks * num_ranks != num_micro:",
    ),
)
