"""The MPI runtime's rank 0: the coordinator's messages to the agents of all other ranks."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from manege import failpoints, machine
from manege.errors import MachineError
from manege.runtime.carrying import Finished, carry_out
from manege.runtime.mpi import Letter, World
from manege.runtime.orders import Task
from manege.runtime.serving import (
    DriveOptions,
    PreparedRun,
    answer,
    binding,
    bound_of,
    prepared_of,
    preparing,
    refusal,
)
from manege.runtime.trainers import Died, Said

_NAP_S = 0.002
_SILENCE_S = 3.0


def carried_out(world: World, request: Mapping[str, Any], manner: DriveOptions) -> Finished:
    """A run on the other ranks of the job."""
    machine.allow_many_files()
    failpoints.only_for(None)
    return carry_out(request, _Ranks(world, manner), manner)


class Node(NamedTuple):
    """A machine of the job, as its agents found it."""

    number: int
    """Its first rank."""
    name: str
    cores: int
    bytes: int
    """Of memory that is free."""
    devices: int
    """GPUs."""

    def described(self, ranks: int) -> str:
        """A line for people."""
        gpus = f", {self.devices} GPUs" if self.devices else ""
        return (
            f"node {self.name}: {self.cores} cores, {self.bytes / (1 << 30):.0f} GB free{gpus}, "
            f"{ranks} worker rank{'s' if ranks > 1 else ''}"
        )


def least_loaded(
    load: Mapping[int, int], nodes: Mapping[int, Node], silent: Mapping[int, bool]
) -> int:
    """The rank for another trainer: one that answers, on the node with most room, fewest first.

    Args:
        load: trainers of every rank.
        nodes: of every rank.
        silent: whether a rank was not heard of for long.
    """
    trainers: dict[int, int] = {}
    for rank, count in load.items():
        number = nodes[rank].number
        trainers[number] = trainers.get(number, 0) + count

    def crowded(rank: int) -> tuple[bool, float, int, int]:
        node = nodes[rank]
        # A core more than it has is worth less than one that is free elsewhere.
        share = (trainers[node.number] + 1) / (node.devices or node.cores)
        return silent[rank], share, load[rank], rank

    return min(load, key=crowded)


class _Ranks:
    """Carries messages to and from trainers of other ranks; files are the numbers of slots."""

    def __init__(self, world: World, manner: DriveOptions) -> None:
        self._world = world
        self._manner = manner._replace(stop=self.stopped_by)
        self._own_stop = manner.stop
        self._signal: str | None = None
        self._letters: deque[Letter] = deque()
        self._where: dict[int, int] = {}
        """The rank of every trainer."""
        self._load = dict.fromkeys(range(1, world.size), 0)
        """Trainers of every rank."""
        self._nodes: dict[int, Node] = {}
        """The machine of every rank."""
        self._heard_at = dict.fromkeys(range(1, world.size), time.monotonic())
        """When each agent was last heard of: one that hangs is given no trainer."""

    def prepare(self, request: Mapping[str, Any]) -> PreparedRun:
        self._world.post(1, preparing(request))
        return prepared_of(answer(self._receive, "prepared", self._manner))

    def bind(self, prepared: PreparedRun) -> tuple[Task, int]:
        for rank in self._load:
            self._world.post(rank, binding(prepared))
        answers = [answer(self._receive, "bound", self._manner) for _ in self._load]
        said = {int(one["rank"]): Node(**one["node"]) for one in answers}
        # Ranks of one machine differ in when they looked.
        found = {node.number: node for _, node in sorted(said.items())}
        self._nodes = {rank: found[node.number] for rank, node in said.items()}
        for node in found.values():
            ranks = sum(one is node for one in self._nodes.values())
            self._manner.say(node.described(ranks))
        workers = self._manner.workers
        if workers is None:
            workers = len(self._load)
            self._manner.say(f"workers: {workers} (ranks besides the coordinator's)")
        task = bound_of(answers[0]).task
        nodes = [node._asdict() for node in found.values()]
        return dataclasses.replace(task, told={**task.told, "nodes": nodes}), workers

    def start(self, host: int) -> None:
        now = time.monotonic()
        silent = {rank: now - self._heard_at[rank] > _SILENCE_S for rank in self._load}
        rank = least_loaded(self._load, self._nodes, silent)
        self._where[host] = rank
        self._load[rank] += 1
        self._world.post(rank, {"is": "start", "host": host})

    def send(self, host: int, message: dict[str, Any], files: tuple[int, ...]) -> None:
        if host in self._where:
            letter = {"is": "tell", "host": host, "message": message, "slots": files}
            self._world.post(self._where[host], letter)

    def drop(self, host: int) -> None:
        rank = self._where.pop(host, None)
        if rank in self._load:
            self._load[rank] -= 1
            self._world.post(rank, {"is": "kill", "host": host})

    def forget(self, file: int) -> None:
        self._world.post(file % self._world.size, {"is": "forget", "slot": file})

    def hear(self, timeout_s: float) -> Iterator[Said | Died]:
        for rank in self._world.lost():
            yield from self._mourn(rank)
        deadline = time.monotonic() + timeout_s
        while not self._letters and time.monotonic() < deadline:
            self._letters.extend(self._world.poll())
            if not self._letters:
                time.sleep(_NAP_S)
        while self._letters:
            message = self._next()
            match message["is"]:
                case "said":
                    yield Said(message["host"], message["message"], tuple(message["slots"]))
                case "dead":
                    yield Died(message["host"], message["how"])
                case "refused":
                    raise refusal(int(message["code"]), str(message["text"]))

    def _mourn(self, lost: int) -> Iterator[Died]:
        """The trainers of a rank that is lost; others take up what they had."""
        del self._load[lost]
        if not self._load:
            raise MachineError(f"all worker ranks are lost, the last was {lost}; resume the run")
        self._manner.say(f"rank {lost} is lost; {len(self._load)} worker ranks are left")
        for host in [host for host, rank in self._where.items() if rank == lost]:
            yield Died(host, f"rank {lost} was lost")

    def stopped_by(self) -> str | None:
        return self._own_stop() or self._signal

    def await_end(self) -> None:
        """Agents do, when they are told the exit code."""

    def _receive(self) -> list[dict[str, Any]]:
        """The next letter before the run begins, if there is one."""
        for rank in self._world.lost():
            raise MachineError(f"rank {rank} was lost while the run was being prepared; try again")
        self._letters.extend(self._world.poll())
        if not self._letters:
            time.sleep(_NAP_S)
            return []
        return [self._next()]

    def _next(self) -> dict[str, Any]:
        rank, content = self._letters.popleft()
        self._heard_at[rank] = time.monotonic()
        assert not isinstance(content, np.ndarray), "nobody shows the coordinator a centre"
        if content["is"] == "signal":
            self._signal = str(content["name"])
        return content


def dismiss(world: World, code: int) -> None:
    """Tell all agents that the job ends, and how."""
    for rank in range(1, world.size):
        world.post(rank, {"is": "end", "code": code})
