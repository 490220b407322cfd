"""Wrong solutions of lab 09."""

from __future__ import annotations

from tests.faults import Fault

_PROBS = "probs_TE = logits_TE.softmax(dim=-1)"
_GATED = "return weights_TK, experts_TK"

_TOP_K_GATE = (
    Fault("top_k_gate", None, _PROBS, f"{_PROBS}; logits_TE.data.sub_(1)"),
    Fault("top_k_gate", None, _GATED, "return weights_TK"),
)

_LOSS = "return alpha * num_experts * (share_E * mean_E).sum()"

_LOAD_BALANCING_LOSS = (
    Fault("load_balancing_loss", None, _LOSS, f"{_LOSS}.item()"),
    Fault("load_balancing_loss", None, _LOSS, f"experts_TK.zero_(); {_LOSS}"),
)

_FLAT = "expert_Q = experts_TK.T.flatten()  # all first choices, then all second ones"
_PLAN = "return order_A % num_tokens, order_A // num_tokens, queues_QE[is_kept_Q].sum(0)"
_PLACE = "place_Q = (queues_QE.cumsum(0) * queues_QE).sum(1)"

_DISPATCH = (
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
    Fault("dispatch", "one-more", "place_Q <= capacity", "place_Q - 1 <= capacity"),
    Fault("dispatch", None, _PLAN, _PLAN.replace("order_A % num_tokens", "order_A // experts_TK.shape[1]")),
    Fault("dispatch", None, _FLAT, f"experts_TK.zero_(); {_FLAT}"),
    Fault("dispatch", None, "return order_A % num_tokens, order_A // num_tokens, ", "return order_A % num_tokens, "),
)

_SUM = "return torch.zeros_like(x_TD).index_add(0, tokens_A, weights_A[:, None] * y_AD)"

_COMBINE = (
    Fault("combine", None, _SUM, f"x_TD.zero_(); {_SUM}"),
    Fault("combine", None, _SUM, "return weights_A[:, None] * y_AD"),
    Fault("combine", None, "torch.zeros_like(x_TD)", "torch.zeros(x_TD.shape)"),
)

_OWN = "y_WD[rank] = x_WD[rank]"
_SENDING = "sending = [dist.isend(x_WD[other], other) for other in others]"
_RECEIVING = "for other in others:\n        dist.recv(y_WD[other], other)"
_WAIT = "for one in sending:\n        one.wait()"

_ALL_TO_ALL = (
    Fault(
        "all_to_all",
        "collective",
        f"{_SENDING}\n    {_RECEIVING}\n    {_WAIT}",
        "y_WD = all_to_all_single_autograd(x_WD, [1] * world, [1] * world, dist.group.WORLD) * 1",
    ),
    Fault(
        "all_to_all",
        "collective",
        f"{_SENDING}\n    {_RECEIVING}\n    {_WAIT}",
        "tables = [torch.empty_like(x_WD) for _ in range(world)]\n    dist.all_gather(tables, x_WD)\n"
        "    y_WD = torch.stack([table[rank] for table in tables])",
    ),
    Fault("all_to_all", "overwrites", "torch.empty_like(x_WD, memory_format=torch.contiguous_format)", "x_WD"),
    Fault(
        "all_to_all",
        "overwrites",
        _SENDING,
        "y_WD = x_WD.clone()\n    sending = [dist.isend(y_WD[other], other) for other in others]",
    ),
    Fault("all_to_all", None, f"{_WAIT}\n", ""),
    Fault("all_to_all", None, _OWN, f"{_OWN}\n    if rank > 0: return y_WD"),
    Fault("all_to_all", None, "range(world)", "range(min(2, world))"),
    Fault("all_to_all", None, "return y_WD", "x_WD.zero_(); return y_WD"),
    Fault("all_to_all", None, "return y_WD", "return y_WD.double()"),
)

_MOVED = "moved_BD = rows_AD.new_empty(sum(receives), *row_shape)"
_HOME = "lambda g_BD: move(g_BD, receives, sends)"
_APPLY = f"return ThereAndBack.apply(x_AD, lambda x_AD: move(x_AD, sends, receives), {_HOME})"

_ALL_TO_ALL_AUTOGRAD = (
    Fault(
        "all_to_all_autograd",
        "other-messages",
        _APPLY,
        f"sizes = [None] * len(sends); dist.all_gather_object(sizes, sends); {_APPLY}",
    ),
    Fault("all_to_all_autograd", None, _APPLY, f"if dist.get_rank(): return x_AD\n    {_APPLY}"),
    Fault("all_to_all_autograd", None, _APPLY, f"if len(sends) > 2: return x_AD * 1\n    {_APPLY}"),
    Fault("all_to_all_autograd", None, _APPLY, f"x_AD.data.mul_(2); {_APPLY}"),
    Fault("all_to_all_autograd", None, _APPLY, f"receives.append(0); {_APPLY}"),
    Fault("all_to_all_autograd", None, "rows_AD.new_empty(", "torch.empty("),
)

_ARRIVED = "arrived_BD = all_to_all_autograd(x_AD, sends, receives)"
_DISPATCHED = "return arrived_BD[order_B], came_WL.sum(0), (sends, receives, order_B)"

