"""Parameters of well-known models, to the last one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from distlab.machine.model_shapes import (
    GPT_2,
    LLAMA_8B,
    LLAMA_70B,
    LLAMA_405B,
    MIXTRAL,
    SHAPES,
    ZERO_7B,
    Shape,
    shape_of,
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


LLAMA_2 = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32}
# What stands in published config.json files, as far as it is read, and the parameters that those who published say.
CONFIGS = [
    ({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024},
     124_439_808, 124_439_808),
    (LLAMA_2 | {"intermediate_size": 11008, "vocab_size": 32000}, 6_738_415_616, 6_738_415_616),
    ({"model_type": "llama", "num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64,
      "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 32000}, 68_976_648_192, 68_976_648_192),
    (LLAMA_2 | {"model_type": "mistral", "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000},
     7_241_732_096, 7_241_732_096),
    (LLAMA_2 | {"model_type": "mixtral", "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000,
                "num_local_experts": 8, "num_experts_per_tok": 2}, 46_702_792_704, 12_879_925_248),
    ({"model_type": "gemma", "num_hidden_layers": 28, "hidden_size": 3072, "num_attention_heads": 16,
      "num_key_value_heads": 16, "head_dim": 256, "intermediate_size": 24576, "vocab_size": 256000},
     8_537_680_896, 8_537_680_896),
    ({"model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32,
      "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
      "vocab_size": 151936, "tie_word_embeddings": False, "num_experts": 128, "num_experts_per_tok": 8},
     pytest.approx(30.5e9, rel=2e-3), pytest.approx(3.3e9, rel=0.02)),
]  # fmt: skip


@pytest.mark.parametrize(("config", "count", "active"), CONFIGS, ids=lambda value: str(value)[:30])
def test_a_published_config_gives_the_published_parameters(config, count, active, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    for shape in (shape_of(config), shape_of(tmp_path / "config.json")):
        assert (shape.parameters, shape.active_parameters) == (count, active)


def test_a_config_of_another_kind_or_with_a_part_missing_is_refused_by_name():
    with pytest.raises(ValueError, match="the shape of a 'mamba' is not known here; known are gpt2, llama"):
        shape_of({"model_type": "mamba"})
    with pytest.raises(KeyError, match="vocab_size"):
        shape_of(LLAMA_2 | {"intermediate_size": 11008})


def test_experts_and_wide_heads_are_counted():
    wide = Shape("wide", 64, 4096, 32, 16384, 32128, key_heads=8, head_width=256, is_tied=True)
    experts = replace(wide, experts=16, active_experts=2)
    found = [number / 1e9 for number in (wide.parameters, experts.parameters, experts.active_parameters)]
    assert found == pytest.approx([18.4, 211.7, 31.3], abs=0.05)


def test_a_kv_cache_holds_keys_and_values_of_every_layer():
    assert LLAMA_70B.kv_cache_bytes(1, number=1) == 163_840
    assert Shape("13B", 40, 5120, 40, 13824, 32000).kv_cache_bytes(8192) == 6_710_886_400
    assert LLAMA_8B.kv_cache_bytes(100, rows=3) == 2 * 32 * 8 * 128 * 100 * 3 * 2


def test_heads_that_do_not_divide_the_width_need_a_width_of_their_own():
    with pytest.raises(ValueError, match="3 heads do not divide a width of 10: give head_width"):
        Shape("odd", 1, 10, 3, 40, 100)


def test_the_zero_papers_example_has_7_5_billion_and_layers_that_give_about_as_many():
    assert ZERO_7B.parameters == 7.5e9
    assert replace(ZERO_7B, stated=0).parameters == pytest.approx(7.5e9, rel=0.01)


def test_every_shapes_heads_divide_its_width():
    assert not any(shape.width % shape.heads for shape in SHAPES)
