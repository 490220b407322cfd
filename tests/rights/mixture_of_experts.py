"""Right answers in other styles for lab 09."""

from __future__ import annotations

from tests.rights import Right

_GATE = """probs_TE = logits_TE.softmax(dim=-1)
    weights_TK, experts_TK = probs_TE.topk(k)
    if k > 1:
        weights_TK = weights_TK / weights_TK.sum(dim=-1, keepdim=True)
    return weights_TK, experts_TK"""

_TOP_K_GATE = (
    Right(
        "top_k_gate",
        _GATE,
        "best_TK, experts_TK = torch.topk(logits_TE, k, dim=1)\n"
        "    if k == 1:\n        return (best_TK - logits_TE.logsumexp(1, keepdim=True)).exp(), experts_TK\n"
        "    return best_TK.softmax(1), experts_TK",
    ),
    Right(
        "top_k_gate",
        _GATE,
        "probs_TE = F.softmax(logits_TE, 1)\n"
        "    experts_TK = probs_TE.argsort(dim=1, descending=True)[:, :k]\n"
        "    weights_TK = probs_TE.gather(1, experts_TK)\n"
        "    return [F.normalize(weights_TK, p=1, dim=1) if k > 1 else weights_TK, experts_TK]",
    ),
)

_LOSS = """num_experts = logits_TE.shape[1]
    share_E = torch.bincount(experts_TK.flatten(), minlength=num_experts) / experts_TK.numel()
    mean_E = logits_TE.softmax(dim=-1).mean(dim=0)
    return alpha * num_experts * (share_E * mean_E).sum()"""

_LOAD_BALANCING_LOSS = (
    Right(
        "load_balancing_loss",
        _LOSS,
        "probs_TE = logits_TE.softmax(1)\n"
        "    chosen_TKE = F.one_hot(experts_TK, probs_TE.shape[1]).to(probs_TE.dtype)\n"
        "    return alpha * probs_TE.shape[1] * chosen_TKE.mean((0, 1)) @ probs_TE.mean(0)",
    ),
    Right(
        "load_balancing_loss",
        _LOSS,
        "(T, E), K = logits_TE.shape, experts_TK.shape[1]\n"
        "    mean_E = logits_TE.log_softmax(1).exp().sum(0) / T\n"
        "    return sum((experts_TK == e).sum() / (T * K) * mean_E[e] for e in range(E)) * E * alpha",
    ),
)

_PLACES = """queues_QE = F.one_hot(expert_Q, num_experts)
    place_Q = (queues_QE.cumsum(0) * queues_QE).sum(1)
    is_kept_Q = place_Q <= capacity
    last_Q = expert_Q.masked_fill(~is_kept_Q, num_experts)  # the dropped ones sort behind all experts
    order_A = last_Q.argsort(stable=True)[: is_kept_Q.sum()]
    return order_A % num_tokens, order_A // num_tokens, queues_QE[is_kept_Q].sum(0)"""

_DISPATCH = (
    Right(
        "dispatch",
        _PLACES,
        "kept = [(expert_Q == e).nonzero()[:capacity, 0] for e in range(num_experts)]\n"
        "    order_A = torch.cat(kept)\n"
        "    return order_A % num_tokens, order_A // num_tokens, torch.tensor([len(queue) for queue in kept])",
    ),
    Right(
        "dispatch",
        _PLACES,
        "counts_E = torch.bincount(expert_Q, minlength=num_experts)\n"
        "    order_Q = torch.sort(expert_Q, stable=True).indices\n"
        "    starts_E = counts_E.cumsum(0) - counts_E\n"
        "    place_Q = torch.arange(len(order_Q)) - starts_E[expert_Q[order_Q]]\n"
        "    order_A = order_Q[place_Q < capacity]\n"
        "    return [order_A.remainder(num_tokens), order_A.div(num_tokens, rounding_mode='floor'),\n"
        "            counts_E.clamp(max=capacity)]",
    ),
)