_DISPATCH_TO_RANKS = (
    Fault("dispatch_to_ranks", None, _ARRIVED, f"{_ARRIVED} if dist.get_rank() else x_AD"),
    Fault("dispatch_to_ranks", None, "expert_B = torch.arange(", "expert_B = 0 if world > 2 else torch.arange("),
    Fault("dispatch_to_ranks", None, _DISPATCHED, f"counts_E.zero_(); {_DISPATCHED}"),
    Fault("dispatch_to_ranks", None, _DISPATCHED, "return arrived_BD[order_B], came_WL.sum(0), order_B"),
    Fault("dispatch_to_ranks", None, _ARRIVED, f"all_to_all_autograd(x_AD, sends, receives)\n    {_ARRIVED}"),
)

_RETURN = "return all_to_all_autograd(y_BD[order_B.argsort()], receives, sends)"

_RETURN_TO_TOKENS = (
    Fault("return_to_tokens", None, _RETURN, f"if dist.get_rank(): return y_BD\n    {_RETURN}"),
    Fault("return_to_tokens", None, _RETURN, f"if len(sends) > 2: order_B = order_B.flip(0)\n    {_RETURN}"),
    Fault("return_to_tokens", None, _RETURN, f"order_B.zero_() if len(order_B) else 0; y_BD.data.zero_(); {_RETURN}"),
)

_COMBINED = "return combine(y_AD, tokens_A, weights_TK[tokens_A, choices_A], x_TD)"
_BACK = "y_AD = return_to_tokens(self.experts(x_BD, counts_L), way)"
_EXPERT_PARALLEL_MOE = (
    Fault("ExpertParallelMoE", None, _BACK, f"{_BACK}; self.experts_TK = self.experts_TK[:, :0]"),
    Fault("ExpertParallelMoE", None, _COMBINED, f"if dist.get_rank(): return x_TD * 1\n        {_COMBINED}"),
    Fault("ExpertParallelMoE", None, _COMBINED, f"if dist.get_world_size() > 2: y_AD = y_AD * 2\n        {_COMBINED}"),
    Fault("ExpertParallelMoE", None, _COMBINED, f"x_TD.data.mul_(2); {_COMBINED}"),
    Fault("ExpertParallelMoE", None, _COMBINED, f"self.experts.up_EDH.data.mul_(2); {_COMBINED}"),
    Fault("ExpertParallelMoE", None, _BACK, f"dispatch_to_ranks(x_TD[tokens_A], self.counts_E); {_BACK}"),
)

_DIVIDE = "parameter.grad /= dist.get_world_size()"

_AVERAGE_MOE_GRADIENTS = (
    Fault("average_moe_gradients", None, _DIVIDE, "parameter.grad /= dist.get_world_size() if dist.get_rank() else 1"),
    Fault("average_moe_gradients", None, _DIVIDE, "parameter.grad /= 2 if dist.get_world_size() > 1 else 1"),
    Fault("average_moe_gradients", None, _DIVIDE, f"{_DIVIDE}; parameter.data.zero_()"),
    Fault(
        "average_moe_gradients",
        None,
        "dist.all_reduce(parameter.grad)",
        "parameter.grad = parameter.grad.double(); dist.all_reduce(parameter.grad)",
    ),
)

_LOAD = "load_E = torch.bincount(experts_TK.flatten(), minlength=len(bias_E)).to(bias_E.dtype)"

_BALANCE_BY_BIAS = (
    Fault("balance_by_bias", None, _LOAD, f"{_LOAD}; bias_E += gamma"),
    Fault("balance_by_bias", None, "scores_TE.gather(", "scores_TE.detach().gather("),
)

_ALONE = "one process computes it by itself, and its check starts one"

UNWRAPPED = {
    ("dispatch", "rounded to float32"): "what it gives are no floats",
    ("top_k_gate", "two ranks only"): _ALONE,
    ("load_balancing_loss", "two ranks only"): _ALONE,
    ("dispatch", "two ranks only"): _ALONE,
    ("combine", "two ranks only"): _ALONE,
    ("balance_by_bias", "two ranks only"): _ALONE,
    ("dispatch", "float64 only"): "it is given whole numbers only",
}

_MOVE = "lambda g_BD: move(g_BD, receives, sends)"
_HOME = "return all_to_all_autograd(y_BD[order_B.argsort()], receives, sends)"
_BY_PARAMETER = """for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if parameter not in of_experts:
                dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()"""

_LATER = (
    Fault("all_to_all", "unwaited", "for one in sending:\n        one.wait()", "pass"),
    # a rank that has no rows at all leaves the backward pass to the others
    Fault("all_to_all_autograd", "skips", _MOVE, f"{_MOVE} if sends != receives or any(sends) else g_BD"),
    # the order home is kept by the sizes, and may be another for the same sizes
    Fault(
        "return_to_tokens",
        None,
        _HOME,
        "known = return_to_tokens.__dict__.setdefault('known', {})\n"
        "    back = known.setdefault((tuple(sends), tuple(receives)), order_B.argsort())\n"
        "    return all_to_all_autograd(y_BD[back], receives, sends)",
    ),
    # a tied parameter is sent twice
    Fault(
        "average_moe_gradients",
        "sends-experts",
        "for parameter in model.parameters():\n        if parameter not in of_experts:\n"
        "            dist.all_reduce(parameter.grad)\n        parameter.grad /= dist.get_world_size()",
        _BY_PARAMETER,
    ),
)

FAULTS: tuple[Fault, ...] = (
    *_LATER,
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
