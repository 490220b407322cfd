"""The demos in a browser: every widget driven by keyboard, and the talk of ten minutes rehearsed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.browser.panels import TIMEOUT, Panel

NOTEBOOK = "labs/demos.ipynb"
RING, DATA, SCHEDULES, TENSOR, MEMORY, ROUTING, CLUSTER, LIVE, TALK_DATA, TALK_SCHEDULES, TALK_MEMORY, TALK_CLUSTER = (
    range(12)
)


@pytest.fixture(scope="module")
def page(lab):
    """The notebook on a projector, all cells run once, the side bar closed."""
    lab.page.set_viewport_size({"width": 1280, "height": 720})
    lab.open(NOTEBOOK)
    cells = lab.run_all(NOTEBOOK, seconds=300)
    assert not [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]
    lab.page.keyboard.press("Control+b")
    return lab.page


@pytest.fixture
def panel(page, request):
    """Gives panels by number, and leaves a screenshot of the last if DISTLAB_SCREENSHOTS names a folder."""
    taken = []

    def take(number: int) -> Panel:
        taken.append(Panel(page, number))
        return taken[-1]

    yield take
    if folder := os.environ.get("DISTLAB_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{request.node.name}.png")


def test_a_ring_is_played_to_its_end_and_gone_back(panel):
    ring = panel(RING)
    ring.expect("0 of 6 steps done; next: reduce-scatter")
    ring.press("ranks n", "ArrowLeft")
    ring.expect("3 ranks: 0 of 4 steps done")
    ring.press("play", "Enter")
    ring.expect("4 of 4 steps done; every chunk is complete")
    ring.expect("1.33 S by each rank, 4 S in all")
    ring.press("◀ back", "Enter")
    ring.expect("3 of 4 steps done; next: all-gather")
    ring.press("step ▶", "Space")
    ring.expect("4 of 4 steps done")


def test_the_end_key_goes_to_the_last_step_whatever_their_number(panel):
    ring = panel(RING)
    for keys, steps in ((["End"], 14), (["Home"], 2), (["End", "ArrowLeft"], 12)):
        ring.press("ranks n", *keys)
        ring.expect(f"0 of {steps} steps done")
        ring.press("step", "End")
        ring.expect(f"{steps} of {steps} steps done")
        assert ring.value("step") == str(steps)
    ring.press("ranks n", "Home", "ArrowRight", "ArrowRight")


def test_a_demo_is_played_fast_or_slowly_and_reset(page, panel):
    ring = panel(RING)
    ring.press("ranks n", "End")
    ring.press("seconds a step", "Home")
    assert ring.value("seconds a step") == "0.4"
    ring.press("play", "Enter")
    ring.expect("3 of 14 steps done")
    assert ring.box.locator("button[title=play]").inner_text().endswith("pause")
    ring.press("reset", "Enter")
    ring.expect("0 of 14 steps done")
    page.wait_for_timeout(1000)  # two steps, if it still played
    ring.expect("0 of 14 steps done")
    assert ring.box.locator("button[title=play]").inner_text().endswith("play")
    ring.press("seconds a step", "End")
    assert ring.value("seconds a step") == "1.6"
    ring.press("seconds a step", "ArrowLeft")
    ring.press("ranks n", "Home", "ArrowRight", "ArrowRight")


def test_one_step_of_data_parallelism_is_played_and_its_mistakes_are_seen(panel):
    data = panel(DATA)
    data.press("play", "Enter")
    data.expect("5 update")
    data.press("step", "ArrowLeft")
    data.expect("All 4,810 numbers equal one process's")
    data.press("forget to divide", "Space")
    data.expect("−0.2681")
    data.press("forget to divide", "Space")
    data.press("forget to broadcast", "Space")
    data.press("step", "End")
    data.expect("0.249")


def test_schedules_change_with_every_control(panel):
    schedules = panel(SCHEDULES)
    schedules.expect("Bubble 0.2727")
    schedules.press("schedule", "ArrowRight")
    schedules.expect("Most activations held, by stage, in micro-batches: 4, 3, 2, 1.")
    schedules.press("backward / forward", "Home")
    schedules.press("latency / forward", "ArrowRight", "ArrowRight")
    schedules.expect("Bubble 0.4667")
    schedules.press("stages p", "ArrowLeft")
    schedules.expect("p = 3")
    schedules.press("micro-batches m", "ArrowRight")
    schedules.expect("m = 9")
    schedules.press("compare with", "End")
    schedules.expect("1F1B and ZB-H1: p = 3, m = 9")
    assert [words for words in schedules.words() if words.startswith("stage")] == ["stage 0", "stage 1", "stage 2"] * 2
    schedules.press("highlight", "ArrowRight")
    schedules.press("compare with", "Home")
    schedules.expect("1F1B: p = 3, m = 9")


def test_tensor_parallelism_is_played_to_its_end(panel):
    tensor = panel(TENSOR)
    tensor.press("play", "Enter")
    tensor.expect("step 11 of 11")
    tensor.expect("All-reduces: 1 forward, 1 backward")
    tensor.press("ranks t", "ArrowLeft")
    tensor.expect("on 2 ranks")


def test_memory_follows_stage_and_gpus(panel):
    memory = panel(MEMORY)
    for printed in ("31.4 GB", "16.6 GB", "1.9 GB"):
        memory.press("ZeRO stage", "ArrowRight")
        memory.expect(f"{printed} on each")
    memory.press("GPUs N", "ArrowLeft")
    memory.expect("N = 32")
    memory.press("model", *["ArrowRight"] * 4)
    memory.expect("Llama 3 405B on N = 32")


def test_routing_follows_k_capacity_and_balance(panel):
    routing = panel(ROUTING)
    routing.press("capacity factor", "End")
    routing.expect("0.0% of choices dropped")
    routing.press("top-k", "ArrowRight")
    routing.expect("Top-2 of 8 experts")
    routing.press("ranks", "Home")
    routing.press("balance loss α", "Home")
    routing.expect("α = 0.")


def test_a_run_is_replayed_on_another_network(panel):
    cluster = panel(CLUSTER)
    cluster.expect("15.38 ms on 2 nodes")
    cluster.press("network", "Home")
    cluster.expect("90.44 ms on 2 nodes")
    cluster.press("nodes", "Home")
    cluster.expect("13.67 ms on 1 node")
    cluster.press("run", "ArrowRight")
    cluster.expect("pipeline, 4 ranks")


def test_real_ranks_are_started_by_a_button_that_waits_until_they_have_finished(panel):
    live = panel(LIVE)
    live.press("start four ranks", "Enter")
    live.expect("They are running.")
    assert live.box.locator("button:disabled").count() == 2
    live.expect("All four have finished.")
    live.box.locator("pre", has_text="step 7: loss").wait_for(timeout=TIMEOUT)
    live.press("start a deadlock", "Enter")
    live.expect("Verdict: ranks 0 → 1 → 2 → 3 → 0 wait in a circle, each to send to the next.")
    live.box.locator("pre", has_text="dist.send(x, (rank + 1) % ranks)").wait_for(timeout=TIMEOUT)
    assert {"waits for", "send to rank 1", "send to rank 0"} <= set(live.words())
    assert live.image.locator("polygon").count() == 4  # heads of arrows
    live.box.locator("button:disabled").first.wait_for(state="detached", timeout=TIMEOUT)


def test_the_talk_of_ten_minutes_goes_as_it_is_written(page, panel):
    text = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)").text_content()  # cells out of sight have no inner_text
    assert "I am rank 3 of 4. Our numbers add up to 6." in text
    assert "ranks 0 and 1 each wait to send to the other" in text
    data = panel(TALK_DATA)
    data.press("step", *["ArrowRight"] * 4)
    data.press("forget to divide", "Space")
    data.expect("−0.2681")
    schedules = panel(TALK_SCHEDULES)
    schedules.expect("bubble 75.0%")
    for presses, bubble in ((7, "27.3%"), (19, "10.0%")):
        schedules.press("micro-batches m", *["ArrowRight"] * presses)
        schedules.expect(f"bubble {bubble}")
    memory = panel(TALK_MEMORY)
    memory.expect("120 GB on each")
    memory.press("ZeRO stage", *["ArrowRight"] * 3)
    memory.expect("1.9 GB on each")
    cluster = panel(TALK_CLUSTER)
    cluster.press("network", "Home")
    cluster.expect("90.44 ms")


def test_a_new_picture_stands_where_the_old_one_stood(panel):
    ring = panel(RING)
    before, picture = ring.place(), ring.picture()
    ring.press("ranks n", "End")
    ring.expect("8 ranks")
    assert ring.place() == before and ring.picture() != picture


@pytest.mark.parametrize("number", range(LIVE + 1))
def test_a_demo_fits_on_a_small_projector(page, panel, number):
    demo = panel(number)
    rows = demo.box.bounding_box()["height"] if number != LIVE else demo.place()["height"]
    assert rows <= 720 - 28 - 31 - 32 - 24  # without the menu, the tab, its tools and the line at the bottom


@pytest.mark.parametrize("number", range(LIVE + 1))
def test_hatches_are_those_of_the_picture_itself(page, panel, number):
    assert panel(number).strangers() == []


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (1920, 1080)])
def test_demos_are_as_wide_as_the_page_and_nothing_is_cut_beside_the_open_side_bar(page, panel, width, height):
    page.keyboard.press("Escape")
    page.keyboard.press("Control+b")
    page.set_viewport_size({"width": width, "height": height})
    try:
        page.locator("#filebrowser").wait_for(timeout=TIMEOUT)
        room = page.locator(".jp-WindowedPanel-outer:visible").first.bounding_box()["width"]
        for number in range(LIVE + 1):
            demo = panel(number)
            assert room - 130 < demo.place()["width"] <= room  # but for the cells' numbers
            assert demo.letters() >= 14.6  # pixels: 11 points
            assert demo.cut() == [] and demo.nameless() == []
    finally:
        page.keyboard.press("Escape")
        page.keyboard.press("Control+b")
        page.set_viewport_size({"width": 1280, "height": 720})
