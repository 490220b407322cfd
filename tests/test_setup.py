"""The files that set distlab up agree with one another, and the Makefile does what it says."""

import re
import shutil
import stat
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement

from distlab.course.notebook import write_release
from tests.makefile import ROOT, make_course, write_script

CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
INSTALLED_BY_MAKE = PROJECT["dependencies"] + EXTRAS["test"] + EXTRAS["bench"]


def requirements(lines):
    parsed = [Requirement(line) for line in lines]
    return {each.name.lower(): each.specifier for each in parsed}


def constraints():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def conda_dependencies():
    return yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]


# --- what is installed ----------------------------------------------------------------------------


def test_environment_yml_has_the_dependencies_of_pyproject_with_the_same_ranges():
    apart = ("python", "pip")
    conda = [d for d in conda_dependencies() if isinstance(d, str) and re.split("[=<>]", d)[0] not in apart]
    expected = requirements(PROJECT["dependencies"])
    assert requirements(conda) == {CONDA_NAMES.get(name, name): spec for name, spec in expected.items()}


def test_environment_yml_names_a_supported_python_in_the_form_that_binder_reads():
    [line] = [d for d in conda_dependencies() if isinstance(d, str) and d.startswith("python")]
    version = re.fullmatch(r"python=(3\.\d+)", line).group(1)
    assert Requirement(f"python{PROJECT['requires-python']}").specifier.contains(version)


def test_environment_yml_installs_distlab_itself_and_nothing_else_with_pip():
    assert [d for d in conda_dependencies() if isinstance(d, dict)] == [{"pip": ["-e ."]}]
    assert "pip" in conda_dependencies()


def test_every_constraint_is_one_exact_version():
    pins = [re.fullmatch(r"([a-z0-9.-]+)==[0-9.]+", line) for line in constraints()]
    assert all(pins), constraints()
    names = [pin.group(1) for pin in pins]
    assert len(names) == len(set(names))


def test_every_dependency_that_make_installs_is_pinned():
    missing = requirements(INSTALLED_BY_MAKE).keys() - requirements(constraints()).keys()
    assert not missing


@pytest.mark.parametrize("line", INSTALLED_BY_MAKE)
def test_the_constraint_lies_in_the_range_of_pyproject(line):
    wanted = Requirement(line)
    [pin] = requirements(constraints())[wanted.name.lower()]
    assert wanted.specifier.contains(pin.version)


@pytest.mark.parametrize("line", INSTALLED_BY_MAKE + EXTRAS["frameworks"])
def test_every_range_is_open_enough_for_a_later_python(line):
    operators = {each.operator for each in Requirement(line).specifier}
    assert ">=" in operators and not operators & {"==", "~=", "==="}


def test_every_room_of_distlab_is_a_package_that_setuptools_finds():
    rooms = {path.parent for path in (ROOT / "distlab").rglob("*.py")}
    assert rooms and [room for room in rooms if not (room / "__init__.py").exists()] == []


