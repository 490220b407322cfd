"""JupyterLab as a learner meets it: the server with its token, headless Chromium, and a copy of the notebooks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distlab.course.places import ROOT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Lab:
    """One JupyterLab server over a copy of labs/ and solutions/, and a page in a browser."""

    def __init__(self, folder: Path, url: str, page):
        self.folder, self.url, self.page = folder, url, page

    def open(self, notebook: str) -> None:
        """Opens a notebook in a workspace of its own, where no other is open, and waits for its kernel."""
        address, _, query = self.url.partition("?")
        workspace = notebook.replace("/", "-").removesuffix(".ipynb")
        self.page.goto(f"{address.rstrip('/')}/workspaces/{workspace}/tree/{notebook}?{query}")
        self.page.wait_for_selector(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell", timeout=60_000)
        self.page.wait_for_selector(".jp-StatusBar-TextItem:has-text('| Idle')", timeout=60_000)

    def run_all(self, notebook: str, seconds: float) -> list[dict]:
        """Chooses Run All Cells, waits until the last cell has run, saves, and returns the code cells as saved."""
        self.page.click(".lm-MenuBar-itemLabel:text-is('Run')")
        self.page.click(".lm-Menu-itemLabel:text-is('Run All Cells')")
        self.page.wait_for_timeout(1500)
        ask = self.page.locator(".jp-Dialog button:has-text('Select')")
        if ask.count():  # JupyterLab asks for a kernel if it was not quite ready
            ask.first.click()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(1)
            self.page.keyboard.press("Control+s")
            with contextlib.suppress(json.JSONDecodeError):  # just being written
                cells = self.saved(notebook)
                if all(cell["execution_count"] for cell in cells):
                    return cells
        if folder := os.environ.get("DISTLAB_SCREENSHOTS"):
            self.page.screenshot(path=Path(folder) / "timeout.png")
        raise TimeoutError(f"{notebook} did not finish within {seconds} s")

    def saved(self, notebook: str) -> list[dict]:
        """The code cells of the notebook on disk."""
        cells = json.loads((self.folder / notebook).read_text())["cells"]
        return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A served course and an open browser; skips where there is no Chromium."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium (on Debian: apt install chromium)")
    with open_lab(tmp_path_factory.mktemp("course")) as opened:
        yield opened


@contextlib.contextmanager
def open_lab(folder: Path):
    """Serves a copy of the course in ``folder``, and opens a browser on it."""
    from playwright.sync_api import sync_playwright

    for name in ("labs", "solutions"):
        shutil.copytree(ROOT / name, folder / name)
    for path in folder.glob("*/*.ipynb"):
        _forget_outputs(path)
    server, url = _serve(folder)
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1280, "height": 1600})
            yield Lab(folder, url, page)
            browser.close()
    finally:
        server.terminate()
        server.wait(20)
        server.stdout.close()


def _forget_outputs(path: Path) -> None:
    """Leaves nothing in a solution from which a test could take that it has run."""
    content = json.loads(path.read_text())
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
    path.write_text(json.dumps(content))


def _serve(folder: Path) -> tuple[subprocess.Popen, str]:
    """Starts JupyterLab on a free port; returns it and its address with the token."""
    options = ["--no-browser", "--port=0", f"--ServerApp.root_dir={folder}", "--allow-root"]
    environment = os.environ | {"DISTLAB_HOME": str(folder / "progress"), "JUPYTER_CONFIG_DIR": str(folder / "config")}
    command = [sys.executable, "-m", "jupyterlab", *options]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in server.stdout:
        if found := re.search(r"http://127\.0\.0\.1:\d+/lab\?token=\w+", line):
            return server, found[0]
    raise RuntimeError(f"JupyterLab ended with exit code {server.wait()}")
