"""Ask what this machine is and what it lets us have: processor, cores, memory, open files."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
"""The folder where a container or a batch system says how much of the machine is ours."""


def cpu() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def cores() -> int:
    """Return how many cores this process may use, by its affinity and its control group."""
    allowed = len(os.sched_getaffinity(0))
    quota = _words(CGROUP / "cpu.max")
    if len(quota) == 2 and quota[0].isdigit() and int(quota[1]) > 0:
        allowed = min(allowed, math.ceil(int(quota[0]) / int(quota[1])))
    return max(1, allowed)


def unbind() -> None:
    """Use all cores that our parent may: a launcher that binds ranks to one each knows no better.

    An agent's workers are forked by a server that the agents of its machine share.
    """
    wider = os.sched_getaffinity(os.getppid())
    if wider > os.sched_getaffinity(0):
        os.sched_setaffinity(0, wider)


def free_bytes() -> int:
    """Return how much memory could still be used, of the machine and of our control group."""
    free = 1 << 40
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) << 10
    most, used = _words(CGROUP / "memory.max"), _words(CGROUP / "memory.current")
    if most and most[0].isdigit() and used:
        free = min(free, max(0, int(most[0]) - int(used[0])))
    return free


def allow_many_files() -> None:
    """Allow as many open files as the machine permits: each worker and each cell takes one."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
