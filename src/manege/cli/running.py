"""Where a run is carried out: on processes of its own, or in this one."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from manege.cli import job
from manege.errors import ConfigError

if TYPE_CHECKING:
    from manege.config import RunConfig
    from manege.runtime.orders import Outcome
    from manege.view.live import Careful

Workers = Annotated[
    str,
    typer.Option(
        help="Trainers at the same time, a process each: a number, or auto (as many as this "
        "machine has cores and memory for; under mpiexec one on every rank but the first)."
    ),
]


Stop = Callable[[], str | None]
"""What asked for the end, if anything did."""


TensorBoard = Annotated[
    bool,
    typer.Option(
        "--tensorboard",
        help="Also write scalars, sample sheets and the configuration to RUN/tensorboard.",
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


class How(NamedTuple):
    """Where a run is carried out, and who looks on."""

    runtime: Runtime | None
    workers: str
    tensorboard: bool


def start(
    config: RunConfig, out: Path | None, how: How, on_pixels: RunConfig | None = None
) -> Done:
    """A new run, with progress on standard error."""
    from manege.runtime.carrying import new_run

    command = shlex.join(["manege", *sys.argv[1:]])
    with _shown(how) as (watcher, stop):
        if _chosen(how.runtime) is not Runtime.INLINE:
            return _on_processes(new_run(config, out, command, on_pixels), how, watcher, stop)
        from manege import api

        done = api.start_run(
            config,
            out=out,
            watcher=watcher,
            say=watcher.say,
            stop=stop,
            command=command,
            screen=watcher,
            on_pixels=on_pixels,
        )
        return Done(done.path, done.config, done.outcome)


def go_on(path: Path, rounds: int | None, budget: str | None, how: How) -> Done:
    """The same for a run that is there already."""
    from manege.runtime.carrying import old_run

    with _shown(how) as (watcher, stop):
        if _chosen(how.runtime) is not Runtime.INLINE:
            request = old_run(path, rounds, budget, _most_trainers(how))
            return _on_processes(request, how, watcher, stop)
        from manege import api

        done = api.continue_run(
            path,
            rounds=rounds,
            budget_s=budget,
            watcher=watcher,
            say=watcher.say,
            stop=stop,
            screen=watcher,
        )
        return Done(done.path, done.config, done.outcome)


def _on_processes(request: dict[str, Any], how: How, watcher: Careful, stop: Stop) -> Done:
    from manege.progress import counter
    from manege.runtime.serving import DriveOptions

    show = counter("feature network: seen")
    manner = DriveOptions(worker_count(how.workers), watcher, watcher.say, show, stop, watcher)
    if _chosen(how.runtime) is Runtime.MPI:
        from manege.runtime import ranks

        return Done(*ranks.carried_out(job.world(), request, manner))
    from manege.runtime import local

    return Done(*local.carried_out(request, manner))


@contextmanager
def _shown(how: How) -> Iterator[tuple[Careful, Stop]]:
    """The run on standard error, and signals noted, while inside."""
    from manege.stopping import StopSignals
    from manege.view.live import for_this_terminal

    sinks = []
    if how.tensorboard:
        from manege.view.tensorboard import TensorBoardWriter, check_installed

        check_installed()
        sinks.append(TensorBoardWriter())
    with StopSignals() as signals, for_this_terminal(sinks) as watcher:
        yield watcher, lambda: signals() or watcher.asked_to_stop()


def worker_count(workers: str) -> int | None:
    """The number that --workers names; None for auto."""
    if workers == "auto":
        return None
    if not (workers.isascii() and workers.isdigit() and int(workers) > 0):
        raise ConfigError(f"--workers {workers}: expected a number from 1, or auto")
    return int(workers)


def _most_trainers(how: How) -> int:
    """Return how many trainers there can be at the same time."""
    from manege import machine

    most = job.world().size - 1 if _chosen(how.runtime) is Runtime.MPI else machine.cores()
    return worker_count(how.workers) or most


def _chosen(runtime: Runtime | None) -> Runtime:
    """Elsewhere than on Linux there are no files without names to show centres in."""
    if runtime is Runtime.MPI or (runtime is None and job.is_joined()):
        return Runtime.MPI
    return Runtime.INLINE if runtime is Runtime.INLINE or sys.platform != "linux" else Runtime.LOCAL
