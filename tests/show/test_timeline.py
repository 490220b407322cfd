"""Timelines say and show what each rank did when."""

from __future__ import annotations

import base64
import io
import re
from itertools import pairwise

import matplotlib
import pytest
from matplotlib._pylab_helpers import Gcf
from PIL import Image

from distlab.events import Compute, Done, Exit, Fail, Message, Span, Wait
from distlab.machine.machines import Link, classroom
from distlab.machine.reasons import ReplayError
from distlab.recording import History, Recording
from distlab.show import bytes_by_kind, timeline
from distlab.show.look import PLAIN, SERIES, UNLABELLED, Look, look_of_message, looks_of_spans
from distlab.show.marks import Boxes
from distlab.show.measured import measured
from distlab.show.timeline_image import timeline_image
from distlab.traffic import ASSUMPTIONS
from tests.machine.recordings import FREE, blocking_gpipe, each, gpipe, one_f_one_b, pipeline, with_links

SLOW = with_links(Link(0.0, 1.0))  # a byte takes a second
LEGEND = "F0─ computes, in span F0    ── computes    ~~ communicates    ·· waits    blank: has returned"


def lines_of(recording: Recording, machine=FREE, **more) -> list[str]:
    """The lines of a timeline's text."""
    return str(timeline(recording, machine, **more)).splitlines()


def rows_of(recording: Recording, machine=FREE, **more) -> list[str]:
    """Those that draw a rank."""
    return [line for line in lines_of(recording, machine, **more) if line.endswith("|")]


def image_of(recording: Recording, machine=FREE, **more) -> Image.Image:
    """A timeline's image, read back."""
    image = Image.open(io.BytesIO(timeline(recording, machine, **more).png()))
    image.load()
    return image


def written_on(picture) -> list[str]:
    """The texts on a timeline's image."""
    return timeline_image(picture.timeline).written


def two_ranks() -> Recording:
    """Rank 0 computes for 4 s and sends 4 bytes to rank 1, which computes for 1 s before and 2 s after."""
    return each(2, lambda rank, h: h.compute(4.0, "F0").send(1, 4) if rank == 0 else late_receiver(h))


def late_receiver(history: History) -> History:
    """Rank 1 of two."""
    return history.compute(1.0).recv(0, 4).compute(2.0, "update")


def measured_by_hand() -> Recording:
    """Rank 0 works 4 s and all-reduces, rank 1 works 1 s and waits for it; then rank 1 sends to rank 0."""
    reduce, send, recv = (Message(id, kind, sequence=1) for id, kind in ((1, "all_reduce"), (2, "send"), (3, "recv")))
    return Recording(
        [
            [
                *(Span("F0", time=10.0), Compute(start=10.0, end=14.0), Span("", time=14.0)),
                *(reduce._replace(start=14.0), Wait(1, 14.0), Done(1, 16.0)),
                *(recv._replace(start=16.0, peer=1), Wait(3, 16.0), Done(3, 20.0), Exit("returned", 20.0)),
            ],
            [
                *(Compute(start=10.0, end=11.0), reduce._replace(start=11.0), Wait(1, 11.0), Done(1, 16.0)),
                *(Span("B0", time=16.0), Compute(start=16.0, end=18.0), Span("", time=18.0)),
                *(send._replace(start=18.0, peer=0), Wait(2, 18.0), Done(2, 19.0), Exit("returned", 19.0)),
            ],
        ]
    )


def test_gpipe_of_four_stages_and_four_micro_batches():
    assert str(timeline(blocking_gpipe(4, 4), FREE)).splitlines() == [
        f"modelled on {FREE.describe(4)}",
        "rank 0 |F0───F1──F2───F3──·········································B0────────B1───────B2───────B3───────|",
        "rank 1 |·····F0──F1───F2──F3───···························B0───────B1────────B2───────B3───────         |",
        "rank 2 |·········F0───F1──F2───F3──··············B0───────B1───────B2────────B3───────                  |",
        "rank 3 |··············F0──F1───F2──F3───B0───────B1───────B2───────B3────────                           |",
        "        0                                                                                           21 s",
        LEGEND,
        *(
            f"rank {rank}: busy 12 s, communication 0 s exposed and 0 s hidden, idle 9 s, bubble 0.4286"
            for rank in range(4)
        ),
        "21 s in all, mean bubble 0.4286",
    ]


def test_a_send_shows_who_waits_and_what_travels():
    assert lines_of(two_ranks(), SLOW)[-7:] == [
        f"rank 0 |F0{'─' * 36}{'~' * 39}{' ' * 19}|",
        f"rank 1 |{'─' * 10}{'·' * 28}{'~' * 39}update{'─' * 13}|",
        "        0                                                                                           10 s",
        LEGEND,
        "rank 0: busy 4 s, communication 4 s exposed and 0 s hidden, idle 2 s, bubble 0.6000",
        "rank 1: busy 3 s, communication 4 s exposed and 0 s hidden, idle 3 s, bubble 0.7000",
        "10 s in all, mean bubble 0.6500",
    ]


