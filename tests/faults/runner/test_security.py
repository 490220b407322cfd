"""Nothing listens beyond this computer, private files stay private, and recordings run nothing when they are read."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import stat
import sys
import tempfile
import threading
import time
from pathlib import Path

import cloudpickle
import psutil
import pytest
import torch
import torch.distributed as dist

from distlab import run
from distlab.ranks.job import read_job
from distlab.recording import Recording, RecordingError

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def talk_until(over: Path):
    """Ranks that talk until the file is there, as all of them hear from one of them."""
    while True:
        is_over = torch.full((1000,), float(over.exists()))
        dist.all_reduce(is_over)
        if is_over.any():
            return
        time.sleep(0.01)


def during(look, over: Path) -> list:
    """What ``look`` finds while ranks talk, as soon as it finds anything; then it makes the file ``over``."""
    found, is_over = [], threading.Event()

    def keep_looking():
        while not found and not is_over.wait(0.05):
            found.extend(look())
        over.touch()

    thread = threading.Thread(target=keep_looking)
    thread.start()
    try:
        run(talk_until, over, ranks=3, device="cpu", timeout=20)
    finally:
        is_over.set()
        thread.join()
    return found


def test_every_socket_of_a_run_is_on_loopback(tmp_path):
    def sockets():
        family = [psutil.Process(), *psutil.Process().children(recursive=True)]
        found = []
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                found += process.net_connections("inet")
        return found

    found = during(sockets, tmp_path / "over")
    assert found, "ranks that talk have sockets"
    addresses = {end.ip.removeprefix("::ffff:") for c in found for end in (c.laddr, c.raddr) if end}
    assert addresses <= {"127.0.0.1", "::1"}, addresses


def test_the_files_of_a_run_are_private(tmp_path):
    def modes():
        folders = list(Path(tempfile.gettempdir()).glob(f"distlab-{os.getpid()}-*"))
        inside = [path for folder in folders for path in folder.rglob("*")]
        return [(path.name, stat.S_IMODE(path.stat().st_mode)) for path in (*folders, *inside)] if inside else []

    found = dict(during(modes, tmp_path / "over"))
    assert {"job", "store", "log-0", "stack-2"} <= set(found), found
    assert not {name: mode for name, mode in found.items() if mode & 0o077}


def test_a_job_that_is_not_the_notebooks_is_not_unpickled(tmp_path):
    ran = tmp_path / "ran"

    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(ran),)

    (tmp_path / "job").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match="is not the one that the notebook wrote: it has been changed"):
        read_job(str(tmp_path), "the digest of another")
    assert not ran.exists()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"format": "distlab recording 2"}',
        '{"__reduce__": ["os.system", ["echo"]]}',
        "cos\nsystem\n(S'echo'\ntR.",
        {"ranks": [[["Compute", "x"]]]},
        {"ranks": [[["os.system", 1]]]},
        {"ranks": [[["Wait", 1, 0.0, 0, "now"]]]},
        {"groups": [["world"]]},
    ],
)
def test_a_malformed_recording_is_refused_in_words(tmp_path, content):
    path = tmp_path / "recording.json"
    empty = {"format": "distlab recording 2", "ranks": [[]], "groups": [], "places": [], "notes": [], "as_if": ""}
    path.write_text(content if isinstance(content, str) else json.dumps(empty | content))
    with pytest.raises(RecordingError, match="recording.json"):
        Recording.load(path)


def test_a_recording_is_json_and_nothing_else(tmp_path):
    path = tmp_path / "recording.json"
    run(dist.barrier, ranks=2, device="cpu").recording.save(path)
    assert json.loads(path.read_text())["format"].startswith("distlab recording")
    assert Recording.load(path).world_size == 2
