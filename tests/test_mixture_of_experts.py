"""Lab 09's numbers: experts over ranks train as one process does, send what the formula says, balance as published."""

from __future__ import annotations

import sys
from functools import cache
from types import SimpleNamespace

import cloudpickle
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from distlab import machines, run
from distlab.course.checks.mixture_of_experts import expected_dropped
from distlab.course.checks.mixture_of_experts.common import plan
from distlab.course.notebook import Notebook
from distlab.course.places import ROOT
from distlab.machine.replay import replay

cloudpickle.register_pickle_by_value(sys.modules[__name__])

WIDTH, TOKENS, STEPS = 6, 16, 20
ALL_TO_ONE = "all tokens to expert 0"


@cache
def lab() -> SimpleNamespace:
    """What the solved lab itself defines; its imports would be imported again on every rank."""
    definitions = Notebook(ROOT / "solutions" / "09_mixture_of_experts.ipynb").definitions()
    own = {k: v for k, v in definitions.items() if getattr(v, "__module__", "__main__") == "__main__"}
    return SimpleNamespace(**{k: v for k, v in own.items() if callable(v) or isinstance(v, int)})


def tokens_of(step: int, ranks: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """By rank, a step's tokens and what the layer should make of them."""
    numbers = torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    return list(zip(numbers[0].abs().chunk(ranks), numbers[1].chunk(ranks)))


def prepare(layer, special: str):
    """Gates that choose expert 0 for every token, where that is the case to try: all inputs are positive."""
    if special == ALL_TO_ONE:
        with torch.no_grad():
            layer.gate.weight[0] += 50
    return layer


def loss_of(layer, x, target):
    return F.mse_loss(x + layer(x), target) + layer.balance_loss


def history(layer, step_loss, average) -> list[dict]:
    """Of every step: outputs' loss, and copies of all gradients and weights."""
    optimizer, steps = torch.optim.SGD(layer.parameters(), lr=0.02, momentum=0.9), []
    for step in range(STEPS):
        optimizer.zero_grad()
        losses = step_loss(step)
        average(layer)
        gradients = {name: p.grad.clone() for name, p in layer.named_parameters()}
        optimizer.step()
        weights = {name: p.detach().clone() for name, p in layer.named_parameters()}
        steps.append(dict(losses=losses, gradients=gradients, weights=weights, counts=layer.counts_E.tolist()))
    return steps


def on_ranks(lab: SimpleNamespace, num_experts: int, k: int, factor: float | None, special: str) -> list[dict]:
    layer = lab.ExpertParallelMoE(WIDTH, num_experts, k, factor, dtype=torch.float64)
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def step_loss(step):
        loss = loss_of(layer, *tokens_of(step, ranks)[rank])
        loss.backward()
        return loss.item()

    return history(prepare(layer, special), step_loss, lab.average_moe_gradients)


def in_one_process(num_experts: int, k: int, factor: float | None, special: str, ranks: int) -> list[dict]:
    layer = lab().MoE(WIDTH, num_experts, k, factor, dtype=torch.float64)

    def step_loss(step):
        losses = [loss_of(layer, x, target) for x, target in tokens_of(step, ranks)]
        torch.stack(losses).mean().backward()
        return [loss.item() for loss in losses]

    return history(prepare(layer, special), step_loss, lambda layer: None)


def joined(by_rank: list[dict]) -> dict[str, torch.Tensor]:
    """All parameters of the layer: the experts of all ranks, and the gate, which is the same on all."""
    assert all(torch.equal(own["gate.weight"], by_rank[0]["gate.weight"]) for own in by_rank)
    names = [name for name in by_rank[0] if "experts" in name]
    return by_rank[0] | {name: torch.cat([own[name] for own in by_rank]) for name in names}


def equals_one_process(ranks: int, num_experts: int, k: int, factor: float | None, special: str) -> list[list[dict]]:
    by_rank = run(on_ranks, lab(), num_experts, k, factor, special, ranks=ranks, record=False).values
    for number, want in enumerate(in_one_process(num_experts, k, factor, special, ranks)):
        came = [steps[number] for steps in by_rank]
        torch.testing.assert_close([one["losses"] for one in came], want["losses"], atol=1e-10, rtol=1e-10)
        for what in ("gradients", "weights"):
            mine = joined([one[what] for one in came])
            torch.testing.assert_close(mine, want[what], atol=1e-10, rtol=1e-10)
    return by_rank


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("num_experts", [4, 8])
@pytest.mark.parametrize("k", [1, 2])
def test_losses_every_gradient_and_weights_equal_one_process_over_20_steps(ranks, num_experts, k):
    equals_one_process(ranks, num_experts, k, 1.25, "")


def test_ranks_that_receive_no_token_change_nothing():
    by_rank = equals_one_process(4, 8, 1, None, ALL_TO_ONE)
    assert [steps[0]["counts"] for steps in by_rank] == [[TOKENS // 4] + [0] * 7] * 4  # ranks 1 to 3 get none


@pytest.mark.parametrize("k", [1, 2])
def test_all_tokens_to_one_expert_with_a_capacity_equal_one_process(k):
    equals_one_process(2, 4, k, 1.0, ALL_TO_ONE)


@pytest.mark.parametrize(("ranks", "factor"), [(2, 0.5), (4, 0.5), (4, 0.0)])
def test_a_capacity_so_small_that_most_are_dropped_equals_one_process(ranks, factor):
    by_rank = equals_one_process(ranks, 4, 2, factor, "")
    kept = sum(sum(steps[0]["counts"]) for steps in by_rank)
    assert kept <= factor * 2 * TOKENS


def outputs(lab: SimpleNamespace, num_experts: int, k: int, factor: float) -> torch.Tensor:
    layer = lab.ExpertParallelMoE(WIDTH, num_experts, k, factor, dtype=torch.float64)
    return layer(tokens_of(0, dist.get_world_size())[dist.get_rank()][0]).detach()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_outputs_equal_those_of_all_experts_on_one_rank(ranks):
    layer = lab().MoE(WIDTH, 4, 2, 1.0, dtype=torch.float64)
    want = [layer(x).detach() for x, _ in tokens_of(0, ranks)]
    came = run(outputs, lab(), 4, 2, 1.0, ranks=ranks, record=False).values
    torch.testing.assert_close(came, want, atol=1e-10, rtol=1e-10)


def test_the_batched_plan_is_the_plan_made_token_by_token():
    generator = torch.Generator().manual_seed(0)
    for num_tokens, num_experts, k, capacity in ((50, 7, 3, 11), (64, 8, 1, 8), (33, 4, 2, 0)):
        experts = torch.rand(num_tokens, num_experts, generator=generator).topk(k).indices
        for mine, want in zip(lab().dispatch(experts, num_experts, capacity), plan(experts, num_experts, capacity)):
            assert torch.equal(mine, want)


@pytest.mark.parametrize("num_experts", [2, 4, 8, 16])
@pytest.mark.parametrize("alpha", [0.01, 1.0])
def test_the_balance_loss_is_alpha_at_uniform_routing_and_alpha_n_at_collapse(num_experts, alpha):
    even = torch.arange(num_experts).repeat(3)[:, None]
    uniform = lab().load_balancing_loss(torch.zeros(len(even), num_experts), even, alpha)
    assert uniform.item() == pytest.approx(alpha, rel=1e-6)
    anything = torch.randn(len(even), num_experts, generator=torch.Generator().manual_seed(0))
    assert lab().load_balancing_loss(anything, even, alpha).item() == pytest.approx(alpha, rel=1e-6)
    certain = torch.full((9, num_experts), -1e9)
    certain[:, 0] = 0
    collapse = lab().load_balancing_loss(certain, torch.zeros(9, 1, dtype=torch.int64), alpha)
    assert collapse.item() == pytest.approx(alpha * num_experts, rel=1e-6)


def test_1024_tokens_8_experts_and_factor_1_25_make_160_places():
    assert lab().capacity_of(1024, 1, 8, 1.25) == 160
    assert lab().capacity_of(1024, 2, 8, 1.25) == 320


def test_random_routing_drops_about_three_percent_at_factor_1_and_nothing_at_1_25():
    assert expected_dropped(1024, 8, 128) == pytest.approx(0.033, abs=0.0015)
    assert expected_dropped(1024, 8, 160) < 0.0005
    generator, dropped = torch.Generator().manual_seed(1), []
    for _ in range(100):
        experts = torch.randint(8, (1024, 1), generator=generator)
        dropped.append(1 - len(lab().dispatch(experts, 8, 128)[0]) / 1024)
    assert sum(dropped) / 100 == pytest.approx(expected_dropped(1024, 8, 128), abs=0.003)


def test_mixtral_has_46_702_792_704_parameters_of_which_12_879_925_248_are_active():
    assert lab().mixtral(8) == 46_702_792_704
    assert lab().mixtral(2) == 12_879_925_248
    assert lab().mixtral(1) == 7_242_780_672


@pytest.mark.parametrize(
    ("num_tokens", "published", "spread"), [(256, 1.48, 0.16), (1024, 1.22, 0.06), (8192, 1.08, 0.02)]
)
def test_the_imbalance_of_random_routing_is_the_published_one(num_tokens, published, spread):
    ratios = lab().imbalances(num_tokens, trials=400)
    assert ratios.mean().item() == pytest.approx(published, abs=4 * spread / 200**0.5)  # itself the mean of 200 trials
    assert ratios.std().item() == pytest.approx(spread, rel=0.4)


def a_step(lab: SimpleNamespace, num_experts: int, k: int, factor: float | None) -> list[int]:
    layer = lab.ExpertParallelMoE(WIDTH, num_experts, k, factor, dtype=torch.float64)
    x, target = tokens_of(0, dist.get_world_size())[dist.get_rank()]
    loss_of(layer, x.requires_grad_(), target).backward()
    return layer.counts_E.tolist()


@pytest.mark.parametrize(("ranks", "num_experts", "k", "factor"), [(2, 4, 1, None), (4, 8, 2, None), (4, 4, 2, 1.0)])
def test_dispatch_and_return_send_the_bytes_of_the_formula(ranks, num_experts, k, factor):
    r = run(a_step, lab(), num_experts, k, factor, ranks=ranks)
    per_rank = num_experts // ranks
    rows = [[sum(c[i * per_rank : (i + 1) * per_rank]) for i in range(ranks)] for c in r.values]
    sent = [sum(row) - row[rank] for rank, row in enumerate(rows)]
    back = [sum(column) - column[rank] for rank, column in enumerate(zip(*rows))]
    total = 0
    for rank in range(ranks):
        calls = r.recording.messages(rank, "all_to_all")
        counted = [8 * (sum(call.parts) - call.parts[rank]) for call in calls]
        out, home = 8 * WIDTH * sent[rank], 8 * WIDTH * back[rank]
        assert counted == [out, home, out, home]  # dispatch, return, and the gradients of both, backwards
        counts = [m for m in r.recording.messages(rank, "send")]
        assert sum(m.elements for m in counts) == per_rank * (ranks - 1)
        total += counted[0]
    if factor is None:
        kept = sum(map(sum, rows))
        assert kept == k * TOKENS and total == 8 * WIDTH * sum(sent)


def even_step(lab: SimpleNamespace, num_experts: int) -> list[int]:
    """Each rank sends as many tokens to each expert."""
    counts = torch.full((num_experts,), 3)
    x, way_counts, way = lab.dispatch_to_ranks(torch.ones(3 * num_experts, WIDTH), counts)
    lab.return_to_tokens(x, way)
    return way_counts.tolist()


@pytest.mark.parametrize("ranks", [2, 4])
def test_even_routing_sends_kt_d_bytes_times_w_minus_1_over_w(ranks):
    r = run(even_step, lab(), 8, ranks=ranks)
    want = 3 * 8 * WIDTH * 4 * (ranks - 1) // ranks
    for rank in range(ranks):
        calls = r.recording.messages(rank, "all_to_all")
        assert [4 * (sum(call.parts) - call.parts[rank]) for call in calls] == [want, want]


def test_an_expert_gradient_is_w_times_too_large_unless_scaled():
    def gradients(lab):
        layer = lab.ExpertParallelMoE(WIDTH, 4, 1, None, dtype=torch.float64)
        loss_of(layer, *tokens_of(0, dist.get_world_size())[dist.get_rank()]).backward()
        return layer.experts.up_EDH.grad

    mine = torch.cat(run(gradients, lab(), ranks=4, record=False).values)
    want = in_one_process(4, 1, None, "", 4)[0]["gradients"]["experts.up_EDH"]
    torch.testing.assert_close(mine, 4 * want, atol=1e-10, rtol=1e-10)


def test_16_experts_on_16_gpus_serve_9_to_14_times_the_tokens_of_one_gpu_and_less_than_16_gpus_with_all_experts():
    machine = machines.a100_cluster

    def against_one(tokens):
        alone = replay(lab().one_gpu(tokens), machine).wall
        return alone / replay(lab().spread(tokens), machine).wall

    found = [against_one(tokens) for tokens in (256, 1024, 8192, 65536)]
    assert found == pytest.approx([10.7, 9.3, 12.6, 13.7], abs=0.05)
    copies = replay(lab().one_gpu(65536 / 16), machine).wall
    assert copies < replay(lab().spread(65536), machine).wall  # the same GPUs, all experts on each


@pytest.fixture
def one_thread():
    """Products as small as the lab's take longer on several threads where others compute too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_without_the_balance_loss_a_few_experts_take_most_tokens_and_with_it_they_share(one_thread):
    busiest = {}
    for alpha in (0.0, 0.01):
        _, losses, counts = lab().train(alpha, steps=120)
        busiest[alpha] = (counts.amax(1) / counts.mean(1))[40:].mean().item()
    assert busiest[0.0] > 4 and busiest[0.01] < 3
