"""Mistakes in what ranks do together: all-to-alls, the layer over ranks, its gradients."""

from __future__ import annotations

from distlab.course.patches import Patch

_OWN = "y_WD[rank] = x_WD[rank]"
_SENDING = "sending = [dist.isend(x_WD[other], other) for other in others]"
_RECEIVING = "for other in others:\n        dist.recv(y_WD[other], other)"
_WAIT = "for one in sending:\n        one.wait()"
_EXCHANGE = f"{_SENDING}\n    {_RECEIVING}\n    {_WAIT}"

_ALL_TO_ALL = (
    Patch("nothing-moved", f"{_EXCHANGE}\n    return y_WD", "return x_WD.clone()"),
    Patch("own-row", "isend(x_WD[other], other)", "isend(x_WD[rank], other)"),
    Patch("first-row", f"{_OWN}\n    {_SENDING}", f"y_WD[rank] = x_WD[0]\n    {_SENDING.replace('[other]', '[0]')}"),
    Patch("order-of-arrival", "return y_WD", "return y_WD.roll(-rank, 0)"),
    Patch("backwards", "return y_WD", "return y_WD.flip(0)"),
    Patch("keeps-nothing", _OWN, "y_WD.zero_()"),
    Patch(
        "send-first",
        _EXCHANGE,
        f"for other in others:\n        dist.send(x_WD[other], other)\n    {_RECEIVING}",
        fails=True,
    ),
    Patch("receive-first", _EXCHANGE, f"{_RECEIVING}\n    {_SENDING}\n    {_WAIT}", fails=True),
    Patch("itself", "if other != rank", "", fails=True),
    Patch("scattered", "x_WD.contiguous(), torch.empty_like(", "x_WD, torch.empty_like(", fails=True),
    Patch("collective", _EXCHANGE, "dist.all_to_all_single(y_WD, x_WD)"),
    Patch("collective", _EXCHANGE, "dist.all_to_all(list(y_WD), list(x_WD))"),
    Patch("too-many", _RECEIVING, f"{_RECEIVING}\n    sending += {_SENDING[10:]}\n    {_RECEIVING}"),
)

_MOVED = "moved_BD = rows_AD.new_empty(sum(receives), *row_shape)"
_SINGLE = "dist.all_to_all_single(moved_BD, rows_AD.contiguous(), receives, sends)"
_HOME = "lambda g_BD: move(g_BD, receives, sends)"
_APPLY = f"ThereAndBack.apply(x_AD, lambda x_AD: move(x_AD, sends, receives), {_HOME})"

_ALL_TO_ALL_AUTOGRAD = (
    Patch("no-gradient", _APPLY, "move(x_AD.detach(), sends, receives)"),
    Patch("wrong-sides", _SINGLE, _SINGLE.replace("receives, sends", "sends, receives"), fails=True),
    Patch("wrong-sides", _HOME, "lambda g_BD: move(g_BD, sends, receives)", fails=True),
    Patch("contiguous", ".contiguous()", "", fails=True),
    Patch("library", _APPLY, "all_to_all_single_autograd(x_AD, receives, sends, dist.group.WORLD) * 1.0"),
    Patch(
        "library",
        f"return {_APPLY}",
        "import torch.distributed.nn.functional as functional\n"
        "    return functional.all_to_all_single(x_AD.new_empty(sum(receives), *row_shape), x_AD, receives, sends)",
    ),
    Patch(
        "tensors",
        _SINGLE,
        _SINGLE.replace("receives, sends", "torch.tensor(receives), torch.tensor(sends)"),
        fails=True,
    ),
    Patch("divided", _HOME, f"{_HOME} / dist.get_world_size()"),
    Patch("times", _HOME, f"{_HOME} * dist.get_world_size()"),
    Patch("stays", _HOME, "lambda g_BD: g_BD * 1"),
    Patch("backwards", f"return {_APPLY}", f"y = {_APPLY}; return torch.cat(y.split(receives)[::-1])"),
    Patch("skips", _MOVED, f"{_MOVED}\n        if not (sum(sends) and sum(receives)): return moved_BD", fails=True),
    Patch(
        "other-messages",
        f"return {_APPLY}",
        f"dist.all_to_all_single(torch.empty(len(sends), dtype=torch.int64), torch.tensor(sends))\n    return {_APPLY}",
    ),
)

