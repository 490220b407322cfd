"""From a key on a demo's control to the new picture in a browser, beside a slider that swaps two stored images."""

import statistics
import tempfile
from pathlib import Path

import nbformat

from tests.benchmarks.table import Group, Row
from tests.browser.conftest import CHROMIUM, open_lab
from tests.browser.panels import Panel

NOTEBOOK = "labs/demos.ipynb"
TITLE = "a demo's control, from the key to the picture on the page"
PEER = "a slider that swaps two stored images"
CONTROLS = {  # by the number of the panel: its name, and the slider to move
    1: ("ring", "step"),
    2: ("data parallel", "step"),
    3: ("schedules", "micro-batches m"),
    4: ("tensor parallel", "step"),
    5: ("memory", "GPUs N"),
    6: ("routing", "line of text"),
    7: ("cluster", "nodes"),
}
KEYS = ("ArrowRight", "ArrowLeft") * 12
SWAP = """
import io
import ipywidgets as widgets
from PIL import Image

images = []
for grey in (64, 192):
    file = io.BytesIO()
    Image.new("RGB", (960, 400), (grey,) * 3).save(file, "PNG")
    images.append(file.getvalue())
slider = widgets.IntSlider(0, 0, 1, description="swap", tooltip="swap")
image = widgets.Image(value=images[0], format="png")
slider.observe(lambda change: setattr(image, "value", images[change["new"]]), "value")
box = widgets.VBox([slider, image])
box.add_class("distlab-panel")
box
"""


def measure():
    if CHROMIUM is None:
        return Group(TITLE, remarks=["skipped: there is no Chromium"])
    with tempfile.TemporaryDirectory() as folder, open_lab(Path(folder) / "course") as lab:
        _add_peer(lab.folder / NOTEBOOK)
        lab.page.set_viewport_size({"width": 1280, "height": 720})
        lab.open(NOTEBOOK)
        lab.run_all(NOTEBOOK, seconds=300)
        taken = {PEER: _seconds(Panel(lab.page, 0), "swap")}
        taken |= {name: _seconds(Panel(lab.page, number), label) for number, (name, label) in CONTROLS.items()}
    every = sorted(second for name, seconds in taken.items() if name != PEER for second in seconds)
    remarks = [
        f"all demos: median {statistics.median(every):.3f} s, 95th percentile {every[int(0.95 * len(every))]:.3f} s",
        "aim: 0.150 s and 0.300 s",
    ]
    return Group(TITLE, [Row(name, statistics.median(seconds)) for name, seconds in taken.items()], remarks)


def _seconds(panel, label):
    return [panel.milliseconds(label, key) / 1000 for key in KEYS]


def _add_peer(path):
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(SWAP))
    nbformat.write(notebook, path)
