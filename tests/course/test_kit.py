"""The kit of checks: what it sees whatever the exercise, and when it names a mistake."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

from distlab.course import trial
from distlab.course.check import Verdict, examine
from distlab.course.checks import exercises, labs
from distlab.course.checks.data_parallel.average_gradients import AVERAGE_GRADIENTS
from distlab.course.compare import difference
from distlab.course.kit import mistakes, naming, remarks, stored
from distlab.course.kit.case import Case, jobs_of
from distlab.course.kit.driving import _changed, call
from distlab.course.notebook import Notebook
from distlab.course.patches import Patch, patches_of
from distlab.course.places import ROOT
from distlab.course.trial import RankFailed
from distlab.ranks.outcome import RankError
from distlab.ranks.verdicts.failures import Failure

SHARD = "return x_BD[rows.start : rows.stop], y_B[rows.start : rows.stop]"
GATHERED = "dist.all_gather(counts, torch.tensor(num_rows))"
SUM = "dist.all_reduce(parameter.grad)"


def tried(exercise: str, *changes: tuple[str, str]) -> Verdict:
    """The verdict on a solution of lab 02 with some texts replaced."""
    notebook = Notebook(ROOT / "solutions" / "02_data_parallel.ipynb")
    source = notebook.exercises[exercise]
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    verdict = examine(notebook.definitions(instead={exercise: source})[exercise])
    assert verdict.mark == "✗", verdict.text
    return verdict


def solutions() -> dict:
    """What the solution of lab 02 defines."""
    return Notebook(ROOT / "solutions" / "02_data_parallel.ipynb").definitions()


def patched() -> list[tuple[str, str, Patch]]:
    """Every patch of the course, with the lab and the exercise that it belongs to."""
    return [(lab, name, patch) for name, (lab, _) in exercises().items() for patch in patches_of(lab, name)]


def test_what_is_kept_from_one_call_to_the_next_shows():
    kept = "known = split_batch.__dict__.setdefault('known', {})\n    return known.setdefault(len(y_B), "
    verdict = tried("split_batch", (SHARD, f"{kept}(x_BD[rows.start : rows.stop], y_B[rows.start : rows.stop]))"))
    assert "The first call in a process is right, and a later one" in verdict.text


def test_what_is_right_in_one_dtype_only_is_named():
    for exercise, old, new in (
        ("average_gradients", "torch.zeros_like(parameter)", "torch.zeros(parameter.shape, dtype=torch.float64)"),
        ("compute_gradients", "loss.detach()", "loss.detach().double()"),
    ):
        verdict = tried(exercise, (old, new))
        assert "in float32" in verdict.text and "In float64 it is right" in verdict.text, verdict.text


def test_numbers_that_go_through_float32_are_named():
    verdict = tried("average_gradients", ("/= total", "*= torch.tensor(1.0) / total"))
    assert "In float32 it is right: somewhere numbers become float32" in verdict.text, verdict.text


def test_an_order_that_hashes_of_texts_give_is_another_on_each_rank():
    by_hash = "in sorted(model.parameters(), key=lambda p: hash(str(p.shape))):"
    verdict = tried("average_gradients", ("in model.parameters():", by_hash))
    assert "All ranks must make the same collective calls" in verdict.text, verdict.text


def test_what_is_kept_with_a_model_shows_at_the_second_call():
    kept = "total = vars(model).setdefault('total', sum(counts))"
    counted = f"counts = [torch.tensor(0) for _ in range(dist.get_world_size())]\n    {GATHERED}\n    {kept}"
    verdict = tried("average_gradients", ("total = torch.tensor(num_rows)\n    dist.all_reduce(total)", counted))
    assert "the gradients of a second call" in verdict.text and "The total of rows is kept" in verdict.text


def test_an_order_that_a_set_gives_is_another_on_each_rank():
    verdict = tried("average_gradients", ("in model.parameters():", "in set(model.parameters()):"))
    assert "ranks" in verdict.text


def test_what_a_call_changes_is_named_like_its_parameter():
    verdict = tried("split_batch", (SHARD, f"y_B[0] += 1\n    {SHARD}"))
    assert "rows, y_B:\n  It changed `y_B`, which" in verdict.text


@pytest.mark.parametrize(
    ("given", "change", "is_seen"),
    [
        ([1, 2], lambda x: x.pop(), True),
        ({"a": torch.zeros(2)}, lambda x: x["a"].add_(1), True),
        ((torch.zeros(1), [torch.zeros(1)]), lambda x: x[1][0].fill_(3), True),
        (torch.nn.Linear(2, 2), lambda x: x.bias.data.add_(1), True),
        (torch.nn.Linear(2, 2), lambda x: x(torch.ones(1, 2)).sum().backward(), False),
        (torch.zeros(2), lambda x: x.requires_grad_(), True),
        (torch.full((2,), float("nan")), lambda x: None, False),
    ],
)
def test_arguments_are_compared_before_and_after(given, change, is_seen):
    _changed.clear()
    call(change, given)
    assert _changed == (["x"] if is_seen else [])
    _changed.clear()
    call(change, given, changes=(0,))
    assert not _changed


@pytest.mark.parametrize(
    ("got", "want", "is_alike"),
    [
        (torch.tensor(2**53 + 1), torch.tensor(2**53), False),
        (torch.tensor([True, False]), torch.tensor([True, True]), False),
        (torch.tensor([float("nan"), 1]), torch.tensor([float("nan"), 1]), True),
        (torch.tensor([float("nan"), 1]), torch.tensor([1.0, 1]), False),
        (torch.tensor(float("inf")), torch.tensor(float("inf")), True),
        (float("nan"), float("nan"), True),
        (float("nan"), 0.0, False),
        (0.0, float("nan"), False),
    ],
)
def test_whole_numbers_are_compared_exactly_and_nan_is_like_nan(got, want, is_alike):
    assert (difference(got, want, 2e-5) is None) is is_alike


@pytest.mark.parametrize(
    ("got", "want", "says"),
    [
        ([("a", 1)], ["a 1"], "It gives a `tuple` where a `str` is asked for."),
        ([None], [torch.zeros(1)], "It gives None where a `Tensor` is asked for."),
        ([1], [1.5], ""),
        ([torch.zeros(2, 1)], [torch.zeros(2)], "It gives a tensor of shape (2, 1) where (2,) is asked for."),
        ([torch.zeros(2)], [torch.zeros(2).double()], "It gives a tensor of torch.float32 where torch.float64 is"),
        ([{"a": torch.tensor(float("nan"))}], [{"a": torch.zeros(())}], "It gives nan: 0 / 0 does"),
        ([1, 3, 3], [1, 2, 3], "It is right on ranks 0 and 2 and wrong on rank 1."),
        ([2, 3], [1, 2], ""),
    ],
)
def test_what_sort_of_thing_is_wrong_is_said_whatever_the_exercise(got, want, says):
    assert remarks.of_values(got, want, 1e-10).startswith(says) and bool(says) == bool(remarks.of_values(got, want, 0))


@pytest.mark.parametrize(
    ("verdict", "failure", "says"),
    [
        ("rank 0 returned before its isend to rank 1 was waited for", Failure("called"), "isend and irecv only begin"),
        (
            "different collectives at #2: rank 0 calls broadcast, rank 1 calls barrier",
            Failure("called"),
            "All ranks must",
        ),
        ("ranks 0 and 1 each wait to send to the other", Failure("stopped"), "Ranks wait for each other to receive"),
        ("ranks 0 → 1 → 0 wait in a circle, each for the next", Failure("stopped"), "Ranks wait for each other, each"),
        ("not finished after 10 s of work: rank 0 is still busy", Failure("stopped"), "It does not end"),
        ("rank 0 raised ValueError: the dtypes differ", Failure("raised", "ValueError"), "Rank 0 stops with an error"),
        ("rank 0 died of SIGKILL", Failure("died"), ""),
    ],
)
def test_what_sort_of_failure_it_was_is_said_whatever_the_exercise(verdict, failure, says):
    said = remarks.of_failure(RankFailed("", RankError(verdict, {0: failure}, 0, [])))
    assert said.startswith(says) and bool(said) == bool(says)


def test_two_mistakes_at_once_are_told_one_after_the_other_and_without_or():
    verdict = tried("train_step", ("average_gradients(model, len(y_b))", "pass"),
                    ("return total.item() / len(y_B)", "return loss.item()"))  # fmt: skip
    assert "Every rank stepped with its own gradients" in verdict.text and "Or:" not in verdict.text


def test_a_mistake_is_named_beside_an_earlier_exercise_in_another_style():
    notebook = Notebook(ROOT / "solutions" / "02_data_parallel.ipynb")
    rows = "rows = my_rows(len(y_B), dist.get_rank(), dist.get_world_size())"
    backwards = f"{rows[:-1].replace('dist.get_rank()', 'dist.get_world_size() - 1 - dist.get_rank()')})"
    split = notebook.exercises["split_batch"].replace(rows, backwards)
    step = notebook.exercises["train_step"].replace("total = loss * len(y_b)", "total = loss.clone()")
    lab = notebook.definitions(instead={"split_batch": split, "train_step": step})
    examine(lab["split_batch"])
    verdict = examine(lab["train_step"])
    assert verdict.mark == "✗" and "the loss" in verdict.text


def test_what_comes_of_an_earlier_exercise_is_not_put_down_to_this_one(monkeypatch):
    monkeypatch.setattr("distlab.course.progress.has_passed", lambda *_: True)
    notebook = Notebook(ROOT / "solutions" / "02_data_parallel.ipynb")
    summed = notebook.exercises["average_gradients"].replace("parameter.grad /= total", "pass")
    verdict = examine(notebook.definitions(instead={"average_gradients": summed})["train_step"])
    assert verdict.mark == "✗" and "The course's own `train_step` gives the same" in verdict.text, verdict.text


def test_an_endless_loop_is_waited_for_once(monkeypatch):
    monkeypatch.setattr(trial, "_SECONDS", 1)
    begun = time.process_time()
    loop = f"while parameter.dtype == torch.float32:\n            pass\n        {SUM}"
    verdict = tried("average_gradients", (SUM, loop))
    assert "not finished after 1 s of work" in verdict.text and "in float32" in verdict.text
    assert time.process_time() - begun < 20  # of this process: it hardly works meanwhile


def test_memory_that_is_returned_twice_shows():
    kept = "known = compute_gradients.__dict__.setdefault(loss.dtype, torch.zeros_like(loss.detach()))\n    "
    verdict = tried("compute_gradients", ("return loss.detach()", f"{kept}return known.copy_(loss.detach())"))
    assert "It returns the same memory at every call" in verdict.text, verdict.text


def test_what_is_held_when_all_is_over_shows():
    for held in ("globals().setdefault('models', []).append(model)", "average_gradients.last = model"):
        verdict = tried("average_gradients", ("for parameter in model", f"{held}\n    for parameter in model"))
        assert "It still holds tensors that it was given" in verdict.text, verdict.text


def test_a_barrier_is_named_where_nothing_else_is_wrong():
    verdict = tried("average_gradients", ("for parameter in model", "dist.barrier()\n    for parameter in model"))
    assert "It calls a barrier" in verdict.text and "expected none, got 2" in verdict.text


def test_what_went_through_float32_is_named():
    verdict = tried("compute_gradients", ("return loss.detach()", "return loss.detach().float().to(loss.dtype)"))
    assert "In float32 it is right: somewhere numbers become float32" in verdict.text, verdict.text


def test_jobs_come_in_both_dtypes_and_never_alone_in_a_process():
    starts = jobs_of([Case(2, n=1), Case(3, n=2, dtypes=(torch.float64,)), Case(2, n=3)], seed=5)
    assert [[(job["n"], job.dtype.itemsize) for job in jobs] for jobs in starts] == [
        [(1, 8), (1, 4), (3, 8), (3, 4), (1, 8)],
        [(2, 8), (2, 8)],
    ]
    assert all(len({job.seed for job in jobs}) == len(jobs) for jobs in starts)


def test_every_patch_is_of_a_known_misconception_and_changes_the_solution():
    assert len(patched()) > 40
    for lab, name, patch in patched():
        known = {misconception.id for misconception in exercises()[name][1].misconceptions}
        solution = Notebook(ROOT / "solutions" / f"{lab}.ipynb").exercises[name]
        assert patch.id in known and patch.applied(solution) != solution, (name, patch)
    names = {lab.LAB for lab in labs()}
    assert {lab for lab, _, _ in patched()} <= names


def test_a_class_gets_names_without_the_patches(monkeypatch, tmp_path):
    (tmp_path / "distlab" / "course").mkdir(parents=True)
    assert list(stored.store(tmp_path, ["compute_gradients"])) == ["compute_gradients"]
    monkeypatch.setattr(stored, "ROOT", tmp_path)
    monkeypatch.setattr(mistakes, "patches_of", lambda *_: pytest.fail("a class has no patches"))
    stored._all.cache_clear()
    for old, new, words in (
        ("loss.backward()", "pass", "there are no gradients"),
        (" / max(len(y_b), 1)", "", "The loss is the sum over this rank's rows"),
        ("loss.detach()", "loss.detach() + 1", "This is not yet right"),
    ):
        assert words in tried("compute_gradients", (old, new)).text
    stored._all.cache_clear()


def test_how_ranks_fail_by_a_mistake_is_stored_too(monkeypatch, tmp_path):
    (tmp_path / "distlab" / "course").mkdir(parents=True)
    experiment = replace(AVERAGE_GRADIENTS.check, cases=AVERAGE_GRADIENTS.check.cases[-1:])
    by_job = stored._of_exercise(experiment, solutions()["average_gradients"])
    given, failing = by_job[0, "torch.float64", stored.SEED]
    assert {"skips-none", "leaves-idle", "none-raises"} <= {id for id, marks in failing if marks}
    assert len(given) > 5


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("rank 0 sends float64[3] to rank 1, which receives float64[2]: the receive is shorter than the send",
         "rank 1 sends float64[4] to rank 2, which receives float64[3]: the receive is shorter than the send"),
        ("rank 2 has returned and never joins #4 all_reduce", "rank 1 has returned and never joins #4 all_reduce"),
    ],
)  # fmt: skip
def test_which_of_several_ranks_is_told_of_is_chance_and_does_not_tell_mistakes_apart(one, other):
    ended = {0: Failure("called")}
    came, theirs = (mistakes.marks(RankFailed("", RankError(verdict, ended, 0, []))) for verdict in (one, other))
    assert naming._failing_alike([mistakes.Failing("it", lambda: theirs)], came) == {"it"}
    exact = [mistakes.Failing("it", lambda: theirs), mistakes.Failing("this", lambda: came)]
    assert "this" in naming._failing_alike(exact, came)


def test_a_patch_that_does_not_apply_says_so():
    with pytest.raises(ValueError, match="must stand once"):
        Patch("sum", "not there", "").applied("def f():\n    pass\n")
