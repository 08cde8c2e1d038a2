"""The MPI libraries at hand: Open MPI beside Python, MPICH in a folder of its own (make setup)."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest


class Library(NamedTuple):
    """An MPI and how ranks are started with it."""

    mpiexec: str
    options: tuple[str, ...]
    env: dict[str, str]
    stop_signal: str
    """What its mpiexec hands on."""


def library(name: str) -> Library:
    """The library of that name; skips the test where it is not installed."""
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed: pip install 'manege[mpi]'")
    if name == "mpich":
        # Both bring a bin/mpiexec, so they cannot share a folder.
        home = Path(os.environ.get("MANEGE_MPICH", Path(sys.prefix) / "mpich"))
        if not (home / "bin" / "mpiexec").exists():
            pytest.skip("MPICH is not installed: make setup, or MANEGE_MPICH=its folder")
        env = {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": str(home / "lib")}
        return Library(str(home / "bin" / "mpiexec"), (), env, "SIGTERM")
    mpiexec = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if mpiexec is None:
        pytest.skip("there is no mpiexec on the PATH")
    root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
    return Library(mpiexec, (*root, "--oversubscribe"), {}, "SIGUSR2")