_CAME = "came_WL = all_to_all(sent_WL)"
_SIZES = "sends, receives = sent_WL.sum(1).tolist(), came_WL.sum(1).tolist()"
_ARRIVED = "arrived_BD = all_to_all_autograd(x_AD, sends, receives)"
_WAY = "came_WL.sum(0), (sends, receives, order_B)"

_DISPATCH_TO_RANKS = (
    Patch("by-rank", "arrived_BD[order_B],", "arrived_BD,"),
    Patch("inverse", "arrived_BD[order_B],", "arrived_BD[order_B.argsort()],"),
    Patch("nothing-moved", "arrived_BD[order_B],", "x_AD * 1,"),
    Patch("as-arrived", "torch.arange(sent_WL.shape[1]).repeat(", "torch.arange(sent_WL.shape[1]).repeat_interleave("),
    Patch("unstable", "argsort(stable=True)", "argsort()"),
    Patch("tensors", _SIZES, _SIZES.replace(".tolist()", ""), fails=True),
    Patch("own-counts", "came_WL.sum(0),", "sent_WL[dist.get_rank()],"),
    Patch("sent-counts", "came_WL.sum(0),", "sent_WL.sum(0),"),
    Patch("by-source", "came_WL.sum(0),", "came_WL.sum(1),"),
    Patch("own-sizes", _CAME, "came_WL = sent_WL", fails=True),
    Patch("swapped", _WAY, "came_WL.sum(0), (receives, sends, order_B)"),
    Patch("order-inverse", _WAY, "came_WL.sum(0), (sends, receives, order_B.argsort())"),
    Patch("no-gradient", "(x_AD, sends, receives)", "(x_AD.detach(), sends, receives)"),
    Patch(
        "gathers",
        _CAME,
        "tables = [torch.empty_like(sent_WL) for _ in range(world)]; dist.all_gather(tables, sent_WL.contiguous())\n"
        "    came_WL = torch.stack([one[dist.get_rank()] for one in tables])",
    ),
    Patch("counts-again", _CAME, f"{_CAME}; all_to_all(sent_WL.sum(1))"),
    Patch("skips", _ARRIVED, f"{_ARRIVED} if sum(receives) else x_AD[:0]", fails=True),
    Patch(
        "skips", _ARRIVED, f"{_ARRIVED} if sum(sends) else x_AD.new_empty(sum(receives), *x_AD.shape[1:])", fails=True
    ),
)

_BACK_HOME = "return all_to_all_autograd(y_BD[order_B.argsort()], receives, sends)"

_RETURN_TO_TOKENS = (
    Patch("order-kept", "y_BD[order_B.argsort()]", "y_BD"),
    Patch("order-again", "order_B.argsort()", "order_B"),
    Patch("order-after", _BACK_HOME, "return all_to_all_autograd(y_BD, receives, sends)[order_B.argsort()]"),
    Patch("nothing-moved", _BACK_HOME, "return y_BD * 1"),
    Patch("wrong-sides", "receives, sends)", "sends, receives)", fails=True),
    Patch("no-gradient", "y_BD[", "y_BD.detach()["),
    Patch(
        "divided",
        _BACK_HOME,
        "y_BD = ThereAndBack.apply(y_BD, lambda y: y * 1, lambda g: g / dist.get_world_size())\n    " + _BACK_HOME,
    ),
    Patch("more-messages", _BACK_HOME, f"all_to_all(torch.tensor(receives)); {_BACK_HOME}"),
    Patch("skips", _BACK_HOME, f"if not len(y_BD): return y_BD\n    {_BACK_HOME}", fails=True),
)