def test_communication_behind_work_is_hidden_and_counted():
    def write(rank: int, history: History) -> None:
        history.compute(1.0)
        reduce = history.issue("all_reduce", 4)
        history.compute(3.0).wait(reduce)

    assert rows_of(each(2, write), SLOW)[0] == f"rank 0 |{'─' * 77}{'~' * 19}|"
    numbers = "rank 0: busy 4 s, communication 1 s exposed and 3 s hidden, idle 0 s, bubble 0.2000"
    assert numbers in lines_of(each(2, write), SLOW)


def test_neighbouring_spans_of_one_name_are_two_boxes_and_pieces_of_one_span_are_one():
    def write(rank: int, history: History) -> None:
        history.compute(1.0, "step").compute(1.0, "step")
        history.events += [Span("step"), Compute(1.0)]
        reduce = history.issue("all_reduce", 0)
        history.events += [Compute(1.0), Span("")]
        history.wait(reduce)

    assert rows_of(each(2, write))[0] == f"rank 0 |step{'─' * 20}step{'─' * 20}step{'─' * 44}|"


def test_labels_too_long_for_their_boxes_are_their_first_letter_and_never_another_number():
    steps = [f"F{number}" for number in range(48)]
    (row,) = rows_of(each(1, lambda rank, history: [history.compute(1.0, step) for step in steps]))
    assert row == f"rank 0 |{''.join(steps[:10])}{'F─' * 38}|"


def test_a_rank_that_did_nothing_is_an_empty_row():
    assert rows_of(Recording([[], History().compute(1.0, "F0").events])) == [
        f"rank 0 |{' ' * 96}|",
        f"rank 1 |F0{'─' * 94}|",
    ]


@pytest.mark.parametrize("recording", [Recording([]), Recording([[], []]), each(2, lambda _, h: h.compute(0.0))])
def test_what_took_no_time_is_drawn_too(recording):
    assert str(timeline(recording, FREE)).count(" 0 s") >= 1
    assert image_of(recording).width == 960


def test_sixty_four_ranks_have_a_line_each():
    lines = lines_of(pipeline(gpipe(64, 8)))
    assert [line.split(" |")[0] for line in lines[1:65]] == [f"rank {rank:<2}" for rank in range(64)]
    assert lines[67:] == [
        "least busy, rank 0: busy 16 s, communication 0 s exposed and 0 s hidden, idle 126 s, bubble 0.8873",
        "most busy, rank 0: busy 16 s, communication 0 s exposed and 0 s hidden, idle 126 s, bubble 0.8873",
        "142 s in all, mean bubble 0.8873",
    ]


def test_a_thousand_ranks_fold_and_say_so():
    lines = lines_of(each(1024, lambda rank, history: history.compute(1.0 + rank, "F0")))
    assert lines[1] == "1,024 ranks: one in 16 has a row"
    assert [int(line[5:9]) for line in lines if line.endswith("|")] == list(range(0, 1024, 16))


@pytest.mark.parametrize("num_ranks", [1, 2, 8, 64, 65, 1000])
def test_no_line_is_longer_than_110_columns(num_ranks):
    recording = each(num_ranks, lambda rank, h: h.compute(1.0 + rank, "F0").collective("all_reduce", 4))
    recording = Recording(recording.ranks, notes=("what one ought to know about it " * 9,)).scaled(2, 3)
    assert max(map(len, lines_of(recording, classroom))) <= 110


def test_the_title_names_the_machine_and_what_was_scaled():
    title = " ".join(line.strip() for line in lines_of(two_ranks().scaled(flops=1e6, bytes=10), classroom)[:2])
    assert title.startswith(f"modelled on {classroom.describe(2)}")
    assert title.endswith(", as if 1e+06 × the FLOPs, 10 × the bytes")


def test_a_part_is_named_and_stands_alone():
    lines = lines_of(two_ranks(), SLOW, during="update")
    assert ', during "update"' in " ".join(lines[:2])
    rows = [line for line in lines if line.endswith("|")]
    assert rows[1] == f"rank 1 |update{'─' * 90}|"
    assert f"{'0':>9}{'2 s':>95}" in lines


def test_notes_stand_below():
    recording = each(2, lambda rank, history: history.issue("all_reduce", 4))
    recording = Recording(recording.ranks, notes=("relies on buffering",))
    assert lines_of(recording)[-3:] == [
        "note: relies on buffering",
        "note: rank 0 never waits for all_reduce: its clock does not move for that.",
        "note: rank 1 never waits for all_reduce: its clock does not move for that.",
    ]


