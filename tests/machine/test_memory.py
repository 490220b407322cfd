"""The arithmetic of model states gives what the ZeRO paper prints."""

from __future__ import annotations

import pytest

from distlab.machine.memory import FP32, MIXED, bytes_by_kind, elements_sent, largest_model, model_state_bytes

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


def test_four_and_eight_times_are_the_limits_of_the_first_two_stages():
    assert [sum(MIXED) / sum(bytes_by_kind(stage, 10**9)) for stage in (1, 2)] == pytest.approx([4, 8])


def test_only_stage_3_sends_more_than_data_parallelism():
    assert [elements_sent(1000, stage, 4) for stage in range(4)] == [1500, 1500, 1500, 2250]


@pytest.mark.parametrize(("stage", "ranks", "says"), [(4, 2, "not 4"), (1, 0, "at least 1, got 0")])
def test_what_there_is_not_is_refused(stage, ranks, says):
    with pytest.raises(ValueError, match=says):
        model_state_bytes(1, stage, ranks)
