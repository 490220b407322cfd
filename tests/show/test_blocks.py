"""Which rank holds which block of which matrix is drawn, and said."""

from __future__ import annotations

import pytest

from distlab.show.blocks import Matrix, blocks
from tests.show.test_traffic import image_of

MLP = blocks(
    "MLP on 2 ranks",
    *[Matrix("X", "s", "h"), "f", "×", Matrix("A", "h", "4h", "columns", [0, 1]), "GELU\nin each stripe"],
    *["×", Matrix("B", "4h", "h", "rows", [0, 1]), "Σ", Matrix("Z", "s", "h")],
)


def test_each_matrix_and_each_sign_has_a_line_of_text():
    assert str(MLP).splitlines() == [
        "MLP on 2 ranks",
        "  X (s × h)                whole on every rank",
        "  f   here the parts of the gradient meet on the way back: an all-reduce",
        "  ×",
        "  A (h × 4h)               columns of ranks |0|1|",
        "  GELU in each stripe",
        "  ×",
        "  B (4h × h)               rows of ranks |0|1|",
        "  Σ   here the parts of every sum meet: an all-reduce",
        "  Z (s × h)                whole on every rank",
    ]


def test_parts_with_labels_are_told_apart():
    fused = blocks("attention", Matrix("QKV", "h", "3h", "columns", [0, 1] * 3, ["Q", "K", "V"]))
    assert str(fused).splitlines()[1] == "  QKV (h × 3h)             columns of ranks |Q 0|1|  |K 0|1|  |V 0|1|"


def test_the_image_is_as_wide_as_others_and_the_same_each_time():
    image = image_of(MLP)
    assert image.format == "PNG" and image.width == 960 and MLP.png() == MLP.png()


def test_many_ranks_and_a_crowded_row_still_fit():
    wide = [Matrix(str(i), "a", "b", "rows", range(8), size=(1, 2)) for i in range(5)]
    assert image_of(blocks("crowded", *wide)).width == 960


@pytest.mark.parametrize("wrong", [dict(cut="diagonal", owners=[0]), dict(cut="rows"), dict(owners=[0])])
def test_a_cut_that_is_none_is_refused(wrong):
    with pytest.raises(ValueError, match='"columns" or "rows"'):
        Matrix("A", "h", "h", **wrong)