_COMBINED = "combine(y_AD, tokens_A, weights_TK[tokens_A, choices_A], x_TD)"
_CAPACITY = "capacity = capacity_of(len(x_TD), self.k, self.num_experts, self.factor)"
_EXPERTS = "self.experts(x_BD, counts_L)"
_RETURNED = f"y_AD = return_to_tokens({_EXPERTS}, way)"
_NUM = "torch.bincount(tokens_A, minlength=len(x_TD))[:, None]"
_LOSS = "self.balance_loss = load_balancing_loss(logits_TE, self.experts_TK, self.alpha)"

_PLANNED = (
    "self.counts_E = dispatch(self.experts_TK, self.num_experts, capacity)\n"
    "        x_BD, counts_L, way = dispatch_to_ranks(x_TD[tokens_A], self.counts_E)"
)

_OF_KEPT = (
    "self.balance_loss = self.alpha * self.num_experts * "
    "(self.counts_E / max(1, len(tokens_A)) * logits_TE.softmax(-1).mean(0)).sum()"
)
_KEPT = "weights_TK.new_zeros(weights_TK.shape).index_put((tokens_A, choices_A), weights_TK[tokens_A, choices_A])"
_AGAIN = f"weights_TK if self.k == 1 else weights_TK / {_KEPT}.sum(1, keepdim=True)"

_EXPERT_PARALLEL_MOE = (
    Patch("passes-on", _COMBINED, f"torch.where({_NUM} == 0, x_TD, {_COMBINED})"),
    Patch("residual", "return combine", "return x_TD + combine"),
    Patch("unweighted", "weights_TK[tokens_A, choices_A]", "weights_TK[tokens_A, choices_A] ** 0"),
    Patch("no-limit", _CAPACITY, "capacity = len(x_TD) * self.k"),
    Patch(
        "shared-capacity",
        _CAPACITY,
        "num_T = torch.tensor(len(x_TD)); dist.all_reduce(num_T)\n"
        "        capacity = capacity_of(num_T.item(), self.k, self.num_experts, self.factor)",
    ),
    Patch(
        "balance-of-all",
        _LOSS,
        "parts = [None] * dist.get_world_size()\n"
        "        dist.all_gather_object(parts, (logits_TE.detach(), self.experts_TK))\n"
        "        everybody = [torch.cat(part) for part in zip(*parts)]\n"
        "        self.balance_loss = load_balancing_loss(*everybody, self.alpha)",
    ),
    Patch("balance-of-kept", _RETURNED, f"{_RETURNED}; {_OF_KEPT}"),
    Patch("renormalised", "weights_TK[tokens_A, choices_A], x", f"({_AGAIN})[tokens_A, choices_A], x"),
    Patch("input-detached", "self.gate(x_TD)", "self.gate(x_TD.detach())"),
    Patch("gate-detached", "weights_TK[tokens_A, choices_A]", "weights_TK.detach()[tokens_A, choices_A]"),
    Patch(
        "divided-already",
        _RETURNED,
        "world = dist.get_world_size()\n"
        "        x_BD = ThereAndBack.apply(x_BD, lambda x: x * 1, lambda g: g * world)\n"
        f"        y_BD = ThereAndBack.apply({_EXPERTS}, lambda y: y * 1, lambda g: g / world)\n"
        "        y_AD = return_to_tokens(y_BD, way)",
    ),
    Patch("experts-detached", _EXPERTS, f"{_EXPERTS}.detach()"),
    Patch("all-counts", _EXPERTS, "self.experts(x_BD, self.counts_E)", fails=True),
    Patch("skips", _RETURNED, f"if not len(x_BD): return torch.zeros_like(x_TD)\n        {_RETURNED}", fails=True),
    Patch(
        "skips",
        _CAPACITY,
        f"{_CAPACITY}\n"
        "        if not capacity:\n"
        "            self.counts_E = torch.zeros(self.num_experts, dtype=torch.int64)\n"
        "            return torch.zeros_like(x_TD)",
        fails=True,
    ),
    Patch("skips", _EXPERTS, f"{_EXPERTS} if len(x_BD) else x_TD.new_zeros(0, x_TD.shape[1])", fails=True),
    Patch("skips-experts", _EXPERTS, f"{_EXPERTS} if len(x_BD) else x_BD"),
    Patch(
        "one-by-one",
        _EXPERTS,
        "torch.cat([self.experts(rows, counts_L * (torch.arange(len(counts_L)) == e))\n"
        "                          for e, rows in enumerate(x_BD.split(counts_L.tolist()))])",
    ),
    Patch("first-weight", "weights_TK[tokens_A, choices_A]", "weights_TK[tokens_A, 0]"),
    Patch("one-choice", "top_k_gate(logits_TE, self.k)", "top_k_gate(logits_TE, 1)"),
    Patch("not-kept", "self.balance_loss", "balance_loss"),
    Patch("not-kept", _PLANNED, _PLANNED.replace("self.counts_E", "counts_E")),
    Patch("local-counts", _RETURNED, f"{_RETURNED}; self.counts_E = counts_L"),
    Patch(
        "counts-all",
        _RETURNED,
        f"{_RETURNED}\n        self.counts_E = torch.bincount(self.experts_TK.flatten(), minlength=self.num_experts)",
    ),
)