def test_work_that_was_not_counted_is_named():
    recording = each(2, lambda rank, h: h.compute(0.0).collective("all_reduce", 4))
    assert lines_of(recording, SLOW)[-1].startswith('note: no work was counted (record="messages")')


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_where_work_was_not_counted_nobody_is_said_to_be_idle(num_ranks):
    recording = each(num_ranks, lambda rank, h: h.compute(0.0).collective("all_reduce", 4))
    lines = lines_of(recording, SLOW)
    assert not any("busy 0 s" in line or "bubble" in line for line in lines)
    assert lines[-2].endswith("in all, without the ranks' work: how busy they are is not known")
    words = written_on(timeline(recording, SLOW))
    assert words.count("not counted") == num_ranks and not any("% busy" in word for word in words)


def test_what_was_cut_is_shown_as_far_as_all_ranks_are_known():
    whole = measured_by_hand()
    cut = Recording([whole.ranks[0][:6], whole.ranks[1][:7]], notes=("cut after 13 events",))
    lines = lines_of(cut, "measured")
    assert lines[1:4] == [
        f"rank 0 |F0{'─' * 62}{'~' * 32}|",
        f"rank 1 |{'─' * 16}{'·' * 48}{'~' * 32}|",
        f"{'0':>9}{'6 s':>95}",
    ]
    assert lines[-3:-1] == [
        "note: cut after 13 events",
        "note: shown as far as all ranks are known: the record of rank 0 ends first",
    ]


def test_a_rank_that_had_returned_before_the_cut_is_known_to_the_end():
    whole = measured_by_hand()
    cut = Recording([whole.ranks[0][:9], whole.ranks[1]], notes=("cut after 19 events",))
    assert f"{'0':>9}{'10 s':>95}" in lines_of(cut, "measured")
    assert lines_of(Recording([whole.ranks[0][:6], whole.ranks[1]]), "measured")[3] == f"{'0':>9}{'9 s':>95}"


def test_an_image_has_the_notes_that_stand_below_the_text():
    recording = Recording(two_ranks().ranks, notes=("relies on buffering",))
    assert "note: relies on buffering" in written_on(timeline(recording, SLOW))
    written = written_on(timeline(measured_by_hand(), "measured"))
    assert written[0] == "this computer, measured" and not any(words.startswith("note") for words in written)


def test_what_this_computer_measured():
    assert str(timeline(measured_by_hand(), "measured")).splitlines() == [
        "this computer, measured",
        f"rank 0 |F0{'─' * 36}{'~' * 20}{'·' * 19}{'~' * 19}|",
        f"rank 1 |{'─' * 10}{'·' * 28}{'~' * 20}B0{'─' * 17}{'~' * 10}{' ' * 9}|",
        f"{'0':>9}{'10 s':>95}",
        LEGEND,
        "rank 0: busy 4 s, communication 4 s exposed and 0 s hidden, idle 2 s, bubble 0.6000",
        "rank 1: busy 3 s, communication 3 s exposed and 0 s hidden, idle 4 s, bubble 0.7000",
        "10 s in all, mean bubble 0.6500",
        "note: a rank waits until all have issued an operation; from then until it has waited for it, it communicates",
    ]
    (arrow,) = timeline(measured_by_hand(), "measured").timeline.arrows
    assert (arrow.source, arrow.target, arrow.start, arrow.end) == (1, 0, 18.0, 20.0)


def test_a_part_of_what_was_measured():
    lines = lines_of(measured_by_hand(), "measured", during="B0")
    assert lines[:3] == [
        'this computer, measured, during "B0"',
        f"rank 0 |{'·' * 96}|",
        f"rank 1 |B0{'─' * 94}|",
    ]


def test_what_cannot_be_drawn_is_refused_in_words():
    with pytest.raises(ValueError, match="no measured times: it was written by hand"):
        timeline(two_ranks(), "measured")
    with pytest.raises(ValueError, match="Nobody measured this: the recording is as if 2 × the FLOPs"):
        timeline(measured_by_hand().scaled(flops=2), "measured")
    with pytest.raises(ValueError, match="in its own dtype, not bfloat16"):
        timeline(measured_by_hand(), "measured", dtype="bfloat16")
    with pytest.raises(ValueError, match="or \"measured\", not 'my laptop'"):
        timeline(two_ranks(), "my laptop")
    for machine in (SLOW, "measured"):
        with pytest.raises(ValueError, match="no span is called 'F9'; there are B0, F0"):
            timeline(measured_by_hand(), machine, during="F9")
    with pytest.raises(ReplayError, match="rank 0 waits in recv from rank 1"):
        timeline(each(2, lambda rank, history: history.recv(1 - rank, 4)), SLOW)