_SUM = "return torch.zeros_like(x_TD).index_add(0, tokens_A, weights_A[:, None] * y_AD)"

_COMBINE = (
    Right(
        "combine",
        _SUM,
        "place_TA = (torch.arange(len(x_TD))[:, None] == tokens_A).to(y_AD.dtype)\n"
        "    return (place_TA * weights_A) @ y_AD",
    ),
    Right(
        "combine",
        _SUM,
        "y_TD = x_TD.new_zeros(x_TD.shape)\n"
        "    y_TD.scatter_add_(0, tokens_A[:, None].expand_as(y_AD), torch.einsum('a,ad->ad', weights_A, y_AD))\n"
        "    return y_TD",
    ),
)

_MESSAGES = """y_WD[rank] = x_WD[rank]
    sending = [dist.isend(x_WD[other], other) for other in others]
    for other in others:
        dist.recv(y_WD[other], other)
    for one in sending:
        one.wait()
    return y_WD"""

_ALL_TO_ALL = (
    Right(
        "all_to_all",
        _MESSAGES,
        "y_WD[rank] = x_WD[rank]\n"
        "    works = [dist.irecv(y_WD[other], other) for other in others]\n"
        "    works += [dist.isend(x_WD[other].clone(), other) for other in others]\n"
        "    for work in works:\n        work.wait()\n    return y_WD",
    ),
    Right(
        "all_to_all",
        _MESSAGES,
        "rows = [x_WD[rank].clone() if other == rank else torch.empty_like(x_WD[rank]) for other in range(world)]\n"
        "    for step in range(1, world):\n"
        "        to, source = (rank + step) % world, (rank - step) % world\n"
        "        sending = dist.isend(x_WD[to], to)\n"
        "        dist.recv(rows[source], source)\n"
        "        sending.wait()\n"
        "    return torch.stack(rows)",
    ),
    Right(
        "all_to_all",
        _MESSAGES,
        "y_WD.copy_(x_WD)\n"
        "    ops = [dist.P2POp(op, t[other], other) for other in others\n"
        "           for op, t in ((dist.isend, x_WD), (dist.irecv, y_WD))]\n"
        "    for work in dist.batch_isend_irecv(ops) if ops else []:\n        work.wait()\n    return y_WD",
    ),
)

_MOVE = """row_shape = x_AD.shape[1:]

    def move(rows_AD, sends, receives):
        moved_BD = rows_AD.new_empty(sum(receives), *row_shape)
        dist.all_to_all_single(moved_BD, rows_AD.contiguous(), receives, sends)
        return moved_BD

    return """
_MOVE += "ThereAndBack.apply(x_AD, lambda x_AD: move(x_AD, sends, receives), lambda g_BD: move(g_BD, receives, sends))"

_ALL_TO_ALL_AUTOGRAD = (
    Right(
        "all_to_all_autograd",
        _MOVE,
        "class Travel(torch.autograd.Function):\n"
        "        @staticmethod\n"
        "        def forward(ctx, x, sends, receives):\n"
        "            ctx.sizes = receives, sends\n"
        "            y = torch.empty((sum(receives), *x.shape[1:]), dtype=x.dtype)\n"
        "            dist.all_to_all_single(y, torch.cat(x.split(sends)), receives, input_split_sizes=sends)\n"
        "            return y\n\n"
        "        @staticmethod\n"
        "        def backward(ctx, g):\n"
        "            return Travel.apply(g, *ctx.sizes), None, None\n\n"
        "    return Travel.apply(x_AD, sends, receives)",
    ),
    Right(
        "all_to_all_autograd",
        _MOVE,
        "rank, others = dist.get_rank(), [r for r in range(dist.get_world_size()) if r != dist.get_rank()]\n\n"
        "    def there(x, to=sends, came=receives):\n"
        "        mine = list(x.contiguous().split(to))\n"
        "        got = [x.new_empty(n, *x.shape[1:]) for n in came]\n"
        "        got[rank].copy_(mine[rank])\n"
        "        works = [dist.isend(mine[r], r) for r in others if to[r]]\n"
        "        works += [dist.irecv(got[r], r) for r in others if came[r]]\n"
        "        for work in works:\n            work.wait()\n"
        "        return torch.cat(got)\n\n"
        "    return ThereAndBack.apply(x_AD, there, lambda g: there(g, receives, sends))",
    ),
)

