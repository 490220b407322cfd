"""Mistakes in what a process does by itself: the gate, the balance, the plan, the sum."""

from __future__ import annotations

from distlab.course.patches import Patch

_GATED = "return weights_TK, experts_TK"

_TOP_K_GATE = (
    Patch("always-1", "if k > 1:", "if True:"),
    Patch("not-renormalised", "if k > 1:", "if False:"),
    Patch("no-gradient", _GATED, "return weights_TK.detach(), experts_TK"),
    Patch("softmax-again", "weights_TK / weights_TK.sum(dim=-1, keepdim=True)", "weights_TK.softmax(dim=-1)"),
    Patch("sum-detached", "keepdim=True)", "keepdim=True).detach()"),
    Patch("logits", _GATED, "return logits_TE.topk(k).values, experts_TK"),
    Patch("over-tokens", "softmax(dim=-1)", "softmax(dim=0)"),
    Patch("worst", ".topk(k)", ".topk(k, largest=False)"),
    Patch("backwards", _GATED, "return weights_TK.flip(1), experts_TK.flip(1)"),
)

_SHARE = "torch.bincount(experts_TK.flatten(), minlength=num_experts) / experts_TK.numel()"
_PRODUCT = "(share_E * mean_E)"

_LOAD_BALANCING_LOSS = (
    Patch("not-divided", "experts_TK.numel()", "len(experts_TK)"),
    Patch("no-experts", "alpha * num_experts", "alpha"),
    Patch("mean-first", "logits_TE.softmax(dim=-1).mean(dim=0)", "logits_TE.mean(dim=0).softmax(dim=-1)"),
    Patch("chosen-only", "alpha * num_experts", "alpha * len(experts_TK.unique())"),
    Patch("recomputed", "bincount(experts_TK.", "bincount(logits_TE.topk(experts_TK.shape[1]).indices."),
    Patch("no-alpha", "alpha * num_experts", "num_experts"),
    Patch("counts", " / experts_TK.numel()", ""),
    Patch("first-only", _SHARE, "torch.bincount(experts_TK[:, 0], minlength=num_experts) / len(experts_TK)"),
    Patch("sum-of-probs", ".mean(dim=0)", ".sum(dim=0)"),
    Patch("probs-only", _PRODUCT, "(mean_E * mean_E)"),
    Patch("shares-only", _PRODUCT, "(share_E * share_E).to(mean_E.dtype)"),
    Patch("no-gradient", _PRODUCT, "(share_E * mean_E.detach())"),
    Patch("missing", ", minlength=num_experts", "", fails=True),
)

_FLAT = "expert_Q = experts_TK.T.flatten()  # all first choices, then all second ones"
_PLACE = "place_Q = (queues_QE.cumsum(0) * queues_QE).sum(1)"
_DECODED = "order_A % num_tokens, order_A // num_tokens, "
_DISPATCH_BODY = f"""{_FLAT}
    queues_QE = F.one_hot(expert_Q, num_experts)
    {_PLACE}
    is_kept_Q = place_Q <= capacity
    last_Q = expert_Q.masked_fill(~is_kept_Q, num_experts)  # the dropped ones sort behind all experts
    order_A = last_Q.argsort(stable=True)[: is_kept_Q.sum()]
    return {_DECODED}queues_QE[is_kept_Q].sum(0)"""


def _by_token(id: str, *changes: tuple[str, str]) -> Patch:
    """A token's choices stand together, and are taken apart like that."""
    body = _DISPATCH_BODY.replace(_FLAT, "k = experts_TK.shape[1]\n    expert_Q = experts_TK.flatten()")
    body = body.replace(_DECODED, "order_A // k, order_A % k, ")
    for old, new in changes:
        body = body.replace(old, new)
    return Patch(id, _DISPATCH_BODY, body)


