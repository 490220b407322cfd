"""The Makefile in a folder of its own.

A stand-in for Python notes down what it is asked to do, there is one for nvidia-smi, and an index for CPU builds of
torch is on this computer, or there is none that answers.
"""

import contextlib
import http.server
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PINNED_TORCH = re.search(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE).group(1)
# What an outer make hands down would change the make that is tested here.
OUTER = "MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES PYTHON ARGS PYTEST_ARGS LAB TORCH_INDEX CI PYTHONPATH".split()
INHERITED = {name: value for name, value in os.environ.items() if name not in OUTER} | {"no_proxy": "127.0.0.1"}

FAKE_PYTHON = """#!/bin/sh
for last; do :; done
case "$1 $2" in
  "-c "*) exec {python} -c "import sys; sys.version_info = (3, ${{MINOR:-12}}, 0, 'final', 0)
if '$NO_ENSUREPIP': sys.modules['ensurepip'] = None
exec(sys.argv[1])" "$2" ;;
  "-m venv") [ "$3" = --clear ] && rm -rf "$last"
             mkdir -p "$last/bin"; cp "$0" "$last/bin/python"; touch "$last/pyvenv.cfg" ;;
  "-m pip") [ -z "$PIP_FAILS" ] || exit 1 ;;
  "install_torch.py "*) exec {python} -S "$@" ;;
esac
echo "$*" >> {calls}
"""


def write_script(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return path


@dataclass
class Course:
    """A folder with the Makefile and its inputs, where a stand-in plays Python."""

    folder: Path

    def make(self, *args, **environment):
        command = ["make", *args]
        if not any(arg.startswith("PYTHON=") for arg in args):
            command.append(f"PYTHON={self.folder / 'fakepython'}")
        env = INHERITED | {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"} | environment
        return subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True)

    def calls(self):
        """Returns what Python was asked to do since the last time, and forgets it."""
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines

    def installed(self):
        """Returns what pip was asked to install since the last time."""
        return [call for call in self.calls() if call.startswith("-m pip install")]

    def has_gpu(self):
        """Has nvidia-smi find a GPU."""
        write_script(self.folder / "bin/nvidia-smi", "#!/bin/sh\necho GPU 0: a GPU\n")

    def replace(self, **constants):
        """Gives constants of install_torch.py other values."""
        text = (self.folder / "install_torch.py").read_text()
        for name, value in constants.items():
            [old] = re.findall(rf"^{name} = [^#\n]*", text, re.MULTILINE)
            text = text.replace(old, f"{name} = {value}  ")
        (self.folder / "install_torch.py").write_text(text)

    def edit(self, name):
        """Gives the file a time that is later than that of all that was made so far."""
        newest = max(path.lstat().st_mtime for path in self.folder.rglob("*"))
        os.utime(self.folder / name, (newest + 1, newest + 1))


def make_course(folder):
    """Returns a course in a folder: with no GPU, and with no index that answers."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "install_torch.py"):
        if not (folder / name).exists():
            shutil.copy(ROOT / name, folder)
    write_script(folder / "fakepython", FAKE_PYTHON.format(python=sys.executable, calls=folder / "calls"))
    (folder / "bin").mkdir()
    write_script(folder / "bin/nvidia-smi", "#!/bin/sh\nexit 9\n")
    course = Course(folder)
    course.replace(CPU_INDEX='"http://127.0.0.1:9/cpu"', NVIDIA_DRIVER=f'Path("{folder / "driver"}")')
    return course


class Index(http.server.BaseHTTPRequestHandler):
    """Answers as an index would."""

    def do_GET(self):
        name = f"torch-{self.wheel}%2Bcpu-cp312-cp312-manylinux_2_28_{platform.machine()}.whl"
        self.send_response(200 if self.path == "/cpu/torch/" else 404)
        self.end_headers()
        self.wfile.write(f'<a href="/{name}#sha256=0">torch</a>'.encode())

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def index_of(wheel=PINNED_TORCH):
    """Serves an index that lists one wheel of torch for this machine, of the version ``wheel``, and gives its URL."""
    handler = type("ThisIndex", (Index,), {"wheel": wheel})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/cpu"
        server.shutdown()
