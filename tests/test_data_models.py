"""The digits, the text and the GPT that the labs share: the same everywhere, whatever Python's release."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from distlab.data import VOCABULARY, digits, text, text_batch
from distlab.models import Attention, attention_weights, gpt, join_heads, split_heads


def test_the_digits_are_those_that_scikit_learn_loads():
    x_BD, y_B = digits("all", torch.float64)
    theirs = load_digits()
    where = {row.tobytes(): label for row, label in zip(theirs.data / 16, theirs.target)}
    assert x_BD.shape == (1797, 64) and y_B.dtype == torch.int64
    assert sorted(row.numpy().tobytes() for row in x_BD) == sorted(row.tobytes() for row in theirs.data / 16)
    assert [where[row.numpy().tobytes()] for row in x_BD] == y_B.tolist()


def test_the_vocabulary_is_newline_and_printable_ascii_whatever_the_text():
    ids, vocabulary = text("all")
    assert vocabulary == VOCABULARY == "\n" + "".join(map(chr, range(32, 127)))
    assert len(vocabulary) == 96 and ids.dtype == torch.int64
    assert 0 <= ids.min() and ids.max() < 96


def test_the_text_is_english_and_its_parts_make_the_whole():
    train, vocabulary = text()
    test, _ = text("test")
    assert torch.equal(torch.cat([train, test]), text("all")[0])
    assert len(train) > 100_000 and len(test) == (len(train) + len(test)) // 10
    words = "".join(vocabulary[id] for id in train[:50_000])
    assert words.count(" the ") > 100


def test_the_text_that_is_returned_may_be_written_to():
    text()[0].zero_()
    assert text()[0].any()


def test_an_unknown_part_is_refused():
    with pytest.raises(ValueError, match='"train", "test" or "all"'):
        text("validation")


def test_a_batch_pairs_each_character_with_the_next():
    state = torch.random.get_rng_state()
    x, y = text_batch(5, 7, seed=3)
    assert x.shape == y.shape == (5, 7) and torch.equal(x[:, 1:], y[:, :-1])
    assert torch.equal(x, text_batch(5, 7, seed=3)[0]) and not torch.equal(x, text_batch(5, 7, seed=4)[0])
    assert torch.equal(state, torch.random.get_rng_state())


def test_heads_are_split_one_after_the_other_and_joined_again():
    x = torch.arange(2 * 3 * 8.0).view(2, 3, 8)
    split = split_heads(x, 4)
    assert split.shape == (2, 4, 3, 2) and torch.equal(split[:, 1], x[:, :, 2:4])
    assert torch.equal(join_heads(split), x)


def test_attention_equals_torchs_own():
    torch.manual_seed(0)
    layer, x = Attention(8, 4).double(), torch.randn(2, 5, 8, dtype=torch.float64)
    q, k, v = (split_heads(part, 4) for part in layer.qkv(x).chunk(3, -1))
    attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(layer(x), layer.out(join_heads(attended)), rtol=0, atol=1e-12)
    assert torch.equal(attention_weights(q, k).triu(1), torch.zeros(2, 4, 5, 5, dtype=torch.float64))


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match="multiple of num_heads, got 8 and 3"):
        gpt(width=8, num_heads=3)


def test_a_gpt_has_the_parameters_of_the_formula():
    vocabulary, width, layers, context = 96, 32, 3, 16
    parameters = layers * (12 * width**2 + 13 * width) + 2 * width + (vocabulary + context) * width
    model = gpt(vocabulary, width, layers, 4, context, tied=True)
    assert sum(p.numel() for p in model.parameters()) == parameters
    untied = gpt(vocabulary, width, layers, 4, context)
    assert sum(p.numel() for p in untied.parameters()) == parameters + vocabulary * width


def test_the_same_seed_gives_the_same_weights_and_leaves_the_random_state_alone():
    state = torch.random.get_rng_state()
    one, same, other = gpt(seed=1), gpt(seed=1, dtype=torch.float64), gpt(seed=2)
    assert torch.equal(state, torch.random.get_rng_state())
    for a, b in zip(one.parameters(), same.parameters()):
        assert b.dtype == torch.float64 and torch.equal(a.double(), b)
    assert not torch.equal(one.tokens.weight, other.tokens.weight)


def test_a_gpt_looks_at_no_later_character():
    model, (x, _) = gpt(dtype=torch.float64), text_batch(2, 12)
    changed = x.clone()
    changed[:, 8:] = 5
    before, after = model(x), model(changed)
    assert before.shape == (2, 12, 96) and torch.equal(before[:, :8], after[:, :8])
    assert not torch.equal(before[:, 8:], after[:, 8:])


def test_dropout_is_drawn_in_training_only():
    model, (x, _) = gpt(dropout=0.5), text_batch(2, 12)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))
    assert all(module.p == 0.5 for module in model.modules() if isinstance(module, nn.Dropout))


def test_a_gpt_learns_the_text():
    model = gpt(width=32, num_layers=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for step in range(40):
        x, y = text_batch(8, 32, seed=step)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert abs(losses[0] - math.log(96)) < 0.3 and losses[-1] < 3.3
