"""The arithmetic of model states gives what the ZeRO paper prints."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from distlab.machine.memory import (
    FP32,
    MIXED,
    MIXED_FP32_GRADIENTS,
    activation_bytes,
    bytes_by_kind,
    elements_sent,
    gated_activation_bytes,
    largest_model,
    model_state_bytes,
    recipe,
)
from distlab.machine.model_shapes import Shape

GB = 1e9
MODELS = (7.5e9, 128e9, 1e12)
# Table I: GB a device, by ranks; for each model P_os, P_os+g, P_os+g+p, as printed.
TABLE_1 = {
    1: (120, 120, 120, 2048, 2048, 2048, 16000, 16000, 16000),
    4: (52.5, 41.3, 30, 896, 704, 512, 7000, 5500, 4000),
    16: (35.6, 21.6, 7.5, 608, 368, 128, 4750, 2875, 1000),
    64: (31.4, 16.6, 1.88, 536, 284, 32, 4187, 2218, 250),
    256: (30.4, 15.4, 0.47, 518, 263, 8, 4046, 2054, 62.5),
    1024: (30.1, 15.1, 0.12, 513, 257, 2, 4011, 2013, 15.6),
}


@pytest.mark.parametrize(("stage", "printed"), list(enumerate((120, 31.4, 16.6, 1.9))))
def test_figure_1_is_met(stage, printed):
    assert model_state_bytes(7.5e9, stage, 64) / GB == pytest.approx(printed, abs=0.05)


@pytest.mark.parametrize("ranks", TABLE_1)
def test_every_cell_of_table_1_is_met(ranks):
    cells = [(model, stage) for model in MODELS for stage in (1, 2, 3)]
    for (model, stage), printed in zip(cells, TABLE_1[ranks], strict=True):
        assert abs(model_state_bytes(model, stage, ranks) / GB - printed) < 1, (model, stage)


@pytest.mark.parametrize(("stage", "printed"), list(enumerate((2, 7.6, 14.4, 128))))
def test_the_first_row_of_table_2_is_met(stage, printed):
    assert largest_model(32 * GB, stage, 64) / 1e9 == pytest.approx(printed, abs=0.05)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 64])
def test_bytes_a_parameter_follow_the_formulas(ranks):
    mixed = [sum(bytes_by_kind(stage, ranks)) for stage in range(4)]
    assert mixed == pytest.approx([16, 4 + 12 / ranks, 2 + 14 / ranks, 16 / ranks])
    fp32 = [sum(bytes_by_kind(stage, ranks, FP32)) for stage in range(4)]
    assert fp32 == pytest.approx([16, 8 + 8 / ranks, 4 + 12 / ranks, 16 / ranks])


def test_a_recipe_counts_the_copy_of_the_weights_and_the_optimizers_averages():
    assert (recipe(), recipe("fp32")) == (MIXED, FP32)
    assert recipe(fp32_gradients=True) == MIXED_FP32_GRADIENTS and recipe("fp32", fp32_gradients=True) == FP32
    assert recipe("mixed 16-bit", "SGD with momentum") == (2, 2, 8)
    assert recipe("mixed 16-bit", "SGD") == (2, 2, 4)
    assert recipe("fp32", "SGD with momentum") == (4, 4, 4)
    assert recipe("fp32", "SGD") == (4, 4, 0)


def test_four_and_eight_times_are_the_limits_of_the_first_two_stages():
    assert [sum(MIXED) / sum(bytes_by_kind(stage, 10**9)) for stage in (1, 2)] == pytest.approx([4, 8])


def test_only_stage_3_sends_more_than_data_parallelism():
    assert [elements_sent(1000, stage, 4) for stage in range(4)] == [1500, 1500, 1500, 2250]


@pytest.mark.parametrize(("stage", "ranks", "says"), [(4, 2, "not 4"), (1, 0, "at least 1, got 0")])
def test_what_there_is_not_is_refused(stage, ranks, says):
    with pytest.raises(ValueError, match=says):
        model_state_bytes(1, stage, ranks)


@pytest.mark.parametrize("what", [dict(precision="fp8"), dict(optimizer="Lion")])
def test_an_unknown_recipe_is_refused_by_name(what):
    with pytest.raises(ValueError, match=f"{list(what)[0]} must be one of .* not '{list(what.values())[0]}'"):
        recipe(**what)


# --- activations -----------------------------------------------------------------------------------

# Korthikanti et al., Table 3: micro-batch, width, heads; GB a layer without and with full recomputation, s = 2,048.
LAYERS = [(4, 6144, 64, 7.080, 0.1007), (1, 12288, 96, 2.8689, 0.0503), (1, 20480, 128, 4.1104, 0.0839)]


@pytest.mark.parametrize(("micro_batch", "width", "heads", "kept", "full"), LAYERS)
def test_activations_of_a_layer_follow_korthikantis_formulas(micro_batch, width, heads, kept, full):
    sizes = 2048, micro_batch, width, heads
    sbh = 2048 * micro_batch * width
    assert activation_bytes(*sizes) == pytest.approx(sbh * (34 + 5 * heads * 2048 / width))
    assert activation_bytes(*sizes, "selective") == 34 * sbh
    assert activation_bytes(*sizes, "full") == 2 * sbh
    assert activation_bytes(*sizes) / GB == pytest.approx(kept, rel=1e-3)
    assert activation_bytes(*sizes, "full") / GB == pytest.approx(full, rel=1e-3)


def test_the_layers_three_parts_add_up_to_34():
    attention, mlp, norms = 11, 19, 4
    assert activation_bytes(8, 1, 16, 2, "selective") == (attention + mlp + norms) * 8 * 16


@pytest.mark.parametrize(("width", "heads", "saved"), [(12288, 96, 0.702), (20480, 128, 0.653)])
def test_selective_recomputation_saves_what_the_paper_says(width, heads, saved):
    kept, selective = (activation_bytes(2048, 1, width, heads, how) for how in ("none", "selective"))
    assert 1 - selective / kept == pytest.approx(saved, abs=5e-4)


def test_in_32_bits_all_but_the_masks_of_dropout_doubles():
    s, b, h, a = 16, 3, 32, 4
    masks = 2 * s * b * h + a * s * s * b
    assert activation_bytes(s, b, h, a, precision="fp32") == 2 * (activation_bytes(s, b, h, a) - masks) + masks
    assert activation_bytes(s, b, h, a, "full", "fp32") == 4 * s * b * h


def test_activations_of_what_there_is_not_are_refused():
    with pytest.raises(ValueError, match="recompute must be one of none, selective, full, not 'some'"):
        activation_bytes(1, 1, 1, 1, "some")
    with pytest.raises(ValueError, match="precision must be one of"):
        activation_bytes(1, 1, 1, 1, precision="fp8")
    with pytest.raises(ValueError, match="at least 1, got 0, 1, 1, 1"):
        activation_bytes(0, 1, 1, 1)


# Korthikanti et al., Table 3, on 8 tensor-parallel ranks: GB a layer with tensor parallelism, with sequences cut too,
# and both with selective recomputation.
CUT = [(4, 6144, 64, 1.3254, 0.8850, 0.6543, 0.2139), (1, 12288, 96, 0.5788, 0.3586, 0.3272, 0.1070)]


@pytest.mark.parametrize(("micro_batch", "width", "heads", "cut", "both", "selective", "all_three"), CUT)
def test_activations_of_a_layer_that_is_cut(micro_batch, width, heads, cut, both, selective, all_three):
    found = [
        activation_bytes(2048, micro_batch, width, heads, how, tensor_parallel=8, sequence_parallel=sequences) / GB
        for how in ("none", "selective")
        for sequences in (False, True)
    ]
    assert found == pytest.approx([cut, both, selective, all_three], rel=1e-3)


def test_a_layer_cut_among_one_rank_is_whole_in_every_precision_and_recomputation():
    for how in ("none", "selective", "full"):
        for precision in ("mixed 16-bit", "fp32"):
            whole = activation_bytes(128, 2, 64, 4, how, precision)
            assert activation_bytes(128, 2, 64, 4, how, precision, 1, sequence_parallel=True) == whole


class GatedLayer(torch.nn.Module):
    """A layer with a gated MLP, of D 24, 4 heads of 8, F 40.

    With fused norms, which on a CPU are LayerNorms, and keys for each head, which torch's CPU kernel would make.
    """

    def __init__(self):
        super().__init__()
        sizes = {"q": (24, 32), "k": (24, 32), "v": (24, 32), "o": (32, 24), "gate": (24, 40), "up": (24, 40)}
        layers = {name: torch.nn.Linear(*size, bias=False) for name, size in sizes.items()}
        self.layers = torch.nn.ModuleDict(layers | {"down": torch.nn.Linear(40, 24, bias=False)})
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(24) for _ in range(2))

    def forward(self, x_BTD):
        layers, (rows, places, _) = self.layers, x_BTD.shape
        y_BTD = self.norms[0](x_BTD)
        q, k, v = (layers[name](y_BTD).view(rows, places, -1, 8).transpose(1, 2) for name in "qkv")
        heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTD = x_BTD + layers["o"](heads.transpose(1, 2).reshape(rows, places, -1))
        y_BTD = self.norms[1](x_BTD)
        return x_BTD + layers["down"](functional.silu(layers["gate"](y_BTD)) * layers["up"](y_BTD))


def test_activations_of_a_gated_layer_are_what_autograd_keeps():
    layer, shape = GatedLayer(), Shape("small", 1, 24, 4, 40, 100, head_width=8)
    kept, weights = {}, {weight.untyped_storage().data_ptr() for weight in layer.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage  # kept alive, so that no other gets its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(torch.randn(3, 16, 24, requires_grad=True))
    places = 3 * 16
    norms, softmax = 2 * 2 * 4 * places, 4 * 4 * places  # two numbers a place for each norm, and one for each head
    counted = sum(storage.nbytes() for storage in kept.values())
    assert counted == gated_activation_bytes(shape, 16, 3, precision="fp32") + norms + softmax
