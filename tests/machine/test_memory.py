"""The arithmetic of model states gives what the ZeRO paper prints."""

from __future__ import annotations

import pytest

from distlab.machine.memory import (
    FP32,
    MIXED,
    activation_bytes,
    bytes_by_kind,
    elements_sent,
    largest_model,
    model_state_bytes,
    recipe,
)

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