@pytest.mark.parametrize(("num_ranks", "height"), [(2, 104), (4, 208), (8, 336), (16, 480), (64, 1152), (1024, 1152)])
def test_an_image_is_as_high_as_its_ranks_need(num_ranks, height):
    image = image_of(pipeline(one_f_one_b(num_ranks, 4), 2.0))
    assert image.format == "PNG" and image.width == 960
    assert height < image.height < height + 170


def test_an_image_has_the_colours_of_its_spans():
    image = image_of(blocking_gpipe(4, 4)).convert("RGB")
    colours = {colour for _, colour in image.getcolors(1 << 20)}
    assert {(0x56, 0xB4, 0xE9), (0xE6, 0x9F, 0x00), (255, 255, 255)} <= colours


def test_the_same_recording_gives_the_same_text_and_image_to_the_byte(tmp_path):
    recording = pipeline(one_f_one_b(4, 8), 2.0)
    recording.save(tmp_path / "recording.json")
    again = Recording.load(tmp_path / "recording.json")
    first, second = timeline(recording, SLOW), timeline(again, SLOW)
    with matplotlib.rc_context({"font.size": 30, "savefig.dpi": 300}):
        assert (str(first), first.png()) == (repr(second), second.png())


def test_a_notebook_gets_the_text_and_the_image_and_no_figure_is_left_open(tmp_path):
    picture = timeline(two_ranks(), SLOW)
    bundle = picture._repr_mimebundle_()
    assert bundle["text/plain"] == str(picture)
    assert base64.b64decode(bundle["image/png"]) == picture.png() and bundle["image/svg+xml"] == picture.svg()
    picture.save(tmp_path / "picture.png")
    picture.save(tmp_path / "picture.svg")
    assert (tmp_path / "picture.png").read_bytes() == picture.png()
    assert (tmp_path / "picture.svg").read_text() == picture.svg()
    assert not Gcf.figs


def lightness(look) -> float:
    """The relative luminance of WCAG 2."""
    parts = (int(look.colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_spans_are_told_apart_without_colour():
    looks = looks_of_spans(["F0", "F1", "B0", "W", "forward", "update", "", "10"])
    assert list(looks) == ["F", "B", "W", "10", "forward", "update"]
    assert len(set(looks.values())) == len(looks) and len(set(SERIES)) == len(SERIES)
    for one, other in pairwise(SERIES):
        assert one.hatch != other.hatch or abs(lightness(one) - lightness(other)) > 0.1, (one, other)


def test_words_on_a_fill_can_be_read():
    for look in (*SERIES, UNLABELLED, PLAIN, *map(look_of_message, ASSUMPTIONS), look_of_message("send")):
        fill, ink = lightness(look), lightness(Look(look.ink, ""))
        assert (max(fill, ink) + 0.05) / (min(fill, ink) + 0.05) > 3, look


def test_a_kind_of_message_has_one_look_in_every_picture():
    def write(rank, history):
        history.collective("all_reduce", 4_000_000).collective("all_gather", 4_000_000)

    recording = each(2, write)
    looks = {look_of_message(kind).colour for kind in ("all_reduce", "all_gather")}
    for picture in (timeline(recording, SLOW), bytes_by_kind(recording)):
        assert looks <= {mark.look.colour for mark in picture.board().marks if isinstance(mark, Boxes)}
    assert len({look_of_message(kind) for kind in ("send", *ASSUMPTIONS)}) == len(ASSUMPTIONS)  # both barriers are one


def test_no_letter_is_smaller_than_eleven_points_at_700_pixels():
    for picture in (timeline(blocking_gpipe(4, 4), SLOW), bytes_by_kind(measured_by_hand())):
        svg = picture.svg()
        width = float(re.search(r'viewBox="0 0 (\S+)', svg).group(1))
        sizes = [float(size) * 700 / width for size in re.findall(r'font-size="([^"]+)"', svg)]
        assert min(sizes) > 11 * 4 / 3 - 0.1, min(sizes)


def test_on_the_measured_clock_a_wait_that_failed_ends_there_and_a_threads_wait_holds_up_nobody():
    def issue(id, start):
        return Message(id, "all_reduce", elements=1, bytes=4, start=start)

    histories = [
        [issue(1, 1.0), Wait(1, 1.0), Fail(1, 3.0), Exit("returned", 4.0)],
        [issue(1, 1.0), Wait(1, 1.0, when="thread"), Done(1, 3.0), Exit("returned", 4.0)],
    ]
    waits = [[s for s in of_rank if s.kind == "wait"] for of_rank in measured(Recording(histories)).segments]
    assert [(s.start, s.end) for s in waits[0]] == [(1.0, 3.0)] and waits[1] == []
