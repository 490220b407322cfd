"""A timeline's trace is one that trace viewers open: its events have what they need, pair up and nest."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from distlab import run, span
from distlab.events import Compute, Done, Exit, Message, Span, Wait
from distlab.machine.machines import Link, classroom
from distlab.recording import Recording
from distlab.show import timeline
from distlab.show.trace import trace
from tests.machine.recordings import FREE, blocking_gpipe, each, one_f_one_b, pipeline, random_program, with_links
from tests.show.test_timeline import SLOW, measured_by_hand, two_ranks

STORED = Path(__file__).with_name("trace.json")
REQUIRED = {
    "M": {"name": str, "pid": int, "args": dict},
    "X": {"name": str, "cat": str, "pid": int, "tid": int, "ts": float, "dur": float},
    "s": {"name": str, "cat": str, "id": int, "pid": int, "tid": int, "ts": float},
    "f": {"name": str, "cat": str, "id": int, "pid": int, "tid": int, "ts": float, "bp": str},
}
METADATA = {"process_name": "name", "process_sort_index": "sort_index"}
METADATA |= {"thread_name": "name", "thread_sort_index": "sort_index"}


def trace_of(recording: Recording, machine=FREE, **more) -> dict:
    """The trace of a timeline, as a viewer reads it."""
    picture = timeline(recording, machine, **more)
    return json.loads(json.dumps(trace(picture.timeline, recording)))


def of_phase(written: dict, *phases: str) -> list[dict]:
    """The events of some phases."""
    return [event for event in written["traceEvents"] if event["ph"] in phases]


def slices(written: dict, rank: int, kind: str) -> list[tuple]:
    """Name, start and duration of a rank's slices of one kind, in microseconds."""
    of_rank = [event for event in of_phase(written, "X") if (event["pid"], event["cat"]) == (rank, kind)]
    return [(event["name"], event["ts"], event["dur"]) for event in of_rank]


def tracks(written: dict, rank: int) -> list[str]:
    """What a rank's tracks are called."""
    named = [event for event in of_phase(written, "M") if event["name"] == "thread_name" and event["pid"] == rank]
    return [event["args"]["name"] for event in named]


def nanoseconds(microseconds: float) -> int:
    """Whole nanoseconds, which is what viewers count in."""
    assert microseconds * 1000 == pytest.approx(round(microseconds * 1000))
    return round(microseconds * 1000)


def holds(event: dict, at: int) -> bool:
    """Whether a viewer takes a moment for a part of a slice: its very end is not."""
    start = nanoseconds(event["ts"])
    return start <= at < start + nanoseconds(event["dur"])


def validate(written: dict) -> None:
    """Fails where a viewer would drop something, or show it somewhere else."""
    assert list(written) == ["displayTimeUnit", "otherData", "traceEvents"] and written["displayTimeUnit"] == "ms"
    for event in written["traceEvents"]:
        needed = REQUIRED[event["ph"]]
        assert all(isinstance(event.get(key), kind) for key, kind in needed.items()), event
        assert event["ph"] != "M" or list(event["args"]) == [METADATA[event["name"]]]
        assert event.get("ts", 0) >= 0 and event.get("dur", 0) >= 0
    times = [nanoseconds(event["ts"]) for event in of_phase(written, "X", "s", "f")]
    assert times == sorted(times)
    by_track = defaultdict(list)
    for event in of_phase(written, "X"):
        by_track[event["pid"], event["tid"]].append(event)
    check_names(written, by_track)
    for events in by_track.values():
        check_nesting(events)
    check_flows(written, by_track)


def check_names(written: dict, by_track: dict) -> None:
    """Every rank and every track has a name and a place, once; no two ranks share a track's number."""
    named = Counter((e["name"], e["pid"], e.get("tid")) for e in of_phase(written, "M"))
    ranks = {pid for name, pid, _ in named if name == "process_name"}
    wanted = {(name, pid, None) for pid in ranks for name in METADATA if name.startswith("process")}
    wanted |= {(name, *track) for track in by_track for name in METADATA if name.startswith("thread")}
    assert set(named) == wanted and set(named.values()) <= {1}
    assert ranks == set(range(len(ranks))) and {pid for pid, _ in by_track} <= ranks
    assert len({tid for _, tid in by_track}) == len(by_track)


