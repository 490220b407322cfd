"""Wrong solutions of lab 09."""

from __future__ import annotations

from tests.faults import Fault

_PROBS = "probs_TE = logits_TE.softmax(dim=-1)"
_TOP = "weights_TK, experts_TK = probs_TE.topk(k)"
_RENORMALISE = "weights_TK = weights_TK / weights_TK.sum(dim=-1, keepdim=True)"
_GATED = "return weights_TK, experts_TK"

_TOP_K_GATE = (
    Fault("top_k_gate", "always-1", "if k > 1:", "if True:"),
    Fault("top_k_gate", "not-renormalised", "if k > 1:", "if False:"),
    Fault("top_k_gate", "no-gradient", _GATED, "return weights_TK.detach(), experts_TK"),
    Fault("top_k_gate", "logits", _GATED, "return logits_TE.topk(k).values, experts_TK"),
    Fault("top_k_gate", "over-tokens", "softmax(dim=-1)", "softmax(dim=0)"),
    Fault("top_k_gate", "worst", ".topk(k)", ".topk(k, largest=False)"),
    Fault("top_k_gate", "backwards", _GATED, "return weights_TK.flip(1), experts_TK.flip(1)"),
    Fault("top_k_gate", None, _PROBS, f"{_PROBS}; logits_TE.data.sub_(1)"),
    Fault("top_k_gate", None, _GATED, "return weights_TK"),
)

_SHARE = "share_E = torch.bincount(experts_TK.flatten(), minlength=num_experts) / experts_TK.numel()"
_LOSS = "return alpha * num_experts * (share_E * mean_E).sum()"

_LOAD_BALANCING_LOSS = (
    Fault("load_balancing_loss", "not-divided", "experts_TK.numel()", "len(experts_TK)"),
    Fault("load_balancing_loss", "no-experts", "alpha * num_experts", "alpha"),
    Fault("load_balancing_loss", "no-alpha", "alpha * num_experts", "num_experts"),
    Fault("load_balancing_loss", "counts", " / experts_TK.numel()", ""),
    Fault(
        "load_balancing_loss",
        "first-only",
        _SHARE,
        "share_E = torch.bincount(experts_TK[:, 0], minlength=num_experts) / len(experts_TK)",
    ),
    Fault("load_balancing_loss", "sum-of-probs", ".mean(dim=0)", ".sum(dim=0)"),
    Fault("load_balancing_loss", "probs-only", "(share_E * mean_E)", "(mean_E * mean_E)"),
    Fault("load_balancing_loss", "shares-only", "(share_E * mean_E)", "(share_E * share_E).double()"),
    Fault("load_balancing_loss", "no-gradient", "(share_E * mean_E)", "(share_E * mean_E.detach())"),
    Fault("load_balancing_loss", "missing", ", minlength=num_experts", ""),
    Fault("load_balancing_loss", None, _LOSS, f"{_LOSS}.item()"),
    Fault("load_balancing_loss", None, _LOSS, f"experts_TK.zero_(); {_LOSS}"),
)

_FLAT = "expert_Q = experts_TK.T.flatten()  # all first choices, then all second ones"
_KEPT = "is_kept_Q = place_Q <= capacity"
_PLAN = "return order_A % num_tokens, order_A // num_tokens, queues_QE[is_kept_Q].sum(0)"
_PLACE = "place_Q = (queues_QE.cumsum(0) * queues_QE).sum(1)"

