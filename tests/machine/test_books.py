"""What two public books print, held to what distlab.machine gives; docs/models.md shows both."""

from __future__ import annotations

import pytest

from tests.machine.books import PAGE, VALUES, page


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{value.row}: {value.question}")
def test_a_printed_value_is_met_or_its_difference_is_known(value):
    want = value.printed if value.expected is None else value.expected
    assert value.ours() == pytest.approx(want, rel=value.within)
    assert value.because or value.expected is None


def test_all_twenty_five_questions_are_asked():
    assert {value.row for value in VALUES} == set(range(1, 26))


def test_the_page_shows_what_is_computed():
    assert PAGE.read_text() == page(), "run python -m tests.machine.books"
