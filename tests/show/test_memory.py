"""Memory over time is drawn by kind."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from distlab.events import Memory
from distlab.recording import Recording
from distlab.show import memory


def three_moments(rank: int = 0, second: float = 0.0) -> list[Memory]:
    """Gradients come and go; other memory is highest when there are none."""
    held = [(4_000, 0, 8_000, 5_000), (4_000, 4_000, 8_000, 0), (4_000 + rank, 0, 8_000, 1_000)]
    return [Memory(*bytes, time=number * second) for number, bytes in enumerate(held)]


def test_the_text_has_the_peak_of_each_kind_and_of_all_together():
    assert str(memory(Recording([three_moments(), [], three_moments(1_000_000)]))).splitlines() == [
        "bytes held on each rank: the peak of each kind, and of all together",
        "          parameters     gradients     optimizer         other  all together",
        "rank 0          4 kB          4 kB          8 kB          5 kB         17 kB",
        "rank 2      1.004 MB          4 kB          8 kB          5 kB      1.013 MB",
    ]


def test_of_many_ranks_the_lowest_and_the_highest_peak_are_shown():
    lines = str(memory(Recording([three_moments(10_000 * rank) for rank in range(20)]), 3)).splitlines()
    assert lines[1] == "of 20 ranks the one that peaks lowest, and the one that peaks highest"
    assert [line.split()[1] for line in lines[3:]] == ["0", "19"]


@pytest.mark.parametrize("second", [0.0, 0.001])
def test_the_image_is_of_one_rank(second):
    picture = memory(Recording([three_moments(), three_moments(5, second)]), rank=1)
    assert Image.open(io.BytesIO(picture.png())).size == (960, 320)
    assert picture.png() == picture.png()


def test_one_moment_and_no_bytes_are_drawn():
    assert memory(Recording([[Memory()]])).png()


def test_a_recording_without_memory_is_refused_in_words():
    with pytest.raises(ValueError, match="has no memory in it: no rank noted what it holds"):
        memory(Recording([[], []]))
    for rank in (0, 2, -1):
        with pytest.raises(ValueError, match=f"Nothing was noted on rank {rank}. Memory was noted on ranks 1."):
            memory(Recording([[], three_moments()]), rank)
