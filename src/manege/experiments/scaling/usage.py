"""Measure memory and computing time of a process and its descendants, from /proc."""

from __future__ import annotations

import os
import resource
from pathlib import Path

PROC = Path("/proc")
_UTIME, _STIME, _START = 11, 12, 19
"""Places in /proc/PID/stat, counted after the command's name."""


class Usage:
    """Memory and computing time of a process and its descendants, as seen so far."""

    def __init__(self, pid: int) -> None:
        """Begin with nothing seen: call `look` and `weigh` now and then."""
        self._pid = pid
        self._ticks: dict[tuple[int, int], int] = {}
        """Ticks of each process ever seen, by number and start."""
        self._before_s, self._machine_before_s = _reaped_s(), _machine_s()
        self.peak_bytes: int | None = None
        """The most memory of all of them at one moment; pages they share count once."""
        self.most_processes = 0

    def look(self) -> None:
        """Note which processes there are, and their computing time."""
        pids = family(self._pid)
        self.most_processes = max(self.most_processes, len(pids))
        for pid in pids:
            seen = _ticks(pid)
            if seen is not None:
                start, ticks = seen
                self._ticks[pid, start] = ticks

    def weigh(self) -> None:
        """Note their memory: the kernel goes through all pages, which takes milliseconds each."""
        found = [_proportional_bytes(pid) for pid in family(self._pid)]
        known = [pss for pss in found if pss is not None]
        if known:
            self.peak_bytes = max(self.peak_bytes or 0, sum(known))

    def cpu_s(self) -> float:
        """Return the computing time so far, at least.

        Looks miss what comes after the last of them, and the kernel's account of the dead misses
        those nobody waited for: the larger of the two is nearer the truth.
        """
        seen_s = sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")
        return max(seen_s, _reaped_s() - self._before_s)

    def others_s(self) -> float:
        """Return the computing time that other processes had meanwhile, at most."""
        return max(0.0, _machine_s() - self._machine_before_s - self.cpu_s())


def family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    found, look = [], [pid]
    while look:
        found += look
        look = [child for one in look for child in _children(one)]
    return found


def parse_pss(text: str) -> int | None:
    """Return bytes from /proc/PID/smaps_rollup; a page shared by n processes counts 1/n."""
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == "Pss:" and words[1].isdigit() and words[2] == "kB":
            return int(words[1]) << 10
    return None


def parse_ticks(text: str) -> tuple[int, int] | None:
    """Return when the process of /proc/PID/stat began, and its computing time, both in ticks."""
    # The name in parentheses may hold anything, also parentheses.
    fields = text.rpartition(")")[2].split()
    if len(fields) <= _START or not all(fields[at].isdigit() for at in (_UTIME, _STIME, _START)):
        return None
    return int(fields[_START]), int(fields[_UTIME]) + int(fields[_STIME])


def parse_busy(text: str) -> int:
    """Return ticks in which a machine was busy, from /proc/stat; time stolen by its host counts."""
    name, *ticks = next(iter(text.splitlines()), "cpu").split()
    assert name == "cpu", "the first line is that of all cores"
    # User, nice, system, then idle and waiting for disks, then interrupts and stolen time.
    return sum(int(one) for one in (*ticks[:3], *ticks[5:8]))


def _machine_s() -> float:
    return parse_busy(_read(PROC / "stat") or "cpu") / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in (PROC / str(pid) / "task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except OSError:
        pass  # It has ended.
    return found


def _proportional_bytes(pid: int) -> int | None:
    text = _read(PROC / str(pid) / "smaps_rollup")
    return None if text is None else parse_pss(text)


def _ticks(pid: int) -> tuple[int, int] | None:
    text = _read(PROC / str(pid) / "stat")
    return None if text is None else parse_ticks(text)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


def _reaped_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