_DISPATCH = (
    Fault("dispatch", "unlimited", "place_Q <= capacity", "place_Q <= len(expert_Q)"),
    Fault("dispatch", "one-more", "<= capacity", "<= capacity + 1"),
    Fault("dispatch", "one-less", "<= capacity", "< capacity"),
    Fault(
        "dispatch",
        "by-token",
        f"{_FLAT}\n    queues_QE",
        "k = experts_TK.shape[1]; expert_Q = experts_TK.flatten()\n"
        "    if k > 1:\n"
        "        a = [(e, t, c) for e in range(num_experts)\n"
        "             for t, c in [(q // k, q % k) for q in range(len(expert_Q)) if expert_Q[q] == e][:capacity]]\n"
        "        pick = lambda i: torch.tensor([x[i] for x in a], dtype=torch.int64)\n"
        "        return pick(1), pick(2), torch.bincount(pick(0), minlength=num_experts)\n"
        "    queues_QE",
    ),
    Fault(
        "dispatch",
        "keeps-last",
        _PLACE,
        "place_Q = ((queues_QE.sum(0) + 1 - queues_QE.cumsum(0)) * queues_QE).sum(1)",
    ),
    Fault(
        "dispatch",
        "whole-token",
        _KEPT,
        f"{_KEPT}; is_kept_Q = is_kept_Q.view(-1, num_tokens).all(0).repeat(experts_TK.shape[1])",
    ),
    Fault("dispatch", "counts-all", "queues_QE[is_kept_Q].sum(0)", "queues_QE.sum(0)"),
    Fault("dispatch", "not-by-expert", _PLAN, f"order_A = order_A.sort().values; {_PLAN}"),
    Fault("dispatch", "first-only", "expert_Q = experts_TK.T.flatten()", "expert_Q = experts_TK[:, 0]"),
    Fault(
        "dispatch",
        "loop",
        _PLACE,
        "place_Q = torch.stack([(expert_Q[: q + 1] == expert_Q[q]).sum() for q in range(len(expert_Q))])",
    ),
    Fault(
        "dispatch",
        "loop",
        _PLACE,
        "seen_E, places = [0] * num_experts, []\n"
        "    for e in expert_Q.tolist():\n"
        "        seen_E[e] += 1\n"
        "        places.append(seen_E[e])\n"
        "    place_Q = torch.tensor(places)",
    ),
    Fault(
        "dispatch",
        "loop",
        _PLACE,
        "chosen = expert_Q.tolist()\n"
        "    place_Q = torch.tensor([chosen[: q + 1].count(e) for q, e in enumerate(chosen)])",
    ),
    Fault(
        "dispatch",
        "per-choice",
        _PLACE,
        "place_Q = torch.cat([(one.cumsum(0) * one).sum(1) for one in queues_QE.split(num_tokens)])",
    ),
    Fault(
        "dispatch",
        "decoded",
        "order_A % num_tokens, order_A // num_tokens, ",
        "order_A // experts_TK.shape[1], order_A % experts_TK.shape[1], ",
    ),
    Fault("dispatch", "queue-order", "argsort(stable=True)", "argsort()"),
    Fault("dispatch", "one-more", "place_Q <= capacity", "place_Q - 1 <= capacity"),
    Fault("dispatch", None, _PLAN, _PLAN.replace("order_A % num_tokens", "order_A // experts_TK.shape[1]")),
    Fault("dispatch", None, _FLAT, f"experts_TK.zero_(); {_FLAT}"),
    Fault("dispatch", None, "return order_A % num_tokens, order_A // num_tokens, ", "return order_A % num_tokens, "),
)

_SUM = "return torch.zeros_like(x_TD).index_add(0, tokens_A, weights_A[:, None] * y_AD)"

