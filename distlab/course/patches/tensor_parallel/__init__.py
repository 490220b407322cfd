"""Mistakes in lab 08."""

from __future__ import annotations

from distlab.course.patches.tensor_parallel import attention, layers, pairs, vocabulary

PATCHES = pairs.PATCHES | layers.PATCHES | attention.PATCHES | vocabulary.PATCHES