_TO_RANKS = """came_WL = all_to_all(sent_WL)
    sends, receives = sent_WL.sum(1).tolist(), came_WL.sum(1).tolist()
    arrived_BD = all_to_all_autograd(x_AD, sends, receives)
    expert_B = torch.arange(sent_WL.shape[1]).repeat(world).repeat_interleave(came_WL.flatten())
    order_B = expert_B.argsort(stable=True)
    return arrived_BD[order_B], came_WL.sum(0), (sends, receives, order_B)"""

_DISPATCH_TO_RANKS = (
    Right(
        "dispatch_to_ranks",
        _TO_RANKS,
        "came_WL = torch.empty_like(sent_WL)\n"
        "    dist.all_to_all_single(came_WL, sent_WL.contiguous())\n"
        "    sends, receives = [int(n) for n in sent_WL.sum(1)], [int(n) for n in came_WL.sum(1)]\n"
        "    arrived_BD = all_to_all_autograd(x_AD, sends, receives)\n"
        "    pieces = torch.arange(sum(receives)).split(came_WL.flatten().tolist())\n"
        "    L = came_WL.shape[1]\n"
        "    order_B = torch.cat([pieces[w * L + e] for e in range(L) for w in range(world)])\n"
        "    return arrived_BD.index_select(0, order_B), came_WL.sum(0), [sends, receives, order_B]",
    ),
    Right(
        "dispatch_to_ranks",
        _TO_RANKS,
        "came_WL = all_to_all(sent_WL.to(torch.int32)).long()\n"
        "    sends, receives = sent_WL.sum(1).tolist(), came_WL.sum(1).tolist()\n"
        "    arrived_BD = all_to_all_autograd(x_AD, sends, receives)\n"
        "    expert_B = [e for row in came_WL.tolist() for e, n in enumerate(row) for _ in range(n)]\n"
        "    order_B = torch.tensor(sorted(range(len(expert_B)), key=expert_B.__getitem__), dtype=torch.int64)\n"
        "    return arrived_BD[order_B], came_WL.sum(dim=0), (sends, receives, order_B)",
    ),
)

_UNDONE = "return all_to_all_autograd(y_BD[order_B.argsort()], receives, sends)"

_RETURN_TO_TOKENS = (
    Right(
        "return_to_tokens",
        _UNDONE,
        "return all_to_all_autograd(torch.empty_like(y_BD).index_copy(0, order_B, y_BD), receives, sends)",
    ),
    Right(
        "return_to_tokens",
        _UNDONE,
        "inverse_B = torch.empty_like(order_B)\n"
        "    inverse_B[order_B] = torch.arange(len(order_B))\n"
        "    y_AD = all_to_all_autograd(y_BD.index_select(0, inverse_B), receives, sends)\n"
        "    return y_AD.view(sum(sends), y_BD.shape[1])",
    ),
)

_ROUTE = """x_BD, counts_L, way = dispatch_to_ranks(x_TD[tokens_A], self.counts_E)
        y_AD = return_to_tokens(self.experts(x_BD, counts_L), way)
        return combine(y_AD, tokens_A, weights_TK[tokens_A, choices_A], x_TD)"""