_COMBINE = (
    Fault(
        "combine",
        "passes-on",
        _SUM,
        "out = torch.zeros_like(x_TD).index_add(0, tokens_A, weights_A[:, None] * y_AD)\n"
        "    is_dropped_T = torch.bincount(tokens_A, minlength=len(x_TD)) == 0\n"
        "    return torch.where(is_dropped_T[:, None], x_TD, out)",
    ),
    Fault("combine", "residual", "torch.zeros_like(x_TD).", "x_TD."),
    Fault("combine", "unweighted", "weights_A[:, None] * y_AD", "y_AD"),
    Fault("combine", "overwrites", "index_add", "index_copy"),
    Fault(
        "combine",
        "mean",
        _SUM,
        "out = torch.zeros_like(x_TD).index_add(0, tokens_A, weights_A[:, None] * y_AD)\n"
        "    return out / torch.bincount(tokens_A, minlength=len(x_TD)).clamp(min=1)[:, None]",
    ),
    Fault(
        "combine",
        "renormalised",
        _SUM,
        "sum_T = weights_A.new_zeros(len(x_TD)).index_add(0, tokens_A, weights_A)\n"
        "    weights_A = weights_A / sum_T[tokens_A]\n"
        f"    {_SUM}",
    ),
    Fault("combine", "weights-detached", "weights_A[:, None]", "weights_A.detach()[:, None]"),
    Fault("combine", "rows-detached", "* y_AD", "* y_AD.detach()"),
    Fault("combine", "no-gradient", "weights_A[:, None] * y_AD)", "(weights_A[:, None] * y_AD).detach())"),
    Fault(
        "combine",
        None,
        _SUM,
        "x_TD.zero_(); return torch.zeros_like(x_TD).index_add(0, tokens_A, weights_A[:, None] * y_AD)",
    ),
    Fault("combine", None, _SUM, "return weights_A[:, None] * y_AD"),
)

_OWN = "y_WD[rank] = x_WD[rank]"
_SENDING = "sending = [dist.isend(x_WD[other], other) for other in others]"
_RECEIVING = "for other in others:\n        dist.recv(y_WD[other], other)"
_WAIT = "for one in sending:\n        one.wait()"
_RANKS = "rank, world = dist.get_rank(), dist.get_world_size()"

_ALL_TO_ALL = (
    Fault(
        "all_to_all",
        "nothing-moved",
        f"{_SENDING}\n    {_RECEIVING}\n    {_WAIT}\n    return y_WD",
        "return x_WD.clone()",
    ),
    Fault("all_to_all", "own-row", "isend(x_WD[other], other)", "isend(x_WD[rank], other)"),
    Fault(
        "all_to_all",
        "first-row",
        f"{_OWN}\n    {_SENDING}",
        "y_WD[rank] = x_WD[0]\n    sending = [dist.isend(x_WD[0], other) for other in others]",
    ),
    Fault(
        "all_to_all",
        "order-of-arrival",
        "return y_WD",
        "return torch.stack([y_WD[(rank + step) % world] for step in range(world)])",
    ),
    Fault("all_to_all", "backwards", "return y_WD", "return y_WD.flip(0)"),
    Fault("all_to_all", "keeps-nothing", _OWN, "y_WD.zero_()"),
    Fault(
        "all_to_all",
        "send-first",
        f"{_SENDING}\n    {_RECEIVING}\n    {_WAIT}",
        f"for other in others:\n        dist.send(x_WD[other], other)\n    {_RECEIVING}",
    ),
    Fault(
        "all_to_all",
        "receive-first",
        f"{_SENDING}\n    {_RECEIVING}\n    {_WAIT}",
        f"{_RECEIVING}\n    {_SENDING}\n    {_WAIT}",
    ),
    Fault("all_to_all", "unwaited", f"{_WAIT}\n", ""),
    Fault("all_to_all", "itself", "if other != rank", ""),
    Fault("all_to_all", "scattered", "x_WD.contiguous(), torch.empty_like(", "x_WD, torch.empty_like("),
    Fault(
        "all_to_all",
        "collective",
        f"{_SENDING}\n    {_RECEIVING}\n    {_WAIT}",
        "dist.all_to_all_single(y_WD, x_WD)",
    ),
    Fault(
        "all_to_all",
        "collective",
        f"{_SENDING}\n    {_RECEIVING}\n    {_WAIT}",
        "dist.all_to_all(list(y_WD), list(x_WD))",
    ),
    Fault(
        "all_to_all",
        "collective",
        f"{_SENDING}\n    {_RECEIVING}\n    {_WAIT}",
        "y_WD = all_to_all_single_autograd(x_WD, [1] * world, [1] * world, dist.group.WORLD) * 1",
    ),
    Fault("all_to_all", "overwrites", "torch.empty_like(x_WD, memory_format=torch.contiguous_format)", "x_WD"),
    Fault(
        "all_to_all",
        "overwrites",
        _SENDING,
        "y_WD = x_WD.clone()\n    sending = [dist.isend(y_WD[other], other) for other in others]",
    ),
    Fault(
        "all_to_all",
        "too-many",
        _SENDING,
        f"{_SENDING}\n    sending += [dist.isend(x_WD[other], other) for other in others]\n"
        "    for other in others: dist.recv(y_WD[other], other)",
    ),
    Fault("all_to_all", None, _OWN, "y_WD[rank] = x_WD[rank]\n    if rank > 0: return y_WD"),
    Fault("all_to_all", None, "range(world)", "range(min(2, world))"),
    Fault("all_to_all", None, "return y_WD", "x_WD.zero_(); return y_WD"),
)

