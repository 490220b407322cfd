"""The check of vocab_parallel_embedding, and what the checks of the loss share with it: ids, and who holds them."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from distlab.course.checks.tensor_parallel.common import (
    SKIPS,
    UNTRACKED,
    WORLDS,
    Seat,
    Ways,
    budget,
    case,
    drawn,
    own_seat,
    seats,
)
from distlab.course.exercise import Exercise
from distlab.course.kit.case import Job
from distlab.course.kit.fixtures import misconceptions, shares
from distlab.course.kit.outcome import Outcome

NUM_IDS, PLACES, NUM_PLACES = 29, (3, 4), 12
ONE_SIDED = (0, "all on rank 0"), (1, "all on rank 1")  # of 2: the other rank holds none of the ids
_ENDS = [part[end] for size in (2, 3) for part in shares(NUM_IDS, size) for end in (0, -1)]
_LARGEST = "the numbers in the largest tensor"


def ids_of(job: Job, group: int) -> torch.Tensor:
    """The first and the last id of every rank, some of them again; or ids of one rank of two only."""
    generator = torch.Generator().manual_seed(job.seed + group)
    ids = list(dict.fromkeys(_ENDS))
    if job["only"] is not None:
        own = shares(NUM_IDS, 2)[job["only"]]
        ids = [own[0], own[-1]]
    ids = torch.tensor(ids)
    more = ids[torch.randint(len(ids), (NUM_PLACES - len(ids),), generator=generator)]
    return torch.cat([ids, more])[torch.randperm(NUM_PLACES, generator=generator)].view(PLACES)


def logits_of(job: Job, group: int, shift: float = 0.0) -> torch.Tensor:
    """All logits, around ``shift``; at the first place two ranks share the largest."""
    logits = 3 * drawn(job, group, 0, *PLACES, NUM_IDS) + shift
    logits[0, 0, [0, -1]] = logits[0, 0].max() + 1
    return logits


def by_id(values, ids: torch.Tensor, seat: Seat):
    """Values by place, each with its id and with who holds that; as they are if they are not one a place."""
    if not isinstance(values, torch.Tensor) or values.shape[:2] != ids.shape:
        return values
    holder = {id: rank for rank, own in zip(seat.ranks, shares(NUM_IDS, len(seat.ranks))) for id in own}
    places = [(row, place) for row in range(PLACES[0]) for place in range(PLACES[1])]
    words = [f"{list(at)}, where id {int(ids[at])} of rank {holder[int(ids[at])]} stands" for at in places]
    return dict(zip(words, map(values.__getitem__, places)))


class Largest(TorchDispatchMode):
    """Notes the elements of the largest tensor that any operator makes."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, list | tuple) else [result]:
            if isinstance(value, torch.Tensor):
                self.elements = max(self.elements, value.numel())
        return result


def in_parts(y: torch.Tensor, grad_x: torch.Tensor, seat: Seat, axis: int = -1) -> tuple[torch.Tensor, torch.Tensor]:
    """y, and of the gradient a rank's ids, along ``axis``."""
    return y, grad_x.index_select(axis, torch.tensor(seat.part(NUM_IDS)))


class OfIds(Ways):
    """A function of ids, of which each rank holds some: what is wrong is told with the id, and who holds it."""

    def drive(self, lab, job: Job) -> dict:
        """On a rank: what comes both ways."""
        found, seat, y = super().drive(lab, job), own_seat(job), self.names[0]
        return found | {y: by_id(found[y], ids_of(job, seat.group), seat)}

    def expect(self, job: Job, came: list[dict]) -> list[dict]:
        """What one process has, by id where that came by id."""
        want, y = super().expect(job, came), self.names[0]
        for seat, of_rank in zip(seats(job), want):
            if all(isinstance(found[y], dict) for found in came):
                of_rank[y] = by_id(of_rank[y], ids_of(job, seat.group), seat)
        return want


