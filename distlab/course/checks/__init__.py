"""The exercises of every lab, one module a lab."""

from __future__ import annotations

from functools import cache
from types import ModuleType

from distlab.course.exercise import Exercise, Prediction


@cache
def labs() -> tuple[ModuleType, ...]:
    """The labs' modules in the order of the course; each has LAB, EXERCISES and PREDICTIONS."""
    from distlab.course.checks import (
        collectives,
        data_parallel,
        layer_partition,
        mixture_of_experts,
        pipeline,
        start_here,
        tensor_parallel,
        zero,
    )

    return start_here, collectives, data_parallel, zero, layer_partition, pipeline, tensor_parallel, mixture_of_experts


@cache
def exercises() -> dict[str, tuple[str, Exercise]]:
    """Every exercise by name, with the lab it stands in."""
    return {exercise.name: (lab.LAB, exercise) for lab in labs() for exercise in lab.EXERCISES}


@cache
def predictions() -> dict[str, Prediction]:
    """Every prediction by key."""
    return {key: prediction for lab in labs() for key, prediction in lab.PREDICTIONS.items()}
