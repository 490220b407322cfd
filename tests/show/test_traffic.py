"""Traffic is drawn, what was observed apart from what is assumed."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from distlab.recording import Recording
from distlab.show import bytes_by_kind, traffic
from distlab.show.look import look_of_message
from distlab.show.marks import Boxes
from tests.machine.recordings import each, hand_written_ring


def mixed(num_ranks: int) -> Recording:
    """Rank 0 sends to the others, and all join an all-reduce and a broadcast."""

    def write(rank, history):
        for other in range(1, num_ranks) if rank == 0 else ():
            history.send(other, 1_000_000 * other)
        if rank:
            history.recv(0, 1_000_000 * rank)
        history.collective("all_reduce", 3_145_728).collective("broadcast", 19_240, root=1)

    return each(num_ranks, write)


def image_of(picture) -> Image.Image:
    """A picture's image, read back."""
    image = Image.open(io.BytesIO(picture.png()))
    image.load()
    return image


def test_observed_and_assumed_bytes_stand_apart():
    assert str(traffic(mixed(4))).splitlines() == [
        "bytes sent, from rank (rows) to rank (columns), 4 ranks",
        "observed, by send:",
        "            to 0     to 1     to 2     to 3    in all",
        "from 0         ·     1 MB     2 MB     3 MB      6 MB",
        "from 1         ·        ·        ·        ·       0 B",
        "from 2         ·        ·        ·        ·       0 B",
        "from 3         ·        ·        ·        ·       0 B",
        "assumed, for built-in collectives:",
        "            to 0     to 1     to 2     to 3    in all",
        "from 0         · 4.719 MB        ·        ·  4.719 MB",
        "from 1         ·        · 4.738 MB 19.24 kB  4.757 MB",
        "from 2         ·        ·        · 4.719 MB  4.719 MB",
        "from 3  4.738 MB        ·        ·        ·  4.738 MB",
        "assumed for all_reduce: around a ring, 2(n−1)/n of its size from each rank",
        "assumed for broadcast: down a binomial tree, the whole on every edge",
        "observed 6 MB (send) + assumed 18.93 MB (built-in collectives) = 24.93 MB in all",
        "busiest sender: rank 0, 10.72 MB",
    ]


def test_a_ring_by_hand_is_all_observed():
    lines = str(traffic(hand_written_ring(8, 8_000_000).scaled(bytes=2))).splitlines()
    assert lines[0].endswith(", 8 ranks, as if 1 × the FLOPs, 2 × the bytes")
    assert lines[3] == "from 0         ·    28 MB        ·        ·        ·        ·        ·        ·     28 MB"
    assert lines[-2] == "observed 224 MB (send) + assumed 0 B (built-in collectives) = 224 MB in all"
    assert lines[-1] == "every rank sends 28 MB"


def test_sixty_four_ranks_have_a_digit_for_each_cell():
    lines = str(traffic(mixed(64))).splitlines()
    ninths = "".join(str(-(-9 * other // 63)) for other in range(1, 64))
    assert lines[2] == f"from 0  |·{ninths}|  2.016 GB"
    assert lines[3] == f"from 1  |{'·' * 64}|       0 B"
    assert lines[66].strip() == "a column for each target in order; 1 to 9: ninths of the largest, 63 MB"
    assert lines[68].startswith("from 0  |·9··")


def test_a_thousand_ranks_share_cells():
    lines = str(traffic(mixed(1000))).splitlines()
    assert lines[2].startswith("from 0–15    |1")
    assert max(map(len, lines)) <= 110
    assert sum(line.startswith("from") for line in lines) == 2 * 63


def test_no_messages_are_no_bytes():
    nothing = each(3, lambda rank, history: history.compute(1.0))
    assert str(traffic(nothing)).splitlines()[1:] == [
        "observed 0 B (send) + assumed 0 B (built-in collectives) = 0 B in all"
    ]
    assert str(bytes_by_kind(nothing)).splitlines()[1:] == ["no messages"]
    assert image_of(traffic(nothing)).width == image_of(bytes_by_kind(nothing)).width == 960


@pytest.mark.parametrize("num_ranks", [1, 2, 8, 64, 1000])
def test_images_have_their_size(num_ranks):
    recording = mixed(num_ranks) if num_ranks > 1 else each(1, lambda rank, history: history.collective("barrier", 0))
    image = image_of(traffic(recording))
    assert image.format == "PNG" and image.width == 960 and 300 < image.height < 560
    assert traffic(recording).png() == traffic(recording).png()
    assert image_of(bytes_by_kind(recording)).width == 960


def test_bytes_sent_by_kind_are_a_table_and_a_receive_sends_nothing():
    assert str(bytes_by_kind(mixed(3))).splitlines() == [
        "sent by each rank, by kind of message: how many, and the bytes that leave the rank with one",
        "                    send        all_reduce         broadcast",
        "rank 0        2 × 1.5 MB      1 × 4.194 MB           1 × 0 B",
        "rank 1                 –      1 × 4.194 MB      1 × 38.48 kB",
        "rank 2                 –      1 × 4.194 MB           1 × 0 B",
        "assumed for all_reduce: around a ring, 2(n−1)/n of its size from each rank",
        "assumed for broadcast: down a binomial tree, the whole on every edge",
    ]


def test_many_ranks_have_their_mean_and_the_largest_in_the_table():
    assert str(bytes_by_kind(mixed(64))).splitlines()[1:4] == [
        "                             send        all_reduce         broadcast",
        "mean of 64         0.9844 × 32 MB      1 × 6.193 MB      1 × 18.94 kB",
        "largest, rank 0        63 × 32 MB      1 × 6.193 MB           1 × 0 B",
    ]


def test_a_bar_has_a_part_for_each_kind_as_long_as_what_is_sent():
    recording = each(
        2, lambda _, history: [history.collective("all_gather", 400), history.collective("all_reduce", 400)]
    )
    picture = bytes_by_kind(recording)
    marks = [mark for mark in picture.board().marks if isinstance(mark, Boxes)]
    boxes = {mark.look.colour: mark.rectangles[0] for mark in reversed(marks)}  # the first of a colour: no legend
    gathered, reduced = (boxes[look_of_message(kind).colour] for kind in ("all_gather", "all_reduce"))
    assert reduced[2] - reduced[0] == pytest.approx(2 * (gathered[2] - gathered[0])) and gathered[2] == reduced[0]
    assert {"1 × all_gather", "1 × all_reduce", "600 B"} <= set(picture.board().written)


def test_a_table_of_many_kinds_is_cut_in_two():
    kinds = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "gather", "all_to_all"]
    lines = str(bytes_by_kind(each(2, lambda _, h: [h.collective(kind, 4) for kind in kinds]))).splitlines()
    assert [line.split() for line in (lines[1], lines[4])] == [sorted(kinds)[:5], sorted(kinds)[5:]]
    assert max(map(len, lines)) <= 110
