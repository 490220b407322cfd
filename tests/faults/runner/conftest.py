"""No test here leaves a process, a port or a file, and none waits for torch to be imported in the fork server."""

import pytest
import torch.distributed as dist

from distlab import run
from tests.nothing_left import nothing_is_left

__all__ = ["nothing_is_left"]


@pytest.fixture(scope="session", autouse=True)
def the_server_is_up():
    """Has the first run over before the first test, whose time is then its own."""
    run(dist.barrier, device="cpu")
