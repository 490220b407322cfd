"""The demo of ZeRO and memory shows what the papers print, and stays readable at the ends of every control."""

from __future__ import annotations

import itertools

import pytest

from distlab.demos.memory import ACTIVATIONS, MICRO_BATCHES, NOT_COUNTED, NUM_GPUS, SEQUENCES, draw, memory
from distlab.demos.memory_bars import amount
from distlab.machine.memory import OPTIMIZERS, PRECISIONS
from distlab.machine.model_shapes import GPT_2, LLAMA_8B, LLAMA_405B, MIXTRAL, SHAPES, ZERO_7B
from distlab.show.look import SERIES
from distlab.show.marks import Area, Boxes
from tests.demos.pictures import assert_legible, size_of

BASE = dict(
    model=ZERO_7B.name,
    ranks=64,
    stage=0,
    precision="mixed 16-bit",
    optimizer="Adam",
    activations=NOT_COUNTED,
    sequence=2048,
    micro_batch=1,
)


def said(**setting) -> str:
    """Title and words, in one line."""
    return " ".join(draw(**BASE | setting).text().split())


@pytest.mark.parametrize(("stage", "printed"), list(enumerate(("120", "31.4", "16.6", "1.9"))))
def test_the_stage_slider_at_64_shows_figure_1_of_the_zero_paper(stage, printed):
    text = said(stage=stage)
    assert f"stage {stage}: {printed} GB on each" in text
    assert ("Stages 0 to 3 take 120 GB, 31.4 GB, 16.6 GB and 1.9 GB." in text) == (stage == 3)
    assert "activations not counted" in text


def test_later_stages_are_not_given_away():
    assert "Stages" not in said(stage=0)
    assert "Stages 0 to 1 take 120 GB and 31.4 GB." in said(stage=1) and "16.6" not in said(stage=1)


@pytest.mark.parametrize(
    ("ranks", "printed"), [(1, "120 120 120"), (4, "52.5 41.2 30.0"), (16, "35.6 21.6 7.5"), (256, "30.4 15.4 0.47")]
)
def test_table_1_is_met_as_n_moves(ranks, printed):
    one, two, three = printed.split()
    assert f"Stages 0 to 3 take 120 GB, {one} GB, {two} GB and {three} GB." in said(ranks=ranks, stage=3)


@pytest.mark.parametrize(
    ("shape", "whole"), [(GPT_2, "24.9 GB"), (LLAMA_8B, "128 GB"), (LLAMA_405B, "6,494 GB"), (MIXTRAL, "747 GB")]
)
def test_the_models_weigh_16_bytes_a_parameter_on_a_card_of_their_own(shape, whole):
    assert amount(16 * shape.parameters) == whole
    assert f"stage 0: {whole} on each" in said(model=shape.name)


@pytest.mark.parametrize(
    ("stage", "fits"),
    [
        (0, "That fits a card of 141 GB. Up to N = 1,024 it never fits 80 GB."),
        (1, "That fits a card of 40 GB."),
        (2, "That fits a card of 24 GB."),
        (3, "That fits a card of 24 GB."),
    ],
)
def test_it_says_which_card_is_enough(stage, fits):
    assert fits in said(stage=stage)


def test_it_says_how_many_gpus_would_do():
    assert "It fits 80 GB from N = 128 on." in said(model=LLAMA_405B.name, ranks=16, stage=3)  # 16Ψ/128 is 50.7 GB
    assert 16 * LLAMA_405B.parameters / 64 > 80e9 > 16 * LLAMA_405B.parameters / 128


@pytest.mark.parametrize(
    ("precision", "optimizer", "states"),
    [
        ("mixed 16-bit", "SGD with momentum", "optimizer 60.0 GB"),
        ("mixed 16-bit", "SGD", "optimizer 30.0 GB"),
        ("fp32", "Adam", "optimizer 60.0 GB"),
        ("fp32", "SGD", "optimizer 0 GB"),
    ],
)
def test_precision_and_optimizer_set_the_bytes_of_the_states(precision, optimizer, states):
    weights = "15.0 GB" if precision.startswith("mixed") else "30.0 GB"
    assert f"parameters {weights}, gradients {weights}, {states}" in said(precision=precision, optimizer=optimizer)