_MOVED = "moved_BD = rows_AD.new_empty(sum(receives), *row_shape)"
_SINGLE = "dist.all_to_all_single(moved_BD, rows_AD.contiguous(), receives, sends)"
_HOME = "lambda g_BD: move(g_BD, receives, sends)"
_APPLY = f"return ThereAndBack.apply(x_AD, lambda x_AD: move(x_AD, sends, receives), {_HOME})"

_ALL_TO_ALL_AUTOGRAD = (
    Fault("all_to_all_autograd", "no-gradient", _APPLY, "return move(x_AD.detach(), sends, receives)"),
    Fault("all_to_all_autograd", "wrong-sides", _SINGLE, _SINGLE.replace("receives, sends", "sends, receives")),
    Fault("all_to_all_autograd", "contiguous", ".contiguous()", ""),
    Fault(
        "all_to_all_autograd",
        "library",
        _APPLY,
        "return all_to_all_single_autograd(x_AD, receives, sends, dist.group.WORLD) * 1.0",
    ),
    Fault(
        "all_to_all_autograd",
        "library",
        _APPLY,
        "import torch.distributed.nn.functional as functional\n"
        "    return functional.all_to_all_single(x_AD.new_empty(sum(receives), *row_shape), x_AD, receives, sends)",
    ),
    Fault(
        "all_to_all_autograd",
        "tensors",
        _SINGLE,
        _SINGLE.replace("receives, sends", "torch.tensor(receives), torch.tensor(sends)"),
    ),
    Fault("all_to_all_autograd", "divided", _HOME, f"{_HOME} / dist.get_world_size()"),
    Fault("all_to_all_autograd", "times", _HOME, f"{_HOME} * dist.get_world_size()"),
    Fault("all_to_all_autograd", "stays", _HOME, "lambda g_BD: g_BD * 1"),
    Fault(
        "all_to_all_autograd",
        "backwards",
        _APPLY,
        f"y = {_APPLY.removeprefix('return ')}; return torch.cat(y.split(receives)[::-1])",
    ),
    Fault(
        "all_to_all_autograd",
        "skips",
        _MOVED,
        f"{_MOVED}\n        if not (sum(sends) and sum(receives)): return moved_BD",
    ),
    Fault("all_to_all_autograd", "other-messages", _MOVED, f"dist.barrier(); {_MOVED}"),
    Fault("all_to_all_autograd", None, _APPLY, f"if dist.get_rank(): return x_AD\n    {_APPLY}"),
    Fault("all_to_all_autograd", None, _APPLY, f"if len(sends) > 2: return x_AD * 1\n    {_APPLY}"),
    Fault("all_to_all_autograd", None, _APPLY, f"x_AD.data.mul_(2); {_APPLY}"),
)

_CAME = "came_WL = all_to_all(sent_WL)"
_SIZES = "sends, receives = sent_WL.sum(1).tolist(), came_WL.sum(1).tolist()"
_ARRIVED = "arrived_BD = all_to_all_autograd(x_AD, sends, receives)"
_DISPATCHED = "return arrived_BD[order_B], came_WL.sum(0), (sends, receives, order_B)"