def test_ruff_finds_nothing_in_the_code_and_the_notebooks():
    ruff = [sys.executable, "-m", "ruff", "check", "--no-cache", "--quiet", "--output-format=concise", "."]
    result = subprocess.run(ruff, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


# --- the Makefile ---------------------------------------------------------------------------------


@pytest.fixture
def course(tmp_path):
    return make_course(tmp_path)


def targets():
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def commands_in(document):
    """Returns the targets that a document's code, in spans and in blocks, hands to make."""
    text = (ROOT / document).read_text()
    code = re.findall(r"(?s:```.*?```)|`[^`]+`|^    .+", text, re.MULTILINE)
    return set(re.findall(r"\bmake (?:[A-Z_]+=\S+ )*([a-z_]+)", "\n".join(code)))


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_what_a_document_tells_to_make_is_a_target(document):
    assert commands_in(document) and commands_in(document) <= targets()


def test_the_readme_tells_the_two_commands():
    assert {"lab", "test"} <= commands_in("README.md")


def test_make_alone_names_every_target(course):
    told = course.make().stdout
    assert {"lab", "test", "labs", "bench", "clean"} <= targets()
    assert [name for name in targets() if f"make {name}" not in told] == []


def test_make_lab_opens_lab_00_with_the_arguments_and_leaves_the_token_alone(course):
    assert course.make("lab", "ARGS=--no-browser --port 8899").returncode == 0
    opened = course.calls()[-1]
    assert opened.startswith("-m jupyterlab ") and opened.endswith("--no-browser --port 8899")
    assert "/lab/tree/labs/00_start_here.ipynb" in opened
    assert "token" not in opened and "password" not in opened


def test_make_lab_installs_distlab_under_the_constraints_and_no_extras(course):
    course.make("lab")
    [pip] = course.installed()
    assert "-c constraints.txt" in pip and pip.endswith("-e .")


def test_a_class_release_has_all_that_make_lab_needs(tmp_path, monkeypatch):
    write_release(tmp_path)
    monkeypatch.setattr("tests.makefile.ROOT", tmp_path / "nowhere")
    assert make_course(tmp_path).make("lab").returncode == 0


def test_the_environment_is_made_once(course):
    course.make("test")
    course.calls()
    course.make("test")
    assert course.calls() == ["-m pytest"]


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
def test_the_environment_is_updated_when_its_inputs_change(course, changed):
    course.make("test")
    course.calls()
    course.edit(changed)
    course.make("test")
    assert [call.rsplit(" ", 1)[-1] for call in course.installed()] == [".", ".[test]"]


def test_an_environment_whose_python_has_gone_is_made_anew(course):
    course.make("lab")
    course.calls()
    (course.folder / ".venv/bin/python").unlink()
    (course.folder / ".venv/bin/python").symlink_to("/nowhere/python3")
    assert course.make("lab").returncode == 0
    assert course.calls()[0] == "-m venv --clear .venv"


def test_an_installation_that_failed_is_tried_again(course):
    assert course.make("lab", PIP_FAILS="1").returncode != 0
    course.calls()
    course.make("lab")
    assert any(call.startswith("-m pip install") for call in course.calls())


@pytest.mark.parametrize("minor", [9, 10, 11, 12, 13, 14])
def test_make_takes_exactly_the_pythons_of_pyproject(course, minor):
    result = course.make("lab", MINOR=str(minor))
    supported = Requirement(f"python{PROJECT['requires-python']}").specifier.contains(f"3.{minor}.0")
    assert (result.returncode == 0) == supported
    assert supported or f"is 3.{minor}. Name another: make PYTHON=" in result.stderr
    assert (course.folder / ".venv").exists() == supported


def test_a_python_that_is_not_there_is_named(course):
    result = course.make("lab", "PYTHON=python3.99")
    assert result.returncode != 0 and "There is no python3.99 here" in result.stderr


def test_a_python_without_venv_is_told_debians_package(course):
    result = course.make("lab", NO_ENSUREPIP="1")
    assert result.returncode != 0 and "sudo apt install python3-venv" in result.stderr


def test_make_test_runs_pytest_with_the_test_extra(course):
    course.make("test", "PYTEST_ARGS=-k words")
    *_, pip, pytest_call = course.calls()
    assert pip.endswith("-e .[test]") and pytest_call == "-m pytest -k words"
    course.make("test", "LAB=07")
    assert course.calls()[-1] == "-m pytest --lab 07"


def test_make_labs_and_make_bench_run_their_modules_with_the_arguments(course):
    course.make("labs", "ARGS=--some-switch")
    assert course.calls()[-1] == "-m distlab labs --some-switch"
    course.make("bench", "ARGS=import")
    *_, pip, bench = course.calls()
    assert pip.endswith("-e .[bench]") and bench == "-m tests.benchmarks import"


def test_make_clean_leaves_the_learners_work(course):
    course.make("lab")
    kept = {".distlab/progress.json", "labs/00_start_here.ipynb", "tests/a.py"}
    for name in kept | {"distlab/__pycache__/a.pyc"}:
        (course.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (course.folder / name).touch()
    assert course.make("clean").returncode == 0
    left = {path.relative_to(course.folder).as_posix() for path in course.folder.rglob("*")}
    assert kept <= left
    assert not {".venv", "distlab/__pycache__"} & left


# --- continuous integration -----------------------------------------------------------------------


def run_ci(folder, **programs):
    """Runs a copy of .ci/run where only the given programs exist, beside what a shell script needs."""
    bin = folder / "bin"
    bin.mkdir()
    for tool in ("bash", "dirname"):
        (bin / tool).symlink_to(shutil.which(tool))
    for name, body in programs.items():
        write_script(bin / name.replace("_", "-"), f"#!{shutil.which('bash')}\n{body}\n")
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", folder / ".ci")
    command, env = [bin / "bash", ".ci/run"], {"PATH": str(bin)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


def test_ci_run_is_executable():
    assert (ROOT / ".ci/run").stat().st_mode & stat.S_IXUSR


def test_ci_run_calls_make_test_and_ends_as_it_does(tmp_path):
    result = run_ci(tmp_path, make="echo make $*; exit 3", chromium="", apt_get="echo installed")
    assert (result.stdout, result.returncode) == ("make test\n", 3)


def test_ci_run_installs_chromium_where_it_is_missing(tmp_path):
    result = run_ci(tmp_path, make="echo make $*", id="echo 0", apt_get="echo apt-get $* >&2")
    assert re.search("apt-get install .* chromium", result.stderr)
    assert result.stdout.endswith("make test\n") and "skip" not in result.stdout


@pytest.mark.parametrize("user, apt_get", [("0", "exit 100"), ("1000", "echo installed")])
def test_ci_run_goes_on_without_chromium_and_says_so(tmp_path, user, apt_get):
    result = run_ci(tmp_path, make="echo make $*", id=f"echo {user}", apt_get=apt_get)
    assert "the browser tests will skip" in result.stdout and "installed\n" not in result.stdout
    assert result.stdout.endswith("make test\n") and result.returncode == 0
