"""Demos to drive in front of a class: pictures with controls, each usable alone in a lab too.

They show what the labs have built, and compute nothing that a lab or ``distlab.machine`` does not.
"""

from distlab.demos.cluster import cluster
from distlab.demos.data_parallel import data_parallel
from distlab.demos.live import live
from distlab.demos.memory import memory
from distlab.demos.ring import ring_all_reduce
from distlab.demos.routing import routing
from distlab.demos.schedules import schedules
from distlab.demos.tensor_parallel import tensor_parallel

__all__ = [
    "cluster",
    "data_parallel",
    "live",
    "memory",
    "ring_all_reduce",
    "routing",
    "schedules",
    "tensor_parallel",
]