_DISPATCH_TO_RANKS = (
    Fault("dispatch_to_ranks", "by-rank", "arrived_BD[order_B],", "arrived_BD,"),
    Fault("dispatch_to_ranks", "inverse", "arrived_BD[order_B],", "arrived_BD[order_B.argsort()],"),
    Fault("dispatch_to_ranks", "nothing-moved", "arrived_BD[order_B],", "x_AD * 1,"),
    Fault(
        "dispatch_to_ranks",
        "as-arrived",
        "torch.arange(sent_WL.shape[1]).repeat(world)",
        "torch.arange(sent_WL.shape[1]).repeat_interleave(world)",
    ),
    Fault("dispatch_to_ranks", "unstable", "argsort(stable=True)", "argsort()"),
    Fault("dispatch_to_ranks", "tensors", _SIZES, _SIZES.replace(".tolist()", "")),
    Fault("dispatch_to_ranks", "own-counts", "came_WL.sum(0),", "sent_WL[dist.get_rank()],"),
    Fault("dispatch_to_ranks", "sent-counts", "came_WL.sum(0),", "sent_WL.sum(0),"),
    Fault("dispatch_to_ranks", "by-source", "came_WL.sum(0),", "came_WL.sum(1),"),
    Fault("dispatch_to_ranks", "own-sizes", _CAME, "came_WL = sent_WL"),
    Fault("dispatch_to_ranks", "swapped", _DISPATCHED, _DISPATCHED.replace("sends, receives", "receives, sends")),
    Fault("dispatch_to_ranks", "order-inverse", _DISPATCHED, _DISPATCHED.replace("order_B)", "order_B.argsort())")),
    Fault("dispatch_to_ranks", "no-gradient", "(x_AD, sends, receives)", "(x_AD.detach(), sends, receives)"),
    Fault(
        "dispatch_to_ranks",
        "gathers",
        _CAME,
        "tables = [torch.empty_like(sent_WL) for _ in range(world)]; dist.all_gather(tables, sent_WL.contiguous())\n"
        "    came_WL = torch.stack([one[dist.get_rank()] for one in tables])",
    ),
    Fault("dispatch_to_ranks", "counts-again", _CAME, f"{_CAME}; all_to_all(sent_WL.sum(1))"),
    Fault(
        "dispatch_to_ranks",
        "skips",
        _ARRIVED,
        "arrived_BD = all_to_all_autograd(x_AD, sends, receives) if sum(receives) else x_AD[:0]",
    ),
    Fault("dispatch_to_ranks", None, _ARRIVED, f"{_ARRIVED} if dist.get_rank() else x_AD"),
    Fault("dispatch_to_ranks", None, "expert_B = torch.arange(", "expert_B = 0 if world > 2 else torch.arange("),
    Fault("dispatch_to_ranks", None, _DISPATCHED, f"counts_E.zero_(); {_DISPATCHED}"),
)

_RETURN = "return all_to_all_autograd(y_BD[order_B.argsort()], receives, sends)"

_RETURN_TO_TOKENS = (
    Fault("return_to_tokens", "order-kept", "y_BD[order_B.argsort()]", "y_BD"),
    Fault("return_to_tokens", "order-again", "order_B.argsort()", "order_B"),
    Fault(
        "return_to_tokens",
        "order-after",
        _RETURN,
        "return all_to_all_autograd(y_BD, receives, sends)[order_B.argsort()]",
    ),
    Fault("return_to_tokens", "nothing-moved", _RETURN, "return y_BD * 1"),
    Fault("return_to_tokens", "wrong-sides", "receives, sends)", "sends, receives)"),
    Fault("return_to_tokens", "no-gradient", "y_BD[", "y_BD.detach()["),
    Fault(
        "return_to_tokens",
        "divided",
        _RETURN,
        "y_BD = ThereAndBack.apply(y_BD, lambda y: y * 1, lambda g: g / dist.get_world_size())\n    " + _RETURN,
    ),
    Fault(
        "return_to_tokens",
        "more-messages",
        "sends, receives, order_B = way",
        "sends, receives, order_B = way\n    all_to_all(torch.tensor(receives))",
    ),
    Fault("return_to_tokens", "skips", _RETURN, f"if not len(y_BD): return y_BD\n    {_RETURN}"),
    Fault("return_to_tokens", None, _RETURN, f"if dist.get_rank(): return y_BD\n    {_RETURN}"),
    Fault("return_to_tokens", None, _RETURN, f"if len(sends) > 2: order_B = order_B.flip(0)\n    {_RETURN}"),
    Fault("return_to_tokens", None, _RETURN, f"order_B.zero_() if len(order_B) else 0; y_BD.data.zero_(); {_RETURN}"),
)

