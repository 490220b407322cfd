"""The environment variables with which a Python that becomes a rank starts."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

RANK_ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
    "MASTER_ADDR": "127.0.0.1",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "TORCH_DISTRIBUTED_DEBUG": "INFO",  # DDP then names the parameters that got no gradient
    **{name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")},
    **({"USE_LIBUV": "0", "GLOO_SOCKET_IFNAME": ""} if os.name == "nt" else {}),
}


def native_environment() -> dict[str, str]:
    """The environment in which a Python that becomes a rank imports torch: quiet, one thread, on loopback only.

    It looks for packages where this Python was told to, in the same order, and where this one found torch.
    """
    given = [os.path.abspath(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    installed = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    torchs = [str(Path(torch).parents[1])] if torch else []
    folders = [str(Path(__file__).resolve().parents[3]), *given, *installed, *torchs]
    return os.environ | RANK_ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(folders))}