_SEND = "dist.all_reduce(parameter.grad)"
_DENSE = f"if parameter not in of_experts:\n            {_SEND}"
_DIVIDE = "parameter.grad /= dist.get_world_size()"

_AVERAGE_MOE_GRADIENTS = (
    Patch("experts-too-large", f"{_DENSE}\n        {_DIVIDE}", f"{_DENSE}\n            {_DIVIDE}"),
    Patch("experts-mixed", "if parameter not in of_experts:", "if True:"),
    Patch(
        "experts-added",
        f"{_DENSE}\n        {_DIVIDE}",
        f"{_SEND}\n        if parameter not in of_experts: {_DIVIDE}",
    ),
    Patch("experts-twice", _DIVIDE, f"{_DIVIDE}\n        if parameter in of_experts: {_DIVIDE}"),
    Patch("dense-added", _DIVIDE, f"if parameter in of_experts: {_DIVIDE}"),
    Patch("dense-alone", f"{_DENSE}\n        {_DIVIDE}", f"if parameter in of_experts: {_DIVIDE}"),
    Patch("only-divided", _SEND, "pass"),
    Patch("nothing", f"{_DENSE}\n        {_DIVIDE}", "pass"),
    Patch(
        "sends-experts",
        "if parameter not in of_experts:",
        "if parameter in of_experts: dist.all_reduce(parameter.grad.clone())\n        else:",
    ),
    Patch("one-layer", "for module in model.modules() if", "for module in [model['first']] if"),
    Patch("one-layer", "for module in model.modules() if", "for module in model.children() if"),
    Patch("by-axes", "parameter not in of_experts", "parameter.dim() < 3"),
    Patch("temporary", _SEND, "dist.all_reduce(parameter.grad * 1)"),
    Patch(
        "temporary",
        f"{_DENSE}\n        {_DIVIDE}",
        f"if parameter in of_experts: {_DIVIDE}\n        else: dist.all_reduce(parameter.grad / dist.get_world_size())",
    ),
    Patch("on-rank-0", _SEND, "dist.reduce(parameter.grad, 0)"),
    Patch("added", _DIVIDE, "pass"),
)

PATCHES = {
    "all_to_all": _ALL_TO_ALL,
    "all_to_all_autograd": _ALL_TO_ALL_AUTOGRAD,
    "dispatch_to_ranks": _DISPATCH_TO_RANKS,
    "return_to_tokens": _RETURN_TO_TOKENS,
    "ExpertParallelMoE": _EXPERT_PARALLEL_MOE,
    "average_moe_gradients": _AVERAGE_MOE_GRADIENTS,
}