_COMBINED = "return combine(y_AD, tokens_A, weights_TK[tokens_A, choices_A], x_TD)"
_CAPACITY = "capacity = capacity_of(len(x_TD), self.k, self.num_experts, self.factor)"
_PLANNED = (
    "tokens_A, choices_A, self.counts_E = dispatch(self.experts_TK, self.num_experts, capacity)\n"
    "        x_BD, counts_L, way = dispatch_to_ranks(x_TD[tokens_A], self.counts_E)"
)
_BACK = "y_AD = return_to_tokens(self.experts(x_BD, counts_L), way)"

_EXPERT_PARALLEL_MOE = (
    Fault(
        "ExpertParallelMoE",
        "passes-on",
        _COMBINED,
        "out = combine(y_AD, tokens_A, weights_TK[tokens_A, choices_A], x_TD)\n"
        "        is_dropped_T = torch.bincount(tokens_A, minlength=len(x_TD)) == 0\n"
        "        return torch.where(is_dropped_T[:, None], x_TD, out)",
    ),
    Fault("ExpertParallelMoE", "residual", "return combine", "return x_TD + combine"),
    Fault("ExpertParallelMoE", "unweighted", "weights_TK[tokens_A, choices_A]", "weights_TK[tokens_A, choices_A] ** 0"),
    Fault("ExpertParallelMoE", "no-limit", _CAPACITY, "capacity = len(x_TD) * self.k"),
    Fault(
        "ExpertParallelMoE",
        "shared-capacity",
        _CAPACITY,
        "num_T = torch.tensor(len(x_TD)); dist.all_reduce(num_T)\n"
        "        capacity = capacity_of(num_T.item(), self.k, self.num_experts, self.factor)",
    ),
    Fault(
        "ExpertParallelMoE",
        "balance-of-all",
        "self.balance_loss = load_balancing_loss(logits_TE, self.experts_TK, self.alpha)",
        "parts = [None] * dist.get_world_size()\n"
        "        dist.all_gather_object(parts, (logits_TE.detach(), self.experts_TK))\n"
        "        everybody = [torch.cat(part) for part in zip(*parts)]\n"
        "        self.balance_loss = load_balancing_loss(*everybody, self.alpha)",
    ),
    Fault(
        "ExpertParallelMoE",
        "gate-detached",
        "weights_TK[tokens_A, choices_A]",
        "weights_TK.detach()[tokens_A, choices_A]",
    ),
    Fault(
        "ExpertParallelMoE",
        "divided-already",
        _BACK,
        "world = dist.get_world_size()\n"
        "        x_BD = ThereAndBack.apply(x_BD, lambda x: x * 1, lambda g: g * world)\n"
        "        y_BD = ThereAndBack.apply(self.experts(x_BD, counts_L), lambda y: y * 1, lambda g: g / world)\n"
        "        y_AD = return_to_tokens(y_BD, way)",
    ),
    Fault(
        "ExpertParallelMoE", "experts-detached", "self.experts(x_BD, counts_L)", "self.experts(x_BD, counts_L).detach()"
    ),
    Fault("ExpertParallelMoE", "all-counts", "self.experts(x_BD, counts_L)", "self.experts(x_BD, self.counts_E)"),
    Fault(
        "ExpertParallelMoE",
        "skips",
        _BACK,
        "if not len(x_BD): return torch.zeros_like(x_TD)\n        " + _BACK,
    ),
    Fault(
        "ExpertParallelMoE",
        "skips",
        _CAPACITY,
        f"{_CAPACITY}\n"
        "        if not capacity:\n"
        "            self.counts_E = torch.zeros(self.num_experts, dtype=torch.int64)\n"
        "            return torch.zeros_like(x_TD)",
    ),
    Fault(
        "ExpertParallelMoE",
        "skips",
        "self.experts(x_BD, counts_L)",
        "self.experts(x_BD, counts_L) if len(x_BD) else x_TD.new_zeros(0, x_TD.shape[1])",
    ),
    Fault(
        "ExpertParallelMoE",
        "skips-experts",
        "self.experts(x_BD, counts_L)",
        "self.experts(x_BD, counts_L) if len(x_BD) else x_BD",
    ),
    Fault(
        "ExpertParallelMoE",
        "one-by-one",
        "self.experts(x_BD, counts_L)",
        "torch.cat([self.experts(rows, counts_L * (torch.arange(len(counts_L)) == e))\n"
        "                          for e, rows in enumerate(x_BD.split(counts_L.tolist()))])",
    ),
    Fault(
        "ExpertParallelMoE",
        "first-weight",
        "weights_TK[tokens_A, choices_A]",
        "weights_TK[tokens_A, 0]",
    ),
    Fault("ExpertParallelMoE", "one-choice", "top_k_gate(logits_TE, self.k)", "top_k_gate(logits_TE, 1)"),
    Fault("ExpertParallelMoE", "not-kept", _PLANNED, _PLANNED.replace("self.counts_E", "counts_E")),
    Fault("ExpertParallelMoE", "not-kept", "self.balance_loss", "balance_loss"),
    Fault("ExpertParallelMoE", "local-counts", _BACK, f"{_BACK}; self.counts_E = counts_L"),
    Fault(
        "ExpertParallelMoE",
        "counts-all",
        _BACK,
        f"{_BACK}\n        self.counts_E = torch.bincount(self.experts_TK.flatten(), minlength=self.num_experts)",
    ),
    Fault("ExpertParallelMoE", None, _BACK, f"{_BACK}; self.experts_TK = self.experts_TK[:, :0]"),
    Fault("ExpertParallelMoE", None, _COMBINED, f"if dist.get_rank(): return x_TD * 1\n        {_COMBINED}"),
    Fault("ExpertParallelMoE", None, _COMBINED, f"if dist.get_world_size() > 2: y_AD = y_AD * 2\n        {_COMBINED}"),
    Fault("ExpertParallelMoE", None, _COMBINED, f"x_TD.data.mul_(2); {_COMBINED}"),
)