def check_nesting(events: list[dict]) -> None:
    """Slices of one track lie in one another or apart, the outer one written first."""
    open_ends = []
    for event in events:
        start = nanoseconds(event["ts"])
        end = start + nanoseconds(event["dur"])
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        assert event["cat"] == "span" or not open_ends, event
        assert not open_ends or end <= open_ends[-1], event
        open_ends.append(end)


def check_flows(written: dict, by_track: dict) -> None:
    """Each arrow starts once and ends once, not before, and has a slice at both ends."""
    starts, ends = ({event["id"]: event for event in of_phase(written, phase)} for phase in "sf")
    assert starts.keys() == ends.keys() and 2 * len(starts) == len(of_phase(written, "s", "f"))
    for event in (*starts.values(), *ends.values()):
        at = nanoseconds(event["ts"])
        assert sum(holds(around, at) for around in by_track[event["pid"], event["tid"]]) == 1, event
    for number, end in ends.items():
        assert end["bp"] == "e" and starts[number]["ts"] <= end["ts"]
        assert (starts[number]["name"], starts[number]["cat"]) == (end["name"], end["cat"])


def without_spans() -> Recording:
    """Two ranks that compute and exchange, and name nothing."""
    return each(2, lambda rank, h: h.compute(1.0 + rank).collective("all_reduce", 4).compute(1.0))


def nested_spans() -> Recording:
    """A step of two parts on one rank, the second as long as the step's rest."""
    events = [Span("step"), Span("forward"), Compute(2.0), Span(""), Span("backward"), Compute(3.0), Span(""), Span("")]
    return Recording([events])


def cut() -> Recording:
    """What was recorded of measured_by_hand when the room was full."""
    whole = measured_by_hand()
    return Recording([whole.ranks[0][:6], whole.ranks[1][:7]], notes=("cut after 13 events",))


CASES = {
    "a message": (two_ranks(), SLOW),
    "messages that take no time": (blocking_gpipe(4, 4), FREE),
    "many at once": (pipeline(one_f_one_b(4, 8), 2.0, receive_early=True), with_links(Link(0.5, 1.0))),
    "no spans": (without_spans(), SLOW),
    "nested spans": (nested_spans(), FREE),
    "measured": (measured_by_hand(), "measured"),
    "measured and cut": (cut(), "measured"),
    "measured, then modelled": (measured_by_hand(), classroom),
    "nothing": (Recording([[], []]), FREE),
    "no rank": (Recording([]), FREE),
    **{f"random {seed}": (random_program(seed), with_links(Link(0.001, 0.3))) for seed in range(5)},
}


@pytest.mark.parametrize("case", CASES)
def test_a_trace_is_one_that_viewers_open(case):
    validate(trace_of(*CASES[case]))


@pytest.mark.parametrize("change", ["dur", "id", "name", "ts", "pid"])
def test_the_check_of_traces_finds_what_is_wrong(change):
    written = trace_of(two_ranks(), SLOW)
    wrong = {"dur": -1.0, "id": 99, "name": None, "ts": 1e9, "pid": 7}
    next(event for event in written["traceEvents"] if change in event and event["ph"] != "M")[change] = wrong[change]
    with pytest.raises(AssertionError):
        validate(written)


def test_what_is_written_by_hand_is_written_as_stored():
    written = trace_of(two_ranks(), SLOW)
    assert written == json.loads(STORED.read_text())


@pytest.mark.parametrize("case", ["a message", "measured", "measured and cut"])
def test_what_a_rank_does_lasts_as_long_as_in_the_picture(case):
    recording, clock = CASES[case]
    shown, written = timeline(recording, clock).timeline, trace_of(recording, clock)
    for rank, segments in enumerate(shown.segments):
        for kind in ("compute", "wait", "communication"):
            expected = [1e6 * (s.end - s.start) for s in segments if s.kind == kind]
            assert [dur for _, _, dur in slices(written, rank, kind)] == pytest.approx(expected)


def test_spans_of_one_rank_lie_in_one_another_on_one_track():
    written = trace_of(nested_spans())
    assert tracks(written, 0) == ["spans", "computes"]
    assert slices(written, 0, "span") == [("step", 0, 5e6), ("forward", 0, 2e6), ("backward", 2e6, 3e6)]


def test_a_rank_without_spans_has_no_track_of_them():
    written = trace_of(without_spans(), SLOW)
    assert tracks(written, 0) == ["computes", "waits", "communicates"]
    assert slices(written, 1, "wait")[0] == ("all_reduce", 2e6, 4e6)


