"""The checks of zero: the solution, the stub, and every known wrong solution."""

from tests.course.faults import (  # noqa: F401 - collected here
    test_a_right_answer_in_another_style_passes_and_so_does_what_uses_it,
    test_a_wrapped_solution_is_rejected,
    test_a_wrong_solution_is_rejected_and_its_mistake_named,
    test_each_known_mistake_is_told_from_all_others,
    test_every_core_exercise_has_right_answers_in_two_other_styles,
    test_every_misconception_has_a_wrong_solution,
    test_the_solution_passes,
    test_the_stub_is_not_started,
)

LAB = "zero"
