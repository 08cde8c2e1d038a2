"""`--launch mpiexec`: the options, and the command line that the ranks get."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from manege.launching import Job


class Launcher(StrEnum):
    """Who starts the ranks."""

    MPIEXEC = "mpiexec"


Launch = Annotated[
    Launcher | None,
    typer.Option("--launch", help="Start the ranks of an MPI job too, and look after them."),
]
Ranks = Annotated[
    int | None,
    typer.Option("-n", min=2, help="With --launch: ranks, the coordinator's included."),
]
Hosts = Annotated[
    str | None,
    typer.Option(help="With --launch: machines to start ranks on, as mpiexec's --host: a:2,b:2."),
]
Restarts = Annotated[
    int | None,
    typer.Option(
        min=0, help="With --launch: start a job that died again, so often, from its last commits."
    ),
]


def run(job: Job, path: Path, more: Sequence[str] = (), again: Sequence[str] | None = None) -> int:
    """Return the job's exit code, once it has come to its end.

    Args:
        job: what was asked for.
        path: the run directory.
        more: arguments besides those of this command.
        again: the arguments that go on with the run; None: those of this command.
    """
    from manege.launching import run as run_job
    from manege.stopping import StopSignals

    first = [*_without_launch(sys.argv[1:]), *more]
    with StopSignals() as stop:
        return run_job(job, path, first, first if again is None else again, stop)


def _without_launch(args: Sequence[str]) -> list[str]:
    """Return the arguments but those of this module."""
    ours, kept, skip = ("--launch", "-n", "--hosts", "--restarts"), [], False
    for one in args:
        if skip:
            skip = False
        elif one in ours:
            skip = True
        elif one.partition("=")[0] not in ours and not (one[:2] == "-n" and one[2:].isdecimal()):
            kept.append(one)
    return kept
