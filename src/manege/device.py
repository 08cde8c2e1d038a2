"""Choose devices and threads, and tune the process's memory: no other module does.

Owns what torch is told about the machine; everything else takes a `torch.device`, or `Devices`.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count as counted
from typing import NamedTuple

import torch

from manege import processes
from manege.errors import MachineError, field

_KEEP_BYTES = 1 << 30
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


_COUNT = struct.Struct("i")


class Devices(NamedTuple):
    """The devices of a cell's two networks."""

    generator: torch.device
    discriminator: torch.device


CPU = Devices(torch.device("cpu"), torch.device("cpu"))


def both(on: torch.device | Devices) -> Devices:
    """Return one device for both networks, unless each has its own."""
    return on if isinstance(on, Devices) else Devices(on, on)


def place(name: str, local_index: int, gpus: int) -> Devices:
    """Return the devices of a worker's cells, among so many GPUs of its machine.

    Args:
        name: `auto | cpu | cuda | cuda:N`, or two of them joined by `+`: the generator's and the
            discriminator's. Auto is a GPU where there is one.
        local_index: the worker's number on its machine. Those without a number get the next GPUs
            that no earlier worker has, and the first again when all are taken.
        gpus: how many there are.
    """
    parts = ["cuda" if part == "auto" and gpus else part for part in name.split("+")]
    for part in parts:
        _check(name, part, gpus)
    free = counted(local_index * parts.count("cuda"))
    found = [_numbered(part, free, gpus) for part in parts]
    return Devices(found[0], found[-1])


def _check(name: str, part: str, gpus: int) -> None:
    """Raise MachineError when there is no such GPU."""
    if part in ("auto", "cpu"):
        return
    if not gpus:
        raise MachineError(
            f"{field('device')} {name}: torch {torch.__version__} sees no CUDA device here; "
            f"use {field('device')} cpu, or install a CUDA build of torch"
        )
    if part != "cuda" and _number(part) >= gpus:
        raise MachineError(
            f"{field('device')} {name}: found {gpus} CUDA device(s), numbered from 0; "
            f"use one of cuda:0 … cuda:{gpus - 1}"
        )


def _numbered(part: str, free: Iterator[int], gpus: int) -> torch.device:
    if part in ("auto", "cpu"):
        return torch.device("cpu")
    return torch.device("cuda", next(free) % gpus if part == "cuda" else _number(part))


def _number(part: str) -> int:
    return int(part.removeprefix("cuda:"))


def resolve(name: str) -> torch.device:
    """Return the device of `auto | cpu | cuda | cuda:N` for a process that is alone."""
    return place(name, 0, gpus_for(name)).generator


def wants_gpus(name: str) -> bool:
    """Return whether a GPU would be used, if there is one."""
    return any(part != "cpu" for part in name.split("+"))


def gpus_for(name: str) -> int:
    """Return how many GPUs torch can use here, or 0 when none would be; may start CUDA."""
    if not wants_gpus(name) or not torch.cuda.is_available():
        return 0
    return torch.cuda.device_count()


def gpus_apart(name: str) -> int:
    """Count GPUs as `gpus_for` does, but in a child: CUDA once started does not survive a fork."""
    if not wants_gpus(name):
        return 0
    reading, writing = os.pipe()
    pid = processes.fork()
    if pid == 0:
        try:
            os.write(writing, _COUNT.pack(gpus_for(name)))
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:  # noqa: PTH123 - a descriptor has no path.
        told = answer.read()
    os.waitpid(pid, 0)
    return int(_COUNT.unpack(told)[0]) if told else 0


def enter(devices: Devices) -> None:
    """Let a process that has one cell's devices for itself touch no other GPU."""
    for one in devices:
        if one.type == "cuda":
            torch.cuda.set_device(one)
            return


def use_threads(count: int) -> None:
    """Have torch compute with so many threads; MachineError when there cannot be so many."""
    processes.check_threads(count - 1)  # OpenMP ends the process when it cannot start its own.
    torch.set_num_threads(count)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch compute with `count` threads inside, and restore the caller's number after."""
    before = torch.get_num_threads()
    use_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_memory() -> None:
    """Let freed memory stay with the process, where the C library can be told so (glibc).

    A step frees and asks again for the same tens of megabytes. Given back to the kernel each
    time they cost thousands of page faults a step.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)