def test_what_travels_at_the_same_time_is_on_tracks_of_its_own():
    def write(rank, history):
        both = history.issue("send", 4, peer=1 - rank), history.issue("recv", 4, peer=1 - rank)
        history.compute(1.0).wait(both[0]).wait(both[1])

    written = trace_of(each(2, write), SLOW)
    assert tracks(written, 0) == ["computes", "waits", "communicates", "communicates 2"]
    assert {name for name, *_ in slices(written, 0, "communication")} == {"send to rank 1", "recv from rank 1"}


def test_a_part_is_cut_at_its_ends_and_begins_at_zero():
    written = trace_of(measured_by_hand(), "measured", during="B0")
    validate(written)
    assert slices(written, 1, "span") == [("B0", 0, 2e6)]
    assert slices(written, 0, "wait") == [("recv from rank 1", 0, 2e6)]
    assert written["otherData"]["clock"] == 'this computer, measured, during "B0"'


def test_the_clock_and_the_notes_stand_in_the_trace():
    data = trace_of(cut(), "measured")["otherData"]
    assert data["clock"] == "this computer, measured" and "cut after 13 events" in data["notes"]
    assert trace_of(two_ranks(), classroom)["otherData"]["clock"] == f"modelled on {classroom.describe(2)}"


def test_a_message_that_its_sender_was_done_with_before_it_was_received_keeps_its_arrow():
    send, recv = Message(1, "send", peer=1, start=1.0), Message(1, "recv", peer=0, start=5.0)
    sender = [send, Wait(1, 1.0), Done(1, 2.0), Exit("returned", 8.0)]
    receiver = [recv, Wait(1, 5.0), Done(1, 6.0), Exit("returned", 8.0)]
    written = trace_of(Recording([sender, receiver]), "measured")
    validate(written)
    assert slices(written, 0, "communication") == [("send to rank 1", 4e6, 0.001)]
    assert slices(written, 1, "communication") == [("recv from rank 0", 4e6, 1e6)]


def exchange():
    """On a rank: sums and sends, in a span."""
    x = torch.ones(1000, dtype=torch.float64)
    with span("step"):
        (x * 2).sum()
        dist.all_reduce(x)
        if dist.get_rank() == 0:
            dist.send(x[:10], dst=1)
        else:
            dist.recv(x[:10], src=0)


@pytest.fixture(scope="module")
def recorded():
    return run(exchange, ranks=2, device="cpu")


@pytest.mark.parametrize("machine", [classroom, "measured"])
def test_a_run_writes_its_trace_with_bytes_and_the_learners_lines(recorded, tmp_path, machine):
    recorded.timeline(machine).save(tmp_path / "step.json")
    written = json.loads((tmp_path / "step.json").read_text())
    validate(written)
    assert "step" in {name for name, *_ in slices(written, 0, "span")}
    reduce = next(event["args"] for event in of_phase(written, "X") if event["name"] == "all_reduce")
    assert (reduce["bytes"], reduce["dtype"], reduce["shape"], reduce["group"]) == (8000, "float64", [1000], "world")
    assert reduce["place"].startswith("tests/show/test_trace.py, line")
    (send,) = [event["args"] for event in of_phase(written, "X") if event["cat"] == "wait" and "send" in event["name"]]
    assert send["bytes"] == 80 and len(of_phase(written, "s")) == 1


def test_only_a_name_that_ends_in_json_gets_a_trace(tmp_path):
    picture = timeline(two_ranks(), SLOW)
    picture.save(tmp_path / "step.png")
    picture.save(str(tmp_path / "step.JSON"))
    assert (tmp_path / "step.png").read_bytes() == picture.png()
    assert json.loads((tmp_path / "step.JSON").read_text())["traceEvents"]


def test_a_path_that_cannot_be_written_is_said_to_be_so(tmp_path):
    picture = timeline(two_ranks(), SLOW)
    with pytest.raises(FileNotFoundError, match="There is no folder .*nowhere for the trace step.json: make it first"):
        picture.save(tmp_path / "nowhere" / "step.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(IsADirectoryError, match=r"folder\.json is a folder: name a file in it"):
        picture.save(tmp_path / "folder.json")
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="There is no folder"):
        picture.save(tmp_path / "file" / "step.json")
