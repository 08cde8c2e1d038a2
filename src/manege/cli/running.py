"""Where a run is carried out: on processes of its own, or in this one."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from manege.cli import job
from manege.errors import ConfigError

if TYPE_CHECKING:
    from manege.config import RunConfig
    from manege.progress import Bars, Lines
    from manege.runtime.orders import Outcome
    from manege.runtime.serving import Manner
    from manege.stopping import StopSignals

Workers = Annotated[
    str,
    typer.Option(
        help="Trainers at the same time, a process each: a number, or auto (as many as this "
        "machine has cores and memory for; under mpiexec one on every rank but the first)."
    ),
]


class Done(NamedTuple):
    """A run that has come to an end, or to a stop."""

    path: Path
    config: RunConfig
    outcome: Outcome


class Runtime(StrEnum):
    """Who computes."""

    LOCAL = "local"
    INLINE = "inline"
    MPI = "mpi"


Where = Annotated[
    Runtime | None,
    typer.Option(
        "--runtime",
        envvar="MANEGE_RUNTIME",
        help="local: trainers as processes, started again when they die; inline: all in this "
        "process; mpi: on the other ranks of the job, under mpiexec. The result is the same.",
        show_default="mpi under mpiexec, else local",
    ),
]


def start(config: RunConfig, out: Path | None, runtime: Runtime | None, workers: str) -> Done:
    """A new run, with progress on standard error."""
    command = shlex.join(["manege", *sys.argv[1:]])
    count = _count(workers)
    with _shown() as (watcher, stop):
        match _chosen(runtime):
            case Runtime.MPI:
                from manege.runtime import ranks

                manner = _manner(count, watcher, stop)
                world = job.world()
                return Done(
                    *ranks.start_run(world, config, out=out, command=command, manner=manner)
                )
            case Runtime.LOCAL:
                from manege.runtime import local

                manner = _manner(count, watcher, stop)
                return Done(*local.start_run(config, out=out, command=command, manner=manner))
        from manege import api

        done = api.start_run(
            config, out=out, watcher=watcher, say=watcher.say, stop=stop, command=command
        )
        return Done(done.path, done.config, done.outcome)


def go_on(
    path: Path, rounds: int | None, budget: str | None, runtime: Runtime | None, workers: str
) -> Done:
    """The same for a run that is there already."""
    count = _count(workers)
    with _shown() as (watcher, stop):
        match _chosen(runtime):
            case Runtime.MPI:
                from manege.runtime import ranks

                manner = _manner(count, watcher, stop)
                world = job.world()
                return Done(
                    *ranks.continue_run(world, path, rounds=rounds, budget_s=budget, manner=manner)
                )
            case Runtime.LOCAL:
                from manege.runtime import local

                manner = _manner(count, watcher, stop)
                return Done(
                    *local.continue_run(path, rounds=rounds, budget_s=budget, manner=manner)
                )
        from manege import api

        done = api.continue_run(
            path, rounds=rounds, budget_s=budget, watcher=watcher, say=watcher.say, stop=stop
        )
        return Done(done.path, done.config, done.outcome)


@contextmanager
def _shown() -> Iterator[tuple[Bars | Lines, StopSignals]]:
    """Progress on standard error, and signals noted, while inside."""
    from manege.progress import for_this_terminal
    from manege.stopping import StopSignals

    with StopSignals() as stop, for_this_terminal() as watcher:
        yield watcher, stop


def _manner(workers: int | None, watcher: Bars | Lines, stop: StopSignals) -> Manner:
    from manege.progress import counter
    from manege.runtime.serving import Manner

    return Manner(workers, watcher, watcher.say, counter("feature network: seen"), stop)


def _count(workers: str) -> int | None:
    if workers == "auto":
        return None
    if not (workers.isascii() and workers.isdigit() and int(workers) > 0):
        raise ConfigError(f"--workers {workers}: expected a number from 1, or auto")
    return int(workers)


def _chosen(runtime: Runtime | None) -> Runtime:
    """Elsewhere than on Linux there are no files without names to show centres in."""
    if runtime is Runtime.MPI or (runtime is None and job.is_joined()):
        return Runtime.MPI
    return Runtime.INLINE if runtime is Runtime.INLINE or sys.platform != "linux" else Runtime.LOCAL