_DISPATCH = (
    Patch("unlimited", "place_Q <= capacity", "place_Q <= len(expert_Q)"),
    Patch("one-more", "<= capacity", "<= capacity + 1"),
    Patch("one-less", "<= capacity", "< capacity"),
    _by_token("by-token"),
    Patch("keeps-last", _PLACE, "place_Q = ((queues_QE.sum(0) + 1 - queues_QE.cumsum(0)) * queues_QE).sum(1)"),
    Patch(
        "whole-token",
        "is_kept_Q = place_Q <= capacity",
        "is_kept_Q = (place_Q <= capacity).view(-1, num_tokens).all(0).repeat(experts_TK.shape[1])",
    ),
    Patch("counts-all", "queues_QE[is_kept_Q].sum(0)", "queues_QE.sum(0)"),
    Patch("missing", "F.one_hot(expert_Q, num_experts)", "F.one_hot(expert_Q)"),
    Patch("not-by-expert", ".argsort(stable=True)[: is_kept_Q.sum()]", ".lt(num_experts).nonzero()[:, 0]"),
    Patch("first-only", "expert_Q = experts_TK.T.flatten()", "expert_Q = experts_TK[:, 0]"),
    Patch(
        "loop",
        _PLACE,
        "place_Q = torch.stack([(expert_Q[: q + 1] == expert_Q[q]).sum() for q in range(len(expert_Q))])",
    ),
    Patch(
        "per-choice",
        _PLACE,
        "place_Q = torch.cat([(one.cumsum(0) * one).sum(1) for one in queues_QE.split(num_tokens)])",
    ),
    Patch("decoded", _DECODED, "order_A // experts_TK.shape[1], order_A % experts_TK.shape[1], "),
    Patch("queue-order", "argsort(stable=True)", "argsort()"),
    Patch(
        "queue-order",
        "last_Q.argsort(stable=True)",
        "(last_Q * num_tokens + torch.arange(len(last_Q)) % num_tokens).argsort(stable=True)",
    ),
)

_WEIGHTED = "weights_A[:, None] * y_AD"
_SUM = f"torch.zeros_like(x_TD).index_add(0, tokens_A, {_WEIGHTED})"
_NUM = "torch.bincount(tokens_A, minlength=len(x_TD))[:, None]"

_COMBINE = (
    Patch("passes-on", f"return {_SUM}", f"return torch.where({_NUM} == 0, x_TD, {_SUM})"),
    Patch("residual", "torch.zeros_like(x_TD).", "x_TD."),
    Patch("unweighted", _WEIGHTED, "y_AD"),
    Patch("overwrites", "index_add", "index_copy"),
    Patch("mean", _SUM, f"{_SUM} / {_NUM}.clamp(min=1)"),
    Patch(
        "renormalised",
        _WEIGHTED,
        "(weights_A / weights_A.new_zeros(len(x_TD)).index_add(0, tokens_A, weights_A)[tokens_A])[:, None] * y_AD",
    ),
    Patch("weights-detached", "weights_A[:, None]", "weights_A.detach()[:, None]"),
    Patch("rows-detached", "* y_AD", "* y_AD.detach()"),
    Patch("no-gradient", f"{_WEIGHTED})", f"({_WEIGHTED}).detach())"),
)

_CHOICE = "(scores_TE + bias_E)"
_MOVED = "bias_E + gamma * (load_E.mean() - load_E).sign()"

_BALANCE_BY_BIAS = (
    Patch("no-bias", _CHOICE, "scores_TE"),
    Patch("minus", _CHOICE, "(scores_TE - bias_E)"),
    Patch("softmax", "logits_TE.sigmoid()", "logits_TE.softmax(-1)"),
    Patch("weighs-bias", "scores_TE.gather(", "(scores_TE + bias_E).gather("),
    Patch("not-renormalised", "if k > 1:", "if False:"),
    Patch("wrong-way", "bias_E + gamma", "bias_E - gamma"),
    Patch("by-size", ".sign()", ""),
    Patch("unchanged", _MOVED, "bias_E"),
    Patch("steps-only", "bias_E + gamma", "gamma"),
    Patch("inside", _CHOICE, "(logits_TE + bias_E)"),
    Patch("inside", "scores_TE = logits_TE.sigmoid()", "scores_TE = (logits_TE + bias_E).sigmoid() - bias_E"),
    Patch("floored", "load_E.mean()", "load_E.sum() // len(bias_E)"),
    Patch("first-only", "experts_TK.flatten(), minlength", "experts_TK[:, 0], minlength"),
    Patch("at-the-mean", _MOVED, "torch.where(load_E < load_E.mean(), bias_E + gamma, bias_E - gamma)"),
    Patch("at-the-mean", _MOVED, "torch.where(load_E > load_E.mean(), bias_E - gamma, bias_E + gamma)"),
)

PATCHES = {
    "top_k_gate": _TOP_K_GATE,
    "load_balancing_loss": _LOAD_BALANCING_LOSS,
    "dispatch": _DISPATCH,
    "combine": _COMBINE,
    "balance_by_bias": _BALANCE_BY_BIAS,
}