def test_activations_follow_the_batch_and_no_stage_cuts_them():
    of_layers = 36 * 2048 * 4096  # L sbh
    for how, bytes_each in (("none", 34 + 5 * 32 * 2048 / 4096), ("selective", 34), ("full", 2)):
        for rows in (1, 4):
            text = said(activations=how, micro_batch=rows, stage=3)
            assert f"activations {amount(bytes_each * rows * of_layers)}" in text
            assert "No stage cuts the activations." in text
    assert said(activations="full", sequence=4096) == said(activations="full", micro_batch=2)
    assert said(activations="none", sequence=4096) != said(activations="none", micro_batch=2)
    assert "activations 1.2 GB" in said(activations="full", precision="fp32")


def test_for_layers_that_are_not_gpts_it_says_so():
    assert "formula is for GPT's layers" in said(model=MIXTRAL.name, activations="full")
    assert "formula" not in said(activations="full") and "formula" not in said(model=MIXTRAL.name)


def test_one_gpu_has_nobody_to_share_with():
    assert "One GPU has nobody to share with" in said(ranks=1) and "N = 1 GPU," in said(ranks=1)


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 GB"), (1.875e9, "1.9 GB"), (0.1171875e9, "0.12 GB"), (99.96e9, "100 GB"), (6.4937e12, "6,494 GB")],
)
def test_amounts_have_the_digits_of_the_paper(size, words):
    assert amount(size) == words


def test_sizes_beyond_a_hundred_thousand_gb_are_in_tb():
    assert (amount(99_999e9), amount(123_456e9)) == ("99,999 GB", "123 TB")


def test_every_control_changes_what_is_shown():
    others = dict(
        model=GPT_2.name, ranks=4, stage=2, precision="fp32", optimizer="SGD", activations="none", sequence=512
    )
    base = BASE | dict(activations="full", stage=1)
    words = said(**base)
    assert all(said(**base | {name: value}) != words for name, value in (*others.items(), ("micro_batch", 32)))
    assert draw(**base).svg() == draw(**base).svg() != draw(**base | dict(stage=2)).svg()


def test_the_ends_of_all_controls_are_drawn_legibly_in_one_size():
    ends = dict(
        model=(SHAPES[0].name, SHAPES[-1].name),
        ranks=(NUM_GPUS[0], NUM_GPUS[-1]),
        stage=(0, 3),
        activations=(NOT_COUNTED, "none"),
        sequence=(SEQUENCES[0], SEQUENCES[-1]),
    )
    lasts = dict(precision=PRECISIONS[-1], optimizer=list(OPTIMIZERS)[-1], micro_batch=MICRO_BATCHES[-1])
    settings = [dict(zip(ends, values)) for values in itertools.product(*ends.values())][:: len(ends) + 2]
    for setting in (*settings, lasts | dict(activations="none", sequence=SEQUENCES[-1])):
        board = draw(**BASE | setting)
        assert size_of(board) == (960, 460)
        assert_legible(board)


def test_bars_and_table_have_the_same_looks():
    board = draw(**BASE | dict(stage=0, activations="none"))
    looks = [mark.look for mark in board.marks if isinstance(mark, Boxes)]
    assert looks[:4] == looks[4:] == list(SERIES[:4])  # one bar of four kinds, then the table's rows


def test_a_bar_too_long_is_cut_by_a_gap_and_keeps_its_letters():
    board = draw(**BASE | dict(model=LLAMA_405B.name))
    above, below = sorted((mark for mark in board.marks if isinstance(mark, Area)), key=lambda mark: mark.points[0][1])
    assert max(y for _, y in above.points) < min(y for _, y in below.points)
    assert "6,494 GB" in board.written and "P" in board.written
    assert not any(isinstance(mark, Area) for mark in draw(**BASE).marks)


def test_the_panel_shows_a_view_a_picture_and_words_and_moves():
    panel = memory()
    bundle = panel._repr_mimebundle_()
    assert {"text/plain", "image/png", "application/vnd.jupyter.widget-view+json"} <= set(bundle)
    assert panel.values == BASE
    panel.set(stage=3)
    assert "stage 3: 1.9 GB on each" in repr(panel)
    assert list(panel.values) == list(memory(activations="full", stage=2).values)
    assert set(ACTIVATIONS.values()) == {NOT_COUNTED, "none", "selective", "full"}
