"""Parameters of well-known models, to the last one."""

from __future__ import annotations

import pytest

from distlab.machine.model_shapes import (
    GPT_2,
    LLAMA_8B,
    LLAMA_70B,
    LLAMA_405B,
    MIXTRAL,
    SHAPES,
    ZERO_7B,
    gpt_parameters,
    llama_parameters,
)

COUNTS = [
    (GPT_2, 1_557_611_200),
    (LLAMA_8B, 8_030_261_248),
    (LLAMA_70B, 70_553_706_496),
    (LLAMA_405B, 405_853_388_800),
    (MIXTRAL, 46_702_792_704),
]


@pytest.mark.parametrize(("shape", "count"), COUNTS, ids=lambda value: getattr(value, "name", ""))
def test_a_published_configuration_gives_the_published_count(shape, count):
    assert shape.parameters == count


def test_other_models_of_the_same_kinds_are_met_too():
    assert gpt_parameters(12, 768, 50257, 1024) == 124_439_808
    assert llama_parameters(32, 4096, 4096, 11008, 32000) == 6_738_415_616
    assert llama_parameters(80, 8192, 1024, 28672, 32000) == 68_976_648_192
    # A token's own in Mixtral: two experts, but the router of all eight.
    assert llama_parameters(32, 4096, 1024, 14336, 32000, experts=2) + 32 * 6 * 4096 == 12_879_925_248


def test_the_zero_papers_example_has_7_5_billion_and_layers_that_give_about_as_many():
    assert ZERO_7B.parameters == 7.5e9
    assert gpt_parameters(ZERO_7B.layers, ZERO_7B.width, 51200, 2048) == pytest.approx(7.5e9, rel=0.01)


def test_every_shapes_heads_divide_its_width():
    assert not any(shape.width % shape.heads for shape in SHAPES)
