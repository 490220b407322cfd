"""The check of run_backward: the whole batch's gradients, and nothing kept longer than needed."""

from __future__ import annotations

import weakref

from distlab.course.checks.pipeline.common import WIDTH, in_order, stage_module, staged, whole_batch
from distlab.course.exercise import Exercise
from distlab.course.kit.case import Job
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import gradients_of, misconceptions

LEFT = "entries in stage.kept"
HELD = "micro-batches whose input or output is still held somewhere"


def drive(lab, job: Job) -> dict:
    """On a rank: of each stage what it sends back, its gradients, and how much it keeps after each backward."""
    whole, found = whole_batch(job), {}
    for number in range(job["p"]):
        stage = lab.Stage(stage_module(job, number), number, job["p"], WIDTH)
        back, left, held = [None] * len(job["sizes"]), [], []
        for kind, k in in_order(job):
            if kind == "F":
                lab.run_forward(stage, k, whole.inputs[number][k].clone(), whole.labels[k], sum(job["sizes"]))
            else:
                refs = [weakref.ref(tensor) for tensor in stage.kept.get(k, ())]
                back[k] = call(lab.run_backward, stage, k, whole.by_input[number + 1][k])
                left.append(len(stage.kept))
                held += [k] if k not in stage.kept and any(ref() is not None for ref in refs) else []
        found |= _named(number, back, gradients_of(stage.module), left, held)
    return found


def _named(number: int, back, by_weight, left, held) -> dict:
    returned = {f"what stage {number} returns": back} if number else {}  # of the first stage nobody asks it
    return returned | {
        f"the gradients of stage {number}": by_weight,
        f"{LEFT} of stage {number} after each backward": left,
        f"stage {number}, {HELD} after its backward": held,
    }


def expect(job: Job, came: list[dict]) -> list[dict]:
    """What one process gives for the whole batch."""
    whole, want = whole_batch(job), {}
    kinds = [kind for kind, _ in in_order(job)]
    left = [kinds[:n].count("F") - kinds[:n].count("B") - 1 for n, kind in enumerate(kinds) if kind == "B"]
    for number, by_weight in enumerate(whole.by_weight):
        want |= _named(number, whole.by_input[number], by_weight, left, [])
    return [want] * job.ranks


RUN_BACKWARD = Exercise(
    "run_backward",
    Experiment(
        (
            staged(3, 3, [2, 2, 2]),
            # of the sizes that it asks for, each backward finds another micro-batch first
            staged(3, 2, [1, 1, 1, 2, 2], ", backwards of 1, 0, 2, 4 and 3", back=(1, 0, 2, 4, 3)),
            staged(3, 4, [2]),
            staged(3, 2, [2, 2, 2], ", forwards and backwards in turn", ahead=2),
            staged(1, 1, [3, 2, 3]),
        ),
        drive,
        expect,
        fields=lambda job, _: {"m": len(job["sizes"])},
        needs=("Stage",),
        named={HELD: "parked", LEFT: "keeps"},
        holds="gradients equal the whole batch's on every stage, and nothing stays in stage.kept; on 1 to 4 stages, "
        "with equal and unequal micro-batches, more and fewer than stages",
    ),
    misconceptions=misconceptions(
        ones="These are gradients of the sum of the stage's outputs: the gradient that came from the next stage was "
        "not used. out.backward(gradient) starts from it.",
        no_gradient="backward() alone can start only from one number, the loss. On the stages before the last, start "
        "from the gradient that came: out.backward(gradient).",
        last_in="The micro-batch that was kept last was taken, whichever was asked for: first in, first out is this "
        "schedule's order. Take stage.kept[micro].",
        first_in="The micro-batch that was kept first was taken, whichever was asked for. Backwards may come in any "
        "order: take stage.kept[micro].",
        clears_at_0="What other micro-batches had added to .grad is gone after micro-batch 0: it need not be the first "
        "to go backward, and the step clears the gradients, once, for all of them.",
        parked="The input or the output of a micro-batch is still held after its backward, somewhere else than in "
        "stage.kept: as long as it is, so are its activations. Let both go when the function ends.",
        clears="The gradients are those of the last micro-batch alone: each backward adds to .grad, and nothing may "
        "clear it before all {m} are done.",
        keeps="Micro-batches stay in stage.kept after their backward, and with them their activations: pop them.",
        nothing="Nothing is returned: the stage before waits for the gradient of its output, which is that of this "
        "stage's input.",
        passes_on="The gradient that came in is returned as it came: what goes back is the gradient of this stage's "
        "input, x_bD.grad.",
    ),
    hints=(
        "stage.kept has the pair for this micro-batch, an input and an output. Take it out of there, go backward from "
        "the output, and look at the input's .grad.",
        "x_bD, out = stage.kept.pop(micro), then out.backward(gradient). With None, on the last stage, that is the "
        "same as out.backward().",
    ),
    uses=("run_forward",),
)
