"""The check of run_forward: what goes on to the next stage, and what is kept for the backward pass."""

from __future__ import annotations

import weakref

import torch

from distlab.course.checks.pipeline.common import WIDTH, in_order, stage_module, staged, whole_batch
from distlab.course.exercise import Exercise
from distlab.course.kit.case import Job
from distlab.course.kit.driving import call
from distlab.course.kit.experiment import Experiment
from distlab.course.kit.fixtures import gradients_of, misconceptions

HELD = "micro-batches whose output is still held somewhere"
KEPT = "its input and its output"


def drive(lab, job: Job) -> dict:
    """On a rank: of each stage what it gives, what it keeps, and what a backward makes of that."""
    whole, found = whole_batch(job), {}
    for number in range(job["p"]):
        stage = lab.Stage(stage_module(job, number), number, job["p"], WIDTH)
        outs, kept, back, changed, held = [], [], [], [], []
        for kind, k in in_order(job):
            if kind == "F":
                x_bD = whole.inputs[number][k].clone()
                arguments = stage, k, x_bD, whole.labels[k], sum(job["sizes"])
                outs.append(call(lab.run_forward, *arguments, changes=(2,)))  # it may be made to require grad
                changed += [] if _equal(x_bD, whole.inputs[number][k]) else [k]
            else:
                pair = stage.kept.pop(k, None) if isinstance(stage.kept, dict) else None
                kept.append(_described(pair, whole.inputs[number][k], outs[k], stage))
                back.append(_backward(*pair, whole.by_input[number + 1][k]) if kept[-1] == KEPT else None)
                out, pair = weakref.ref(pair[1]) if kept[-1] == KEPT else None, None
                held += [k] if out and out() is not None else []
        attached = [k for k, out in enumerate(outs) if isinstance(out, torch.Tensor) and out.requires_grad]
        found |= _named(number, outs, attached, changed, kept, back if number else [], gradients_of(stage.module), held)
    return found


def _named(number: int, outs, attached, changed, kept, back, by_weight, held) -> dict:
    return {
        f"the outputs of stage {number}": outs,
        f"stage {number}, outputs that carry their graph": attached,
        f"stage {number}, inputs that have changed": changed,
        f"stage.kept of stage {number}": kept,
        f"stage {number}, .grad of the kept inputs after a backward": back,
        f"the gradients of stage {number} after a backward": by_weight,
        f"stage {number}, {HELD} after a backward": held,
    }


def _backward(x_bD: torch.Tensor, out: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor | None:
    if gradient is None or gradient.shape == out.shape:
        out.backward(gradient)
    return x_bD.grad


def _described(pair: object, given: torch.Tensor, returned: object, stage) -> str:
    """What the backward pass finds for a micro-batch."""
    if pair is None:
        return "nothing"
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(t, torch.Tensor) for t in pair):
        return "no pair of tensors"
    x_bD, out = pair
    faults = {
        "first its output, then its input": _equal(x_bD, returned) and _equal(out, given),
        "an input that does not require grad": not stage.is_first and not x_bD.requires_grad,
        "an input that is no leaf": not stage.is_first and not x_bD.is_leaf,
        "an input that requires grad on the first stage": stage.is_first and x_bD.requires_grad,
        "an output without its graph": not out.requires_grad,
        "no loss, but a tensor of more axes": stage.is_last and out.dim() > 0,
        "another input": not _equal(x_bD, given),
        "another output": not _equal(out, returned),
    }
    return next((words for words, is_so in faults.items() if is_so), KEPT)


def _equal(a: torch.Tensor, b: object) -> bool:
    return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a.detach(), b.detach())


def expect(job: Job, came: list[dict]) -> list[dict]:
    """What one process gives for the whole batch."""
    whole, num_micro = whole_batch(job), len(job["sizes"])
    want = {}
    for number, outs in enumerate(whole.outs):
        back = whole.by_input[number] if number else []
        want |= _named(number, outs, [], [], [KEPT] * num_micro, back, whole.by_weight[number], [])
    return [want] * job.ranks


RUN_FORWARD = Exercise(
    "run_forward",
    Experiment(
        (
            staged(3, 2, [2, 2]),
            staged(3, 3, [2, 1, 1, 1, 2], ", forwards and backwards in turn", ahead=2),
            staged(3, 4, [1]),
            staged(3, 2, [2, 1], ", whole numbers as the input of the first stage", ids=True),
            staged(1, 1, [3, 2, 3]),
        ),
        drive,
        expect,
        fields=lambda job, _: {"m": len(job["sizes"]), "n": sum(job["sizes"])},
        needs=("Stage",),
        named={HELD: "parked"},
        holds="outputs are right and detached, losses add up to the mean over the batch, and input and output are kept "
        "for each micro-batch; on 1 to 4 stages, with equal and unequal micro-batches, and with whole numbers as input",
    ),
    misconceptions=misconceptions(
        mean="Each loss is the mean over its own micro-batch, so the {m} of them add up to about {m} times the batch's "
        "loss: divide the sum over rows by the {n} rows of the batch.",
        sum="Each loss is a sum over rows, never divided by the {n} rows of the batch.",
        by_number="Each micro-batch's mean is divided by {m}, their number. That weighs a row in a small micro-batch "
        "more than one in a large: divide the sum over rows by the {n} rows of the batch.",
        twice="The loss is divided twice: it is a mean over the micro-batch's rows already, and is divided by {n} as "
        'well. Ask cross_entropy for the sum, reduction="sum".',
        no_loss="The last stage returns its logits; its output is the loss.",
        attached="The output still carries its graph. Sent, that graph is of no use, and it keeps memory: return a "
        "detached tensor.",
        not_kept="Nothing is kept in stage.kept: the backward pass needs this micro-batch's input and output.",
        only_last="Only the last micro-batch is kept: each needs an entry of its own, stage.kept[micro].",
        parked="The output of a micro-batch, and with it its activations, is still held when its pair has been taken "
        "out of stage.kept: keep it there only.",
        no_grad="The kept input does not require grad, so there will be no gradient to send back: earlier stages would "
        "never learn.",
        no_leaf="The kept input is no leaf: only leaves get a .grad. Mark the tensor that goes into the module, and "
        "keep that one.",
        other_leaf="The kept input is not the tensor that went into the module, so a backward leaves its .grad empty: "
        "make the input a leaf first, run the module on that leaf, and keep it.",
        no_graph="The kept output has no graph: detach what is returned, not what is kept.",
        turned="The pair is (input, output), in this order: here they are the other way round.",
        keeps_logits="On the last stage the logits are kept, and the loss is returned: the backward pass starts from "
        "what is kept, and its output is the loss.",
        first_input="The first stage's input requires grad. No rank needs that gradient, and each backward computes "
        "it; where the input is token ids, which are no floating point numbers, it can't even be asked for.",
        by_count="The entry is named by how many there are, which is the micro-batch's number only as long as none was "
        "taken out: stage.kept[micro].",
        floored="The number of micro-batches was guessed as {n} // b, which is right only where all have the same b "
        "rows: divide the sum over rows by the {n} rows of the batch.",
    ),
    hints=(
        "Four things in order: make the input a leaf that requires grad (not on the first stage); run stage.module; on "
        "the last stage turn its output into the loss; keep input and output, return the output detached.",
        "x_bD = x_bD.detach().requires_grad_(not stage.is_first). The loss is F.cross_entropy(out, y_b, "
        'reduction="sum") / num_rows. stage.kept[micro] = x_bD, out.',
    ),
)