_EXPERT = "if parameter not in of_experts:\n            dist.all_reduce(parameter.grad)"
_DIVIDE = "parameter.grad /= dist.get_world_size()"

_AVERAGE_MOE_GRADIENTS = (
    Fault(
        "average_moe_gradients",
        "experts-too-large",
        f"{_EXPERT}\n        {_DIVIDE}",
        f"{_EXPERT}\n            {_DIVIDE}",
    ),
    Fault("average_moe_gradients", "experts-mixed", "if parameter not in of_experts:", "if True:"),
    Fault(
        "average_moe_gradients",
        "experts-added",
        f"{_EXPERT}\n        {_DIVIDE}",
        f"dist.all_reduce(parameter.grad)\n        if parameter not in of_experts: {_DIVIDE}",
    ),
    Fault(
        "average_moe_gradients",
        "experts-twice",
        _DIVIDE,
        f"{_DIVIDE}\n        if parameter in of_experts: {_DIVIDE}",
    ),
    Fault(
        "average_moe_gradients",
        "dense-added",
        _DIVIDE,
        f"if parameter in of_experts: {_DIVIDE}",
    ),
    Fault(
        "average_moe_gradients",
        "dense-alone",
        f"{_EXPERT}\n        {_DIVIDE}",
        f"if parameter in of_experts: {_DIVIDE}",
    ),
    Fault("average_moe_gradients", "only-divided", "dist.all_reduce(parameter.grad)", "pass"),
    Fault("average_moe_gradients", "nothing", f"{_EXPERT}\n        {_DIVIDE}", "pass"),
    Fault(
        "average_moe_gradients",
        "sends-experts",
        "if parameter not in of_experts:",
        "if parameter in of_experts: dist.all_reduce(parameter.grad.clone())\n        else:",
    ),
    Fault(
        "average_moe_gradients",
        "temporary",
        f"{_EXPERT}\n        {_DIVIDE}",
        f"if parameter in of_experts: {_DIVIDE}\n        else: dist.all_reduce(parameter.grad / dist.get_world_size())",
    ),
    Fault(
        "average_moe_gradients", "temporary", "dist.all_reduce(parameter.grad)", "dist.all_reduce(parameter.grad * 1)"
    ),
    Fault("average_moe_gradients", "on-rank-0", "dist.all_reduce(parameter.grad)", "dist.reduce(parameter.grad, 0)"),
    Fault("average_moe_gradients", "added", _DIVIDE, "pass"),
    Fault("average_moe_gradients", None, _DIVIDE, "parameter.grad /= dist.get_world_size() if dist.get_rank() else 1"),
    Fault("average_moe_gradients", None, _DIVIDE, "parameter.grad /= 2 if dist.get_world_size() > 1 else 1"),
    Fault("average_moe_gradients", None, _DIVIDE, f"{_DIVIDE}; parameter.data.zero_()"),
)

