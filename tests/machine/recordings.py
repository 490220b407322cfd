"""Machines in round numbers, and recordings written by hand or generated, for the tests of replay."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from distlab.events import Compute, Done, Message, Wait
from distlab.machine.machines import FREE_LINK, Link, Machine
from distlab.recording import Group, History, Recording

# A compute of n FLOPs takes n seconds.
FREE = Machine("free", 1.0, 1.0, math.inf, 0.0, 1 << 20, FREE_LINK, FREE_LINK)


def with_links(inside: Link, between: Link | None = None, ranks_per_node: int = 1 << 20, collectives="ring") -> Machine:
    """A machine of one FLOP/s, and nothing but FLOPs and links to pay for."""
    return Machine("links", 1.0, 1.0, math.inf, 0.0, ranks_per_node, inside, between or inside, collectives)


def record(*histories: History, groups: Sequence[Group] = ()) -> Recording:
    """A recording of histories, which contradicts itself nowhere."""
    recording = Recording([history.events for history in histories], groups)
    recording.validate()
    return recording


def each(num_ranks: int, write: Callable[[int, History], object]) -> Recording:
    """A recording in which ``write(rank, history)`` writes each rank's history."""
    histories = [History() for _ in range(num_ranks)]
    for rank, history in enumerate(histories):
        write(rank, history)
    return record(*histories)


def built_in_all_reduce(num_ranks: int, bytes: int) -> Recording:
    """An all-reduce, as one collective."""
    return each(num_ranks, lambda rank, history: history.collective("all_reduce", bytes))


def hand_written_ring(num_ranks: int, bytes: int) -> Recording:
    """An all-reduce by isend and irecv: a ring reduce-scatter, then a ring all-gather."""

    def write(rank: int, history: History) -> None:
        for _ in range(2 * (num_ranks - 1)):
            sent = history.issue("send", bytes // num_ranks, peer=(rank + 1) % num_ranks)
            received = history.issue("recv", bytes // num_ranks, peer=(rank - 1) % num_ranks)
            history.wait(received).wait(sent)

    return each(num_ranks, write)


def blocking_ring(num_ranks: int, bytes: int) -> Recording:
    """The same by send and recv: even ranks send first, odd ranks receive first."""

    def write(rank: int, history: History) -> None:
        calls = [(history.send, (rank + 1) % num_ranks), (history.recv, (rank - 1) % num_ranks)]
        for _ in range(2 * (num_ranks - 1)):
            for call, peer in calls if rank % 2 == 0 else reversed(calls):
                call(peer, bytes // num_ranks)

    return each(num_ranks, write)


def gpipe(num_stages: int, num_micro_batches: int) -> list[list[str]]:
    """By stage, forwards and backwards in order: all forwards first."""
    forwards = [f"F{m}" for m in range(num_micro_batches)]
    backwards = [f"B{m}" for m in range(num_micro_batches)]
    return [forwards + backwards for _ in range(num_stages)]


def one_f_one_b(num_stages: int, num_micro_batches: int) -> list[list[str]]:
    """By stage, forwards and backwards in order: as few micro-batches under way as keep all stages busy."""
    schedule = []
    for stage in range(num_stages):
        warm_up = min(num_micro_batches, num_stages - 1 - stage)
        steps = [f"F{m}" for m in range(warm_up)]
        for m in range(num_micro_batches):
            steps += [f"F{m + warm_up}"] if m + warm_up < num_micro_batches else []
            steps += [f"B{m}"]
        schedule.append(steps)
    return schedule


def pipeline(schedule: list[list[str]], backward: float = 1.0, receive_early: bool = False) -> Recording:
    """A schedule with forwards of one FLOP and backwards of ``backward``; messages of no bytes.

    No send is waited for before the end, or the stages of 1F1B would all wait for one another. Receives are issued
    where they are needed, or with ``receive_early`` all at the start.
    """

    def write(stage: int, history: History) -> None:
        early = {step: receive(history, stage, step) for step in schedule[stage]} if receive_early else {}
        sends = []
        for step in schedule[stage]:
            received = early[step] if receive_early else receive(history, stage, step)
            if received is not None:
                history.wait(received)
            history.compute(1.0 if step[0] == "F" else backward, step)
            target = stage + 1 if step[0] == "F" else stage - 1
            if 0 <= target < len(schedule):
                sends.append(history.issue("send", 0, peer=target, tag="FB".index(step[0])))
        for send in sends:
            history.wait(send)

    def receive(history: History, stage: int, step: str) -> int | None:
        source = stage - 1 if step[0] == "F" else stage + 1
        if 0 <= source < len(schedule):
            return history.issue("recv", 0, peer=source, tag="FB".index(step[0]))
        return None

    return each(len(schedule), write)


def blocking_gpipe(num_stages: int, num_micro_batches: int) -> Recording:
    """GPipe as a beginner writes it: every send and every receive blocks."""

    def write(stage: int, history: History) -> None:
        for name, source, target in (("F", stage - 1, stage + 1), ("B", stage + 1, stage - 1)):
            for m in range(num_micro_batches):
                if 0 <= source < num_stages:
                    history.recv(source, 4)
                history.compute(1.0 if name == "F" else 2.0, f"{name}{m}")
                if 0 <= target < num_stages:
                    history.send(target, 4)

    return each(num_stages, write)


def random_program(seed: int, num_ranks: int = 6, num_operations: int = 40) -> Recording:
    """A correct program of sends, receives and collectives, some in sub-groups, waited for at once or later.

    All numbers are small and whole, so that many things happen at the same moment.
    """
    draw = random.Random(seed)
    world = tuple(range(num_ranks))
    teams = [tuple(sorted(draw.sample(world, draw.randint(2, num_ranks)))) for _ in range(3)]
    groups = [Group("world", world), *(Group(f"team {i}", team) for i, team in enumerate(teams))]
    histories: list[list] = [[] for _ in world]
    open_waits: list[list[int]] = [[] for _ in world]
    for id in range(num_operations):
        group, bytes = draw.randrange(len(groups)), draw.choice([0, 4, 8])
        members = groups[group].members
        if draw.random() < 0.6:
            source, target = draw.sample(members, 2)
            parts = [(source, "send", target), (target, "recv", source)]
        else:
            kind = draw.choice(["all_reduce", "broadcast", "all_gather"])
            parts = [(rank, kind, None) for rank in members]
        for rank, kind, peer in parts:
            if draw.random() < 0.5:
                histories[rank].append(Compute(draw.choice([1.0, 2.0])))
            histories[rank].append(Message(id, kind, group, elements=bytes // 4, bytes=bytes, peer=peer))
            open_waits[rank].append(id)
        for rank, _, _ in parts:
            if draw.random() < 0.5:
                _wait_for_all(histories[rank], open_waits[rank])
    for rank in world:
        _wait_for_all(histories[rank], open_waits[rank])
    return Recording(histories, groups)


def _wait_for_all(history: list, open_waits: list[int]) -> None:
    for id in open_waits:
        history += [Wait(id), Done(id)]
    open_waits.clear()


def renumbered(recording: Recording, new: Sequence[int]) -> Recording:
    """The same run with rank r called ``new[r]``."""
    histories: list = [None] * recording.world_size
    for rank, history in enumerate(recording.ranks):
        histories[new[rank]] = [_renumber(event, new) for event in history]
    groups = [Group(name, tuple(sorted(new[rank] for rank in members))) for name, members in recording.groups]
    return Recording(histories, groups)


def _renumber(event, new: Sequence[int]):
    if type(event) is Message and event.peer is not None:
        return event._replace(peer=new[event.peer])
    return event
