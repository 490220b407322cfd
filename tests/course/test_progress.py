"""Passed checks are kept where they can be, and a check never fails over that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distlab import check, hint, predict, progress
from distlab.course import places
from distlab.course import progress as progress_module
from distlab.course.notebook import Notebook
from distlab.course.places import ROOT, progress_file
from distlab.course.progress import has_passed, record_pass

NAME = "my_rows"


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """A process that has kept and said nothing yet, and a learner's home."""
    monkeypatch.setattr(progress_module, "_unwritten", {})
    monkeypatch.setattr(progress_module, "_said", set())
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def solved():
    return Notebook(ROOT / "solutions" / "00_start_here.ipynb").definitions()[NAME]


def a_file(tmp_path: Path) -> Path:
    """A file where a folder should be: nobody can write into that, the administrator neither."""
    (tmp_path / "file").touch()
    return tmp_path / "file"


def below_a_file(tmp_path: Path) -> Path:
    """A folder that nobody can make."""
    return a_file(tmp_path) / "a" / "b"


def with_a_folder_in_the_way(tmp_path: Path) -> Path:
    """A folder whose progress.json is a folder."""
    (tmp_path / "odd" / "progress.json").mkdir(parents=True)
    return tmp_path / "odd"


UNWRITABLE = [a_file, below_a_file, with_a_folder_in_the_way]


@pytest.mark.parametrize("make", UNWRITABLE)
def test_where_distlab_home_cannot_be_written_the_learners_home_is_taken(make, tmp_path, monkeypatch, solved, capsys):
    monkeypatch.setenv("DISTLAB_HOME", str(make(tmp_path)))
    for _ in range(2):
        check(solved)
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("✓ my_rows")
    place = places.progress_folders()[0]
    words = f"  (passed checks are kept in {tmp_path}/home/.distlab: {place} cannot be written)"
    assert [line for line in others if line.startswith("  (")] == [words]
    assert has_passed(NAME, solved) and (tmp_path / "home/.distlab/progress.json").exists()


@pytest.mark.parametrize("make", UNWRITABLE)
def test_where_nothing_can_be_written_the_kernel_keeps_it_and_says_so_once(make, tmp_path, monkeypatch, solved, capsys):
    monkeypatch.setenv("DISTLAB_HOME", str(make(tmp_path)))
    monkeypatch.setenv("HOME", str(tmp_path / "home" / "file"))
    (tmp_path / "home" / "file").touch()
    for _ in range(2):
        check(solved)
    told = capsys.readouterr().out
    assert told.count("passed checks are kept until this kernel ends: they cannot be written to ") == 1
    assert has_passed(NAME, solved)
    progress()
    hint(NAME)
    predict("00.sizes", [3, 3, 3, 1])
    assert "00_start_here: 1 of 2" in capsys.readouterr().out


def test_a_course_that_cannot_be_written_is_as_good(tmp_path, monkeypatch, solved):
    monkeypatch.delenv("DISTLAB_HOME")
    monkeypatch.setattr(places, "ROOT", a_file(tmp_path))
    assert record_pass(NAME, solved).startswith(f"passed checks are kept in {tmp_path}/home/.distlab: ")
    assert progress_file() == tmp_path / "home/.distlab/progress.json" and has_passed(NAME, solved)


def test_an_empty_distlab_home_is_none(monkeypatch):
    monkeypatch.setenv("DISTLAB_HOME", "")
    assert places.progress_folders()[0] == ROOT / ".distlab"


def test_without_any_home_there_is_one_place(monkeypatch, tmp_path, solved):
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    monkeypatch.setenv("DISTLAB_HOME", str(a_file(tmp_path)))
    words = f"passed checks are kept until this kernel ends: they cannot be written to {tmp_path}/file"
    assert record_pass(NAME, solved) == words and has_passed(NAME, solved)


def test_a_disk_that_is_full_is_like_none(monkeypatch, solved):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr("os.replace", full)
        assert "until this kernel ends" in record_pass(NAME, solved)
        assert has_passed(NAME, solved)
    assert record_pass("other", solved) == ""
    kept = json.loads(progress_file().read_text())
    assert kept.keys() == {NAME, "other"} and progress_module._unwritten == {}


@pytest.mark.parametrize("text", ["{ not json", "[1, 2]", '{"my_rows": 3}', '{"my_rows": null}', "\xff\xfe"])
def test_a_damaged_file_is_started_afresh(text, solved):
    progress_file().parent.mkdir(exist_ok=True)
    progress_file().write_bytes(text.encode("latin-1"))
    assert not has_passed(NAME, solved)
    assert record_pass(NAME, solved) == "" and has_passed(NAME, solved)