_LOAD = "load_E = torch.bincount(experts_TK.flatten(), minlength=len(bias_E)).to(bias_E.dtype)"
_BIASED = "return weights_TK, experts_TK, bias_E + gamma * (load_E.mean() - load_E).sign()"

_BALANCE_BY_BIAS = (
    Fault("balance_by_bias", "no-bias", "(scores_TE + bias_E)", "scores_TE"),
    Fault("balance_by_bias", "minus", "(scores_TE + bias_E)", "(scores_TE - bias_E)"),
    Fault("balance_by_bias", "softmax", "logits_TE.sigmoid()", "logits_TE.softmax(-1)"),
    Fault("balance_by_bias", "weighs-bias", "scores_TE.gather(", "(scores_TE + bias_E).gather("),
    Fault("balance_by_bias", "not-renormalised", "if k > 1:", "if False:"),
    Fault("balance_by_bias", "wrong-way", "bias_E + gamma", "bias_E - gamma"),
    Fault("balance_by_bias", "by-size", ".sign()", ""),
    Fault("balance_by_bias", "unchanged", _BIASED, "return weights_TK, experts_TK, bias_E"),
    Fault("balance_by_bias", "steps-only", "bias_E + gamma", "gamma"),
    Fault("balance_by_bias", "inside", "(scores_TE + bias_E)", "(logits_TE + bias_E).sigmoid()"),
    Fault(
        "balance_by_bias",
        "inside",
        "scores_TE = logits_TE.sigmoid()",
        "scores_TE = (logits_TE + bias_E).sigmoid() - bias_E",
    ),
    Fault("balance_by_bias", "floored", "load_E.mean()", "load_E.sum() // len(bias_E)"),
    Fault("balance_by_bias", "first-only", "experts_TK.flatten(), minlength", "experts_TK[:, 0], minlength"),
    Fault("balance_by_bias", None, _LOAD, f"{_LOAD}; bias_E += gamma"),
    Fault("balance_by_bias", None, "scores_TE.gather(", "scores_TE.detach().gather("),
)

FAULTS: tuple[Fault, ...] = (
    *_TOP_K_GATE,
    *_LOAD_BALANCING_LOSS,
    *_DISPATCH,
    *_COMBINE,
    *_ALL_TO_ALL,
    *_ALL_TO_ALL_AUTOGRAD,
    *_DISPATCH_TO_RANKS,
    *_RETURN_TO_TOKENS,
    *_EXPERT_PARALLEL_MOE,
    *_AVERAGE_MOE_GRADIENTS,
    *_BALANCE_BY_BIAS,
)
