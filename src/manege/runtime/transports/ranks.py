"""The transport between MPI ranks: on rank 0, it reaches the agents of all other ranks."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from manege import failpoints, machine
from manege.errors import MachineError
from manege.observer import Observer, Observers
from manege.runtime.coordinator import Outcome
from manege.runtime.driver import Deliver, drive
from manege.runtime.messages import (
    Close,
    Died,
    EndJob,
    Kill,
    Load,
    NewRun,
    NodeLoaded,
    OldRun,
    Order,
    Prepared,
    Refused,
    Said,
    Send,
    Signalled,
    Start,
    Task,
    decode,
    encode,
)
from manege.runtime.mpi import RankMessage, World
from manege.runtime.transports.local import answer

_NAP_S = 0.002
_SILENCE_S = 3.0


def run(
    world: World, request: NewRun | OldRun, observer: Observer, workers: int | None
) -> tuple[Prepared, Outcome]:
    """Drive a run on the other ranks of the job; `workers` None is one on each."""
    machine.allow_many_files()
    failpoints.only_for(None)
    signals = _Signals()
    both = Observers(observer, signals)
    return drive(request, _Ranks(world, both, signals, workers), both)


class _Signals(Observer):
    """Stops the run when a rank was sent a signal."""

    came: str | None = None

    def should_stop(self) -> str | None:
        return self.came


class Node(NamedTuple):
    """A machine of the job, as its agents found it."""

    number: int
    """The first rank of the machine."""
    name: str
    cores: int
    bytes: int
    """Bytes of memory that are free."""
    devices: int
    """How many GPUs it has."""

    def described(self, ranks: int) -> str:
        """Return a line for people."""
        gpus = f", {self.devices} GPUs" if self.devices else ""
        return (
            f"node {self.name}: {self.cores} cores, {self.bytes / (1 << 30):.0f} GB free{gpus}, "
            f"{ranks} worker rank{'s' if ranks > 1 else ''}"
        )


def least_loaded(
    load: Mapping[int, int], nodes: Mapping[int, Node], silent: Mapping[int, bool]
) -> int:
    """Return the rank for another worker: one that answers, on the node with most room, least busy.

    Args:
        load: how many workers every rank has.
        nodes: the node of every rank.
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
    """The transport to workers of other ranks; files are the numbers of slots."""

    watches = True

    def __init__(
        self, world: World, observer: Observer, signals: _Signals, workers: int | None
    ) -> None:
        self._world = world
        self._observer = observer
        self._signals = signals
        self._workers = workers
        self._received: deque[RankMessage] = deque()
        self._where: dict[int, int] = {}
        """The rank of every worker."""
        self._load = dict.fromkeys(range(1, world.size), 0)
        """How many workers every rank has."""
        self._nodes: dict[int, Node] = {}
        """The machine of every rank."""
        self._heard_at = dict.fromkeys(range(1, world.size), time.monotonic())
        """When each agent was last heard of; one that hangs is given no worker."""

    def prepare(self, request: NewRun | OldRun) -> Prepared:
        self._post(1, request)
        return answer(self._receive, Prepared, self._observer)

    def load(self, prepared: Prepared) -> tuple[Task, int]:
        for rank in self._load:
            self._post(rank, Load(prepared.path, prepared.config))
        answers = [answer(self._receive, NodeLoaded, self._observer) for _ in self._load]
        said = {
            one.rank: Node(one.number, one.name, one.cores, one.free_bytes, one.loaded.devices)
            for one in answers
        }
        # Ranks of one machine differ in when they looked.
        found = {node.number: node for _, node in sorted(said.items())}
        self._nodes = {rank: found[node.number] for rank, node in said.items()}
        for node in found.values():
            ranks = sum(one is node for one in self._nodes.values())
            self._observer.say(node.described(ranks))
        workers = self._workers
        if workers is None:
            workers = len(self._load)
            self._observer.say(f"workers: {workers} (ranks besides the coordinator's)")
        task: Task = answers[0].loaded.task
        nodes = [node._asdict() for node in found.values()]
        return dataclasses.replace(task, record={**task.record, "nodes": nodes}), workers

    def carry(self, order: Order) -> None:
        match order:
            case Send(worker):
                if worker in self._where:
                    self._post(self._where[worker], order)
            case Start(worker):
                now = time.monotonic()
                silent = {rank: now - self._heard_at[rank] > _SILENCE_S for rank in self._load}
                rank = least_loaded(self._load, self._nodes, silent)
                self._where[worker] = rank
                self._load[rank] += 1
                self._post(rank, order)
            case Kill(worker):
                lost = self._where.pop(worker, None)
                if lost in self._load:
                    self._load[lost] -= 1
                    self._post(lost, order)
            case Close(file):
                self._post(file % self._world.size, order)

    def poll(self, timeout_s: float, deliver: Deliver) -> None:
        for rank in self._world.lost():
            self._mourn(rank, deliver)
        deadline = time.monotonic() + timeout_s
        while not self._received and time.monotonic() < deadline:
            self._received.extend(self._world.poll())
            if not self._received:
                time.sleep(_NAP_S)
        while self._received:
            match self._next():
                case Said() | Died() as heard:
                    deliver(heard)
                case Refused() as refused:
                    raise refused.error()

    def await_end(self) -> None:
        """Return at once: agents wait for their workers when they are told the exit code."""

    def _mourn(self, lost: int, deliver: Deliver) -> None:
        """Report the workers of a lost rank as dead, so that others take up their cells."""
        del self._load[lost]
        if not self._load:
            raise MachineError(f"all worker ranks are lost, the last was {lost}; resume the run")
        self._observer.say(f"rank {lost} is lost; {len(self._load)} worker ranks are left")
        for worker in [worker for worker, rank in self._where.items() if rank == lost]:
            deliver(Died(worker, f"rank {lost} was lost"))

    def _post(self, rank: int, message: Any) -> None:
        self._world.post(rank, encode(message))

    def _receive(self) -> list[Any]:
        """Return the next message before the run begins, in a list that is empty without one."""
        for rank in self._world.lost():
            raise MachineError(f"rank {rank} was lost while the run was being prepared; try again")
        self._received.extend(self._world.poll())
        if not self._received:
            time.sleep(_NAP_S)
            return []
        return [self._next()]

    def _next(self) -> Any:
        rank, content = self._received.popleft()
        self._heard_at[rank] = time.monotonic()
        assert not isinstance(content, np.ndarray), "nobody shows the coordinator a centre"
        message = decode(content)
        if isinstance(message, Signalled):
            self._signals.came = message.name
        return message


def dismiss(world: World, code: int) -> None:
    """Tell all agents that the job ends, and with which exit code."""
    for rank in range(1, world.size):
        world.post(rank, encode(EndJob(code)))
