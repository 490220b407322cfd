"""A Recording is counted, scaled, saved, loaded and replayed; a damaged file says what is wrong and where."""

from __future__ import annotations

import json
import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from distlab import machines, run, span
from distlab.events import Compute, Message, Span
from distlab.recording import History, Recording, RecordingError
from distlab.show import timeline

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def by_hand() -> Recording:
    first = History().compute(2e9, "F0").send(1, 4096).collective("all_reduce", 800)
    second = History().recv(0, 4096).compute(1e9, "F0").collective("all_reduce", 800)
    return Recording([first.events, second.events])


def test_a_recording_counts_messages_and_work_by_rank():
    recording = by_hand()
    assert recording.world_size == 2 and recording.groups[0].members == (0, 1)
    assert recording.counts(0) == {"send": 1, "all_reduce": 1}
    assert [m.bytes for m in recording.messages(kind="all_reduce")] == [800, 800]
    assert recording.flops(0) == 2e9 and recording.flops(1) == 1e9


def test_scaling_multiplies_work_and_bytes_and_says_so():
    recording = by_hand().scaled(flops=10, bytes=3)
    assert recording.flops(1) == 1e10
    assert [m.bytes for m in recording.messages(0)] == [3 * 4096, 2400]
    assert recording.as_if == "as if 10 × the FLOPs, 3 × the bytes"
    span_with_flops = Recording([[Span("F", 5.0), Compute(1.0), Span("")]])
    assert span_with_flops.scaled(flops=2).ranks[0][0].flops == 10
    for wrong in ({"flops": 0}, {"bytes": -1}):
        with pytest.raises(ValueError, match="must be a positive factor"):
            recording.scaled(**wrong)


def recorded_step():
    weight = torch.ones(16, 16, requires_grad=True)
    with span("F", 0):
        loss = (torch.ones(4, 16) @ weight).sum()
    loss.backward()
    dist.all_reduce(weight.grad)
    if dist.get_rank() == 0:
        dist.send(weight.detach(), dst=1)
    elif dist.get_rank() == 1:
        dist.recv(torch.zeros(16, 16), src=0)


def test_a_run_saved_and_loaded_draws_the_same_to_the_byte(tmp_path):
    recording = run(recorded_step, ranks=3).recording
    recording.save(tmp_path / "step.json")
    loaded = Recording.load(tmp_path / "step.json")
    assert [list(history) for history in loaded.ranks] == [list(history) for history in recording.ranks]
    texts = {
        str(timeline(each, machines.h100_cluster))
        for each in (recording, loaded, Recording.load(tmp_path / "step.json"))
    }
    assert len(texts) == 1 and "modelled on H100 cluster" in texts.pop()


@pytest.mark.parametrize(("number", "num_fields"), [(1, {"Compute": 6, "Message": 17, "Wait": 4}), (2, {"Compute": 6})])
def test_a_recording_that_was_saved_before_events_had_more_fields_is_still_read(tmp_path, number, num_fields):
    by_hand().save(tmp_path / "now.json")
    content = json.loads((tmp_path / "now.json").read_text())
    content["format"] = f"distlab recording {number}"
    for history in content["ranks"]:
        for event in history:
            del event[1 + num_fields.get(event[0], len(event)) :]
    (tmp_path / "before.json").write_text(json.dumps(content))
    assert Recording.load(tmp_path / "before.json") == Recording.load(tmp_path / "now.json")


def test_products_are_saved_with_their_sizes_and_checked(tmp_path):
    recording = Recording([[Compute(8.0, 0.0, 3, products=((2.0, 24.0, 1), (3.0, 12.5, 2)))]])
    recording.save(tmp_path / "products.json")
    assert Recording.load(tmp_path / "products.json").ranks == recording.ranks
    content = json.loads((tmp_path / "products.json").read_text())
    content["ranks"][0][0][-1][1][2] = "two"
    (tmp_path / "products.json").write_text(json.dumps(content))
    with pytest.raises(RecordingError, match="products must be"):
        Recording.load(tmp_path / "products.json")


def damaged(tmp_path, change) -> str:
    """The complaint about a saved recording after ``change(content)``."""
    file = tmp_path / "damaged.json"
    by_hand().save(file)
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    with pytest.raises(RecordingError) as caught:
        Recording.load(file)
    return str(caught.value)


def test_what_is_wrong_with_a_file_is_said_with_its_place(tmp_path):
    def field(name, value):
        def change(content):
            event = content["ranks"][0][3]
            event[1 + Message._fields.index(name)] = value

        return change

    assert "rank 0, event 3: bytes must be int, got 'many'" in damaged(tmp_path, field("bytes", "many"))
    assert "rank 0, event 3 (Message): there is no group 7" in damaged(tmp_path, field("group", 7))
    assert "it sends to 9, which is not in group world" in damaged(tmp_path, field("peer", 9))
    assert "expected [kind, …]" in damaged(tmp_path, lambda c: c["ranks"][1].append(["Dance", 1]))
    assert "has 7 fields, got 1" in damaged(tmp_path, lambda c: c["ranks"][1].append(["Compute", 1.0]))
    assert "no message 99 was issued before it" in damaged(
        tmp_path, lambda c: c["ranks"][1].append(["Wait", 99, 0.0, 0, "now", 0.0])
    )
    assert "is not a recording" in damaged(tmp_path, lambda c: c.update(format="something else"))
    assert "is a damaged recording: KeyError" in damaged(tmp_path, lambda c: c.pop("ranks"))


def test_a_file_that_is_no_json_is_named(tmp_path):
    (tmp_path / "x.json").write_text("{ not json")
    with pytest.raises(RecordingError, match="x.json is not JSON"):
        Recording.load(tmp_path / "x.json")
