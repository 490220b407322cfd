"""Mistakes in lab 09."""

from distlab.course.patches.mixture_of_experts.one_process import PATCHES as _ONE_PROCESS
from distlab.course.patches.mixture_of_experts.over_ranks import PATCHES as _OVER_RANKS

PATCHES = {**_ONE_PROCESS, **_OVER_RANKS}
