"""The communicator's contract, over channels of one machine and over MPI, by two libraries."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from tests.helpers.libraries import Library, library

CORRESPONDENTS = (sys.executable, "-m", "tests.helpers.correspondents")


def test_over_a_channel():
    ends = socket.socketpair()
    both = [
        subprocess.Popen(
            [*CORRESPONDENTS, "channel", str(end.fileno()), str(n)], pass_fds=[end.fileno()]
        )
        for n, end in enumerate(ends)
    ]
    for end in ends:
        end.close()
    assert [one.wait(120) for one in both] == [0, 0]


@pytest.mark.parametrize("name", ["openmpi", pytest.param("mpich", marks=pytest.mark.full)])
def test_over_mpi(name):
    done = _ranks(library(name), "exchange")
    assert done.returncode == 0, done.stderr


@pytest.mark.full
@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_what_is_larger_than_expected_is_refused(name):
    done = _ranks(library(name), "unexpected")
    assert done.returncode == 1
    assert "rank 0 sends 20971524 bytes, expected 20971520 at most; are all ranks" in done.stderr


def _ranks(chosen: Library, what: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [chosen.mpiexec, *chosen.options, "-n", "2", *CORRESPONDENTS, "mpi", what],
        env={**os.environ, **chosen.env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
