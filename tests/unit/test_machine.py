"""What the machine lets us have, also within a container."""

from __future__ import annotations

import os
import resource

import pytest

from manege import machine
from manege.runtime.transports.local import choose_workers


@pytest.fixture
def group(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    return tmp_path


def test_without_a_limit_all_cores_of_our_affinity_are_ours(group):
    assert machine.cores() == len(os.sched_getaffinity(0))
    (group / "cpu.max").write_text("max 100000\n")
    assert machine.cores() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("quota", "cores"), [("50000 100000", 1), ("100000 100000", 1)])
def test_a_containers_share_of_the_cores_counts(group, quota, cores):
    (group / "cpu.max").write_text(quota)
    assert machine.cores() == cores


def test_a_containers_memory_counts(group):
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("100\n")
    assert machine.free_bytes() > 1 << 20
    (group / "memory.max").write_text("1100\n")
    assert machine.free_bytes() == 1000
    (group / "memory.max").write_text("50\n")
    assert machine.free_bytes() == 0


def test_as_many_files_as_the_hard_limit_allows():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        machine.allow_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    ("cores", "free", "wanted"),
    [
        (4, 8 << 30, (3, "3 to train")),
        (2, 8 << 30, (2, "2 cores, 1 a trainer")),
        (4, 700 << 20, (2, "memory for 2, 300 MB each")),
        (4, 0, (1, "memory for 1, 300 MB each")),
    ],
)
def test_the_number_of_trainers_is_chosen_and_explained(monkeypatch, cores, free, wanted):
    monkeypatch.setattr(machine, "cores", lambda: cores)
    monkeypatch.setattr(machine, "free_bytes", lambda: free)
    assert choose_workers(3, 1, 300 << 20) == wanted
