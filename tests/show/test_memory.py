"""Memory over time is drawn by kind."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from distlab.events import Compute, Memory, Span
from distlab.recording import Recording, RecordingError
from distlab.show import memories, memory
from distlab.show.areas import LOOKS
from distlab.show.board import LINE
from distlab.show.marks import Area


def three_moments(rank: int = 0, second: float = 0.0) -> list[Memory]:
    """Gradients and buffers come and go; activations are highest when there are none."""
    held = [(4_000, 0, 8_000, 5_000, 0), (4_000, 4_000, 8_000, 0, 2_000), (4_000 + rank, 0, 8_000, 1_000, 0)]
    return [Memory(*bytes, time=number * second) for number, bytes in enumerate(held)]


def two_steps() -> list:
    """Two steps with a forward pass each, looked at where each span begins and ends; weights come and go."""
    history, look = [], 0
    for name in ("step1", "F", "", "", "step2", "F", "", ""):
        look += 100
        history += [Span(name), Memory(parameters=look)]
    return history


def test_the_text_has_the_peak_of_each_kind_and_of_all_together():
    assert str(memory(Recording([three_moments(), [], three_moments(1_000_000)]))).splitlines() == [
        "bytes held on each rank: the peak of each kind, and of all together",
        "          parameters     gradients     optimizer   activations       buffers         other  all together",
        "rank 0          4 kB          4 kB          8 kB          5 kB          2 kB           0 B         18 kB",
        "rank 1 not looked at",
        "rank 2      1.004 MB          4 kB          8 kB          5 kB          2 kB           0 B      1.013 MB",
    ]


def test_of_many_ranks_the_lowest_and_the_highest_peak_are_shown():
    lines = str(memory(Recording([three_moments(10_000 * rank) for rank in range(20)]), 3)).splitlines()
    assert lines[1] == "of 20 ranks the one that peaks lowest, and the one that peaks highest"
    assert [line.split()[1] for line in lines[3:]] == ["0", "19"]


@pytest.mark.parametrize("second", [0.0, 0.001])
def test_the_image_is_of_one_rank(second):
    picture = memory(Recording([three_moments(), three_moments(5, second)]), rank=1)
    assert Image.open(io.BytesIO(picture.png())).size == (960, 372)
    assert picture.png() == picture.png() and picture.svg() == picture.svg()


def test_one_moment_and_no_bytes_are_drawn():
    assert memory(Recording([[Memory()]])).png()


def test_a_recording_without_memory_is_refused_in_words():
    with pytest.raises(ValueError, match="has no memory in it: no rank noted what it holds") as error:
        memory(Recording([[], []]))
    assert 'put `with span("step"):` around what you want to see, and run again' in str(error.value)
    for rank in (0, 2, -1):
        with pytest.raises(ValueError, match=f"Nothing was noted on rank {rank}. Memory was noted on ranks 1."):
            memory(Recording([[], three_moments()]), rank)


@pytest.mark.parametrize(
    ("history", "remedy"),
    [
        ([Compute(operators=7)], 'Ranks look where spans begin and end: put `with span("step"):` around'),
        ([Compute()], 'With record="messages" none does: run it with record=True'),
        ([Span("F"), Compute(), Span("")], 'With record="messages" none does: run it with record=True'),
    ],
    ids=["without a span", "messages", "messages, with a span"],
)
def test_a_run_without_memory_says_how_to_have_it(history, remedy):
    with pytest.raises(ValueError) as error:
        memory(Recording([history, history]))
    assert remedy in str(error.value) and "`with span(" in str(error.value)


def test_ranks_that_did_not_look_have_no_peak_among_many_ranks_either():
    ranks = [three_moments(10_000 * rank) if rank % 2 else [] for rank in range(20)]
    lines = str(memory(Recording(ranks), 3)).splitlines()
    assert lines[1].endswith("the one that peaks highest; 10 of them were not looked at")
    assert [line.split()[1] for line in lines[3:]] == ["1", "19"]


def test_a_rank_that_has_no_such_span_was_not_looked_at_during_it():
    one_step = [Span("step1"), Memory(parameters=5), Span(""), Memory(parameters=6)]
    picture = memory(Recording([two_steps(), one_step])).during("step2")
    assert picture.peaks[1] == {} and str(picture).splitlines()[-1] == "rank 1 not looked at"


def test_a_span_that_was_cut_shows_what_was_seen_of_it():
    picture = memory(Recording([two_steps()[:11], two_steps()[:9]], notes=("cut after 20 events",)))
    assert [event.parameters for event in picture.during("step2").noted[0]] == [500]
    assert str(picture.during("step2")).splitlines()[2:] == [
        "rank 0         500 B           0 B           0 B           0 B           0 B           0 B         500 B",
        "rank 1 not looked at",
        "note: cut after 20 events",
    ]
    with pytest.raises(ValueError, match="Rank 1 did not look at its memory in 'step2'"):
        memory(picture_of_the_same(), 1).during("step2")


def picture_of_the_same() -> Recording:
    return Recording([two_steps()[:11], two_steps()[:9]])


def test_where_nobody_looked_nothing_is_drawn():
    second, history = 1.0, []
    for step in range(3):
        for edge, name in enumerate(("step", "")):
            history += [Span(name), Memory(parameters=1_000, time=second * (3 * step + edge))]
    looks = memory(Recording([history])).looks[0]
    assert looks.last_before_a_gap == {1, 3, 5}
    outer = memory(Recording([[Span("all"), Memory(time=0.5), *history, Span(""), Memory(time=9.0)]])).looks[0]
    assert outer.last_before_a_gap == {7}
    assert outer.during("step").last_before_a_gap == {5}  # from step to step it was looked at, inside "all"
    pieces = [area for area in areas_of(memory(Recording([history]))) if area.look == LOOKS["parameters"]]
    looked_at = Recording([[event for event in history if type(event) is Memory]])
    (whole,) = (area for area in areas_of(memory(looked_at)) if area.look == LOOKS["parameters"])
    assert len(pieces) == 3 and sum(map(width_of, pieces)) < 0.7 * width_of(whole)


def areas_of(picture) -> list[Area]:
    return [mark for mark in picture.board().marks if isinstance(mark, Area)]


def width_of(area: Area) -> float:
    across = [x for x, _ in area.points]
    return max(across) - min(across)


def test_areas_are_stacked_and_as_high_as_what_was_held():
    picture = memory(Recording([three_moments()]))
    heights = {area.look: area.points for area in areas_of(picture)}
    parameters, optimizer = (heights[LOOKS[kind]] for kind in ("parameters", "optimizer"))
    floor, top = (pick(y for _, y in parameters) for pick in (max, min))
    highest, lowest = (pick(y for _, y in optimizer) for pick in (min, max))
    assert lowest == pytest.approx(top)  # where there are no gradients
    assert top - highest == pytest.approx(3 * (floor - top))  # 8 kB on 4 kB of gradients, on 4 kB of parameters


@pytest.mark.parametrize("number", [1, 3, 4])
def test_an_image_has_its_notes_or_the_first_of_them(number):
    notes = tuple(f"what one ought to know, {place}" for place in range(number))
    picture = memory(Recording([three_moments()], notes=notes))
    heights = [p.board().height for p in (memory(Recording([three_moments()])), picture)]
    assert heights[1] - heights[0] == pytest.approx(LINE * min(number, 4)) and picture.png() == picture.png()
    assert [words for words in picture.board().written if notes[0] in words]


def test_peaks_and_ends_are_numbers_by_rank_and_kind():
    picture = memory(Recording([three_moments(), []]))
    assert picture.peaks[0]["activations"] == 5_000 and picture.peaks[0]["all together"] == 18_000
    assert picture.ends == [
        dict(parameters=4_000, gradients=0, optimizer=8_000, activations=1_000, buffers=0, other=0)
        | {"all together": 13_000},
        {},
    ]


def test_a_span_can_be_looked_at_alone_with_the_spans_in_it():
    picture = memory(Recording([two_steps()]))
    second = picture.during("step2")
    assert [event.parameters for event in second.noted[0]] == [500, 600, 700, 800]
    assert [tuple(span) for span in second.spans[0]] == [("F", 1, 2)]
    assert [event.parameters for event in picture.during("F").noted[0]] == [200, 300, 600, 700]
    assert second.png() != picture.png()
    with pytest.raises(ValueError, match="no span on rank 0 is called 'B'; there are step1, F, step2"):
        picture.during("B")


def test_runs_stand_side_by_side_each_with_its_peaks():
    first, second = memory(Recording([three_moments()])), memory(Recording([two_steps()]))
    picture = memories({"stage 0": first, "stage 3": second})
    assert str(picture).splitlines() == [
        "bytes held on rank 0: the peak of each kind, and of all together",
        "           parameters     gradients     optimizer   activations       buffers         other  all together",
        "stage 0          4 kB          4 kB          8 kB          5 kB          2 kB           0 B         18 kB",
        "stage 3         800 B           0 B           0 B           0 B           0 B           0 B         800 B",
    ]
    assert picture.png() == picture.png() and Image.open(io.BytesIO(picture.png())).size == (960, 372)
    with pytest.raises(ValueError, match="at least one name and picture"):
        memories({})


def test_what_an_allocator_gave_out_is_put_beside_what_was_found():
    recording = Recording([[Memory(parameters=900, allocator=1_000), Memory(parameters=2_000, allocator=2_100)]])
    assert str(memory(recording)).splitlines()[-1] == (
        "rank 0: the device's allocator gave out up to 2.1 kB; 2 kB of it was found"
    )


def test_memory_is_saved_and_loaded_and_a_damaged_note_is_an_error(tmp_path):
    file = tmp_path / "recording.json"
    recording = Recording([three_moments()])
    recording.save(file)
    assert Recording.load(file).ranks == recording.ranks
    file.write_text(file.read_text().replace('["Memory", 4000,', '["Memory", "4000",', 1))
    with pytest.raises(RecordingError, match="rank 0, event 0: parameters must be int, got '4000'"):
        Recording.load(file)
    file.write_text(file.read_text().replace('["Memory", "4000",', '["Memory",', 1))
    with pytest.raises(RecordingError, match="rank 0, event 0: Memory has 8 fields, got 7"):
        Recording.load(file)