class OfLogits(OfIds):
    """A function of this rank's logits, which must not be gathered."""

    def drive(self, lab, job: Job) -> dict:
        """On a rank: what comes both ways, and how large the largest tensor was that was made on the way forward."""
        largest, function = Largest(), getattr(lab, self.name)

        @functools.wraps(function)
        def watched(*args):
            with largest:
                return function(*args)

        return super().drive(SimpleNamespace(**{self.name: watched}), job) | {_LARGEST: largest.elements}

    def judge(self, job: Job, outcome: Outcome):
        """So many times one number a place is sent at most, and nobody holds as many as there are logits."""
        yield from budget(job, outcome, self.forward * max(2, len(job["groups"][0])) * NUM_PLACES)
        whole, size = NUM_PLACES * NUM_IDS, len(job["groups"][0])
        for rank, values in enumerate(outcome.values):
            if size > 1 and values[_LARGEST] >= whole:
                most = NUM_PLACES * -(-NUM_IDS // size)
                yield _LARGEST, f"rank {rank}: expected at most {most}, got {values[_LARGEST]}"
                return


WIDTH = 5


def _table(job: Job, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The vectors of all ids, and the gradient of what is looked up."""
    return drawn(job, group, 0, NUM_IDS, WIDTH), drawn(job, group, 1, *PLACES, WIDTH)


def _given(job: Job, seat: Seat) -> tuple[tuple, torch.Tensor]:
    table, grad_x = _table(job, seat.group)
    return (ids_of(job, seat.group), table[seat.part(NUM_IDS)], NUM_IDS), grad_x


@functools.lru_cache(maxsize=4)
def _alone(job: Job, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    table, grad_x = _table(job, group)
    x = F.embedding(ids_of(job, group), table.requires_grad_())
    x.backward(grad_x)
    return x.detach(), table.grad


_EMBEDDING = OfIds(
    "vocab_parallel_embedding",
    _given,
    lambda job, seat: in_parts(*_alone(job, seat.group), seat, axis=0),
    forward=2 * NUM_PLACES * WIDTH,
    of=1,
    names=("the vectors", "the rows"),
)


def _drive(lab, job: Job) -> dict:
    return _EMBEDDING.drive(lab, job)


VOCAB_PARALLEL_EMBEDDING = Exercise(
    "vocab_parallel_embedding",
    _EMBEDDING.experiment(
        _drive,
        [case(groups, f" and {NUM_IDS} ids", only=None) for groups in WORLDS]
        + [case(WORLDS[0], f" and ids {words}", only=rank) for rank, words in ONE_SIDED],
        "every rank has every vector, and the gradient of its own rows, with one all-reduce; on 1 to 3 "
        f"ranks and in two groups, with {NUM_IDS} ids, which 2 and 3 don't divide, and with all ids on one rank",
    ),
    misconceptions=misconceptions(
        foreign="An id that belongs to another rank was looked up here, where there is no such row. (Below 0, Python "
        "would even find one, from the end.) Look up ids of your own only, and put zeros for the others.",
        unmasked="An id that belongs to another rank brings a row of this rank's too, and the sum holds both. Foreign "
        "ids must bring zeros: multiply by the mask.",
        equal_shares="The ids of rank r were taken to begin at r times the ids that it holds. Where the ids don't "
        "divide, ranks hold unequal numbers of them: share_of says which are this rank's.",
        one_too_many="The first id of the next rank was taken for this rank's own: a share ends before its stop.",
        no_sum="Each rank has its own vectors, and zeros in the other places: they are to be added up by "
        "reduce_from_group.",
        both_ways="The gradient is {ranks} times too large: it was added up on the way back as well.",
        cut_off="No gradient comes back to the rows: they were detached, or the sum is not made by reduce_from_group.",
        untracked=f"{UNTRACKED}Use reduce_from_group.",
        skips=SKIPS.replace("{what}", "ids"),
        gathers="The whole table was sent, and every rank holds all of it for a moment: send vectors, not the table.",
        writes="It changed the ids or the rows that it was given.",
        world="The sum runs over all ranks, and not over the group: hand group on.",
    ),
    hints=(
        "mine = share_of(num_ids, group) says which ids are this rank's. Those are looked up at id − mine.start. What "
        "should the others bring, so that the sum over the ranks is right?",
        "A mask: is_mine_BT = (ids_BT >= mine.start) & (ids_BT < mine.stop). Multiply the local ids by it, so that "
        "each is there; after F.embedding multiply the vectors by it too, with unsqueeze(-1). Then the sum.",
    ),
    uses=("reduce_from_group",),
)
