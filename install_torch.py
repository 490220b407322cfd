"""`python install_torch.py PIP INSTALL ...` installs torch by that command if it has to come from an index of its own.

The Makefile runs it before anything is installed, so it needs the standard library only. On Linux without an NVIDIA GPU
torch comes from CPU_INDEX; the variable TORCH_INDEX names another index, and set to nothing pip's default one.
"""

import os
import platform
import queue
import re
import subprocess
import sys
import threading
import urllib.request
from importlib import metadata
from pathlib import Path

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
NVIDIA_DRIVER = Path("/proc/driver/nvidia")
PATIENCE = 10  # seconds in which CPU_INDEX must have answered
CPU_SIZE = "about 0.3 GB to download, 1.5 GB on disk"
CUDA_SIZE = "about 3 GB to download, 6 GB on disk"


def main(pip: list[str]) -> int:
    """Says what will be installed and installs torch, if it is not there; returns an exit status."""
    version = wanted_version()
    if is_installed(version):
        return 0
    index, words = choose(version)
    print(f"Installing once into .venv. {words}", flush=True)
    if not index:
        return 0  # torch comes with all the rest
    status = subprocess.run([*pip, "--no-deps", "--index-url", index, "torch"]).returncode
    if status:
        print(f"torch could not be installed from {index}. {other_way('')}", file=sys.stderr)
    return status


def wanted_version() -> str:
    """The version in constraints.txt."""
    constraints = Path(__file__).with_name("constraints.txt").read_text()
    return re.search(r"^torch==(\S+)$", constraints, re.MULTILINE).group(1)


def is_installed(version: str) -> bool:
    """Whether torch of that version is there, of whatever build."""
    try:
        return metadata.version("torch").split("+")[0] == version
    except metadata.PackageNotFoundError:
        return False


def choose(version: str) -> tuple[str, str]:
    """Where torch is to come from, "" for pip's default index, and why, in words."""
    if index := os.environ.get("TORCH_INDEX"):
        return index, f"torch comes from {index}. Its CPU build makes {CPU_SIZE}; a CUDA build {CUDA_SIZE}."
    if not sys.platform.startswith("linux"):
        return "", f"That makes {CPU_SIZE}."
    default = f"torch comes from pip's default index, which has the CUDA build for Linux: {CUDA_SIZE}."
    if "TORCH_INDEX" in os.environ:
        return "", f"As asked, {default}"
    if has_nvidia_gpu():
        return "", f"There is an NVIDIA GPU, so {default} {other_way(CPU_INDEX)}"
    if problem := why_not(CPU_INDEX, version):
        return "", f"There is no NVIDIA GPU, but {CPU_INDEX} {problem}, so {default}"
    return CPU_INDEX, f"There is no NVIDIA GPU, so torch is the CPU build of {CPU_INDEX}: {CPU_SIZE}. {other_way('')}"


def other_way(index: str) -> str:
    """What to say for another build."""
    return f"For {'the CPU build' if index else 'the default build'}: make lab TORCH_INDEX={index}"


def has_nvidia_gpu() -> bool:
    """Whether there is a driver of NVIDIA's."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, stdin=subprocess.DEVNULL, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return NVIDIA_DRIVER.exists()
    return listed.returncode == 0 or NVIDIA_DRIVER.exists()


def why_not(index: str, version: str) -> str:
    """What speaks against installing from an index, "" if nothing does.

    pip itself asks an index that is out of reach again and again, for minutes, and may then take what it finds
    elsewhere.
    """
    page = read(f"{index}/torch/")
    if isinstance(page, Exception):
        return f"could not be reached ({getattr(page, 'reason', None) or page})"
    machine = platform.machine()
    if not re.search(rf"torch-{re.escape(version)}\b[^\"'<>]*_{re.escape(machine)}\.whl", page):
        return f"lists no torch {version} for {machine}"
    return ""


def read(url: str) -> str | Exception:
    """The text of a page, or why there is none; looking up a name that nobody answers for knows no time limit."""
    answers = queue.SimpleQueue()

    def fetch():
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as page:
                answers.put(page.read().decode(errors="replace"))
        except Exception as error:
            answers.put(error)

    threading.Thread(target=fetch, daemon=True).start()
    try:
        return answers.get(timeout=PATIENCE)
    except queue.Empty:
        return TimeoutError(f"no answer within {PATIENCE} s")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
