"""`make` installs torch from where it should come, and says so."""

import platform
import socket
import sys

import pytest

from tests.makefile import PINNED_TORCH, index_of, make_course, write_script

on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere torch has one build")


@pytest.fixture
def course(tmp_path):
    return make_course(tmp_path)


@pytest.fixture
def index(course, request):
    """The index that install_torch.py asks, with a wheel of the version that the test was given, or of ours."""
    with index_of(getattr(request, "param", PINNED_TORCH)) as url:
        course.replace(CPU_INDEX=repr(url))
        yield url


def with_torch(course, version):
    """Returns a folder in which Python finds torch of this version installed."""
    (course.folder / f"site/torch-{version}.dist-info").mkdir(parents=True)
    (course.folder / f"site/torch-{version}.dist-info/METADATA").write_text(f"Name: torch\nVersion: {version}\n")
    return str(course.folder / "site")


def test_the_size_is_said_before_the_download_and_only_then(course):
    first = course.make("lab").stdout
    assert "GB to download" in first and first.index("GB to download") < first.index("-m pip install")
    course.edit("pyproject.toml")
    assert "GB" not in course.make("lab", PYTHONPATH=with_torch(course, f"{PINNED_TORCH}+cpu")).stdout


@pytest.mark.parametrize("where", ["a variable of make", "the environment"])
def test_torch_comes_from_the_index_that_was_asked_for_and_nothing_else_does(course, where):
    course.has_gpu()
    url = "https://example.org/cu126"
    told = (
        course.make("lab", TORCH_INDEX=url) if where == "the environment" else course.make("lab", f"TORCH_INDEX={url}")
    )
    torch, rest = course.installed()
    assert torch.endswith(f"-c constraints.txt --no-deps --index-url {url} torch") and "example.org" not in rest
    assert f"torch comes from {url}" in told.stdout


@on_linux
def test_linux_without_a_gpu_takes_the_cpu_build_and_says_so(course, index):
    told = course.make("lab").stdout
    torch, rest = course.installed()
    assert torch.endswith(f"--no-deps --index-url {index} torch") and index not in rest
    assert f"There is no NVIDIA GPU, so torch is the CPU build of {index}: about 0.3 GB" in told
    assert "For the default build: make lab TORCH_INDEX=\n" in told


@on_linux
@pytest.mark.parametrize("sign", ["nvidia-smi", "the driver", "the driver, without nvidia-smi"])
def test_a_machine_with_an_nvidia_gpu_takes_the_default_build(course, index, sign):
    if sign == "nvidia-smi":
        course.has_gpu()
    else:
        (course.folder / "driver").mkdir()
    if sign == "the driver, without nvidia-smi":
        write_script(course.folder / "bin/nvidia-smi", "#!/no/such/shell\n")
    told = course.make("lab").stdout
    assert [call.endswith("-e .") for call in course.installed()] == [True]
    assert "There is an NVIDIA GPU, so torch comes from pip's default index" in told
    assert f"For the CPU build: make lab TORCH_INDEX={index}\n" in told


@pytest.mark.parametrize("where", ["a variable of make", "the environment"])
def test_an_empty_index_is_the_default_one(course, index, where):
    told = course.make("lab", TORCH_INDEX="") if where == "the environment" else course.make("lab", "TORCH_INDEX=")
    assert [call.endswith("-e .") for call in course.installed()] == [True]
    assert index not in told.stdout


@on_linux
def test_an_index_that_refuses_is_passed_over_and_named(course):
    result = course.make("lab")
    assert result.returncode == 0 and [call.endswith("-e .") for call in course.installed()] == [True]
    assert "There is no NVIDIA GPU, but http://127.0.0.1:9/cpu could not be reached (" in result.stdout
    assert "so torch comes from pip's default index, which has the CUDA build" in result.stdout


@on_linux
def test_an_index_that_does_not_answer_is_passed_over_and_named(course):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/cpu"
        course.replace(CPU_INDEX=repr(url), PATIENCE="0.2")
        told = course.make("lab").stdout
    assert f"{url} could not be reached (" in told and [call.endswith("-e .") for call in course.installed()] == [True]


@on_linux
@pytest.mark.parametrize("index", ["2.0.0", f"{PINNED_TORCH}rc1", f"1{PINNED_TORCH}"], indirect=True)
def test_an_index_without_the_wanted_torch_is_passed_over_and_named(course, index):
    told = course.make("lab").stdout
    assert [call.endswith("-e .") for call in course.installed()] == [True]
    assert f"{index} lists no torch {PINNED_TORCH} for {platform.machine()}, so torch comes from" in told


@pytest.mark.parametrize("version", [PINNED_TORCH, f"{PINNED_TORCH}+cpu", f"{PINNED_TORCH}+cu126"])
def test_a_torch_that_is_there_is_not_fetched_again(course, index, version):
    told = course.make("lab", "TORCH_INDEX=https://example.org/cpu", PYTHONPATH=with_torch(course, version)).stdout
    assert [call.endswith("-e .") for call in course.installed()] == [True] and "GB" not in told


@on_linux
def test_a_torch_of_another_version_is_replaced_by_the_same_build(course, index):
    course.make("lab", PYTHONPATH=with_torch(course, "2.0.0+cpu"))
    assert course.installed()[0].endswith(f"--index-url {index} torch")


@on_linux
def test_a_torch_that_cannot_be_installed_stops_make_which_says_what_else_there_is(course, index):
    result = course.make("lab", PIP_FAILS="1")
    assert result.returncode != 0 and course.calls() == ["-m venv .venv"]
    assert f"torch could not be installed from {index}. For the default build: make lab TORCH_INDEX=\n" in result.stderr


def test_on_a_mac_torch_comes_with_the_rest(course, index):
    file = course.folder / "install_torch.py"
    file.write_text(file.read_text().replace("sys.platform", "'darwin'"))
    told = course.make("lab").stdout
    assert [call.endswith("-e .") for call in course.installed()] == [True]
    assert "about 0.3 GB to download, 1.5 GB on disk" in told and index not in told and "CUDA" not in told