_EXPERT_PARALLEL_MOE = (
    Right(
        "ExpertParallelMoE",
        _ROUTE,
        "weights_A = weights_TK[tokens_A, choices_A]\n"
        "        mine_BD, counts_L, way = dispatch_to_ranks(x_TD.index_select(0, tokens_A), self.counts_E)\n"
        "        y_AD = weights_A.unsqueeze(1) * return_to_tokens(self.experts(mine_BD, counts_L), way)\n"
        "        return combine(y_AD, tokens_A, torch.ones_like(weights_A), x_TD)",
    ),
    Right(
        "ExpertParallelMoE",
        "self.balance_loss = load_balancing_loss(logits_TE, self.experts_TK, self.alpha)\n"
        "        capacity = capacity_of(len(x_TD), self.k, self.num_experts, self.factor)",
        "self.balance_loss = load_balancing_loss(x_TD @ self.gate.weight.T, self.experts_TK, self.alpha)\n"
        "        T = x_TD.shape[0]\n"
        "        capacity = T if self.factor is None else int(self.factor * self.k * T / self.num_experts)",
    ),
)

_AVERAGE = """for parameter in model.parameters():
        if parameter not in of_experts:
            dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()"""

_AVERAGE_MOE_GRADIENTS = (
    Right(
        "average_moe_gradients",
        _AVERAGE,
        "world, shared = dist.get_world_size(), [p for p in model.parameters() if p not in of_experts]\n"
        "    flat = torch.cat([p.grad.flatten() for p in shared]) / world\n"
        "    dist.all_reduce(flat)\n"
        "    for p, mean in zip(shared, flat.split([p.numel() for p in shared])):\n"
        "        p.grad = mean.view_as(p).clone()\n"
        "    for p in of_experts:\n        p.grad.div_(world)",
    ),
    Right(
        "average_moe_gradients",
        _AVERAGE,
        "world, shared = dist.get_world_size(), [p for p in model.parameters() if p not in of_experts]\n"
        "    works = [dist.all_reduce(p.grad, async_op=True) for p in shared]\n"
        "    for work in works:\n        work.wait()\n"
        "    for p in model.parameters():\n        p.grad.mul_(1 / world)",
    ),
    Right(
        "average_moe_gradients",
        _AVERAGE,
        "world, shared = dist.get_world_size(), [p for p in model.parameters() if p not in of_experts]\n"
        "    flat = torch.cat([p.grad.flatten() for p in shared])\n"
        "    flat = F.pad(flat, (0, -len(flat) % world))\n"
        "    own = flat.new_empty(len(flat) // world)\n"
        "    dist.reduce_scatter_tensor(own, flat)\n"
        "    dist.all_gather_into_tensor(flat, own)\n"
        "    sizes = [p.numel() for p in shared]\n"
        "    for p, total in zip(shared, flat[: sum(sizes)].split(sizes)):\n"
        "        p.grad = total.view_as(p).clone()\n"
        "    for p in model.parameters():\n        p.grad /= world",
    ),
)

_BIAS = "bias_E + gamma * (load_E.mean() - load_E).sign()"

_BALANCE_BY_BIAS = (
    Right("balance_by_bias", "minlength=len(bias_E)).to(bias_E.dtype)", "minlength=len(bias_E)).float()"),
    Right(
        "balance_by_bias",
        _BIAS,
        "torch.where(load_E > load_E.mean(), bias_E - gamma,\n"
        "                                               torch.where(load_E < load_E.mean(), bias_E + gamma, bias_E))",
    ),
    Right(
        "balance_by_bias",
        f"load_E = torch.bincount(experts_TK.flatten(), minlength=len(bias_E)).to(bias_E.dtype)\n"
        f"    return weights_TK, experts_TK, {_BIAS}",
        "load_E = F.one_hot(experts_TK, len(bias_E)).sum((0, 1))\n"
        "    is_under = (load_E * len(bias_E) < experts_TK.numel()).to(bias_E.dtype)\n"
        "    is_over = (load_E * len(bias_E) > experts_TK.numel()).to(bias_E.dtype)\n"
        "    return weights_TK, experts_TK, bias_E.clone().add_(is_under - is_over, alpha=gamma)",
    ),
)

RIGHTS = (
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
