"""The README's lines for Colab, in a plain environment: a kernel that starts in the folder above a clone of the course.

That folder has a folder called distlab in it, which Python takes for a package if it finds no better one. The
environment is a new one that sees the packages of this one, so that nothing is downloaded.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

from distlab.course.notebook import write_release
from tests.said import said

ROOT = Path(__file__).parent.parent
USE = "from distlab import run\nimport torch.distributed as dist\nprint(run(lambda: dist.get_rank(), ranks=2).values)"
PIP = {"PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_IGNORE_INSTALLED": "1"}
PIP |= {"PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}  # 0 means: without isolation


def lines_for_colab(repository):
    """Returns the README's lines, for a repository."""
    [block] = re.findall(r"^```\n(!git clone .*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    return block.replace("ADDRESS", str(repository))


def can_build():
    """Says whether setuptools is here, and new enough for pyproject.toml: pip is to fetch nothing."""
    try:
        return int(version("setuptools").split(".")[0]) >= 77
    except PackageNotFoundError:
        return False


pytestmark = [
    pytest.mark.skipif(not can_build(), reason="needs setuptools 77 in the environment of the tests"),
    pytest.mark.skipif(not shutil.which("git"), reason="needs git"),
]


@pytest.fixture
def python(tmp_path):
    """The Python of a new environment without distlab, and with the packages of this one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    [site] = (tmp_path / "venv/lib").glob("python*/site-packages")
    (site / "outer.pth").write_text("\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))
    return tmp_path / "venv/bin/python"


@pytest.fixture
def repository(tmp_path):
    """A repository with the course in it."""
    write_release(tmp_path / "origin")
    who = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for command in (["init", "--quiet"], ["add", "--all"], [*who, "commit", "--quiet", "--message=course"]):
        subprocess.run(["git", *command], cwd=tmp_path / "origin", check=True)
    return tmp_path / "origin"


@pytest.fixture
def above(tmp_path):
    """The folder in which kernels start."""
    (tmp_path / "content").mkdir()
    return tmp_path / "content"


def outputs(python, folder, *cells, **variables):
    """Runs cells in a new kernel that starts in a folder; returns what each printed."""
    specs = folder.parent / "kernels/plain"
    specs.mkdir(parents=True, exist_ok=True)
    argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (specs / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "plain", "language": "python"}))
    manager = KernelManager(kernel_name="plain", kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(specs.parent)]))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    client = NotebookClient(notebook, km=manager, timeout=120, resources={"metadata": {"path": str(folder)}})
    client.execute(cleanup_kc=True, env=os.environ | PIP | variables)
    return ["".join(map(said, cell.outputs)) for cell in notebook.cells]


def test_the_readmes_lines_work_in_the_folder_above_the_clone(python, repository, above):
    *_, used = outputs(python, above, lines_for_colab(repository), USE)
    assert used == "[0, 1]\n"


def test_they_work_where_that_folder_stands_on_pythons_path_as_well(python, repository, above):
    *_, used = outputs(python, above, lines_for_colab(repository), USE, PYTHONPATH=str(above))
    assert used == "[0, 1]\n"


def test_a_python_that_starts_there_later_finds_the_course_and_not_the_clone(python, repository, above):
    subprocess.run(["git", "clone", "--quiet", repository, above / "distlab"], check=True)
    assert found(python, above) is None  # the clone passes for the package
    install = [python, "-m", "pip", "install", "--quiet", "--editable", above / "distlab"]
    subprocess.run(install, env=os.environ | PIP, check=True)
    course = above / "distlab/distlab/__init__.py"
    assert [found(python, folder) for folder in (above, above / "distlab", above / "distlab/labs")] == [course] * 3
    assert found(python, above, PYTHONPATH=str(above)) == course


def found(python, folder, **variables):
    """Returns the file that is imported as distlab by a Python that starts in a folder, None for a mere folder."""
    script = "import importlib.util; print(importlib.util.find_spec('distlab').origin)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    told = subprocess.check_output([python, "-c", script], cwd=folder, env=environment, text=True).strip()
    return None if told == "None" else Path(told)
