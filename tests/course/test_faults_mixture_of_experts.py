"""The checks of mixture_of_experts: the solution, the stub, and every known wrong solution."""

from tests.course.faults import (  # noqa: F401 - collected here
    test_a_wrong_solution_is_rejected_and_its_mistake_named,
    test_every_misconception_has_a_wrong_solution,
    test_the_solution_passes,
    test_the_stub_is_not_started,
)

LAB = "mixture_of_experts"
