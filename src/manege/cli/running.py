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

if TYPE_CHECKING:
    from manege.api import Run
    from manege.config import RunConfig
    from manege.observer import Observer

Workers = Annotated[
    str,
    typer.Option(
        help="Trainers at the same time, a process each: a number, or auto (as many as this "
        "machine has cores and memory for; under mpiexec one on every rank but the first)."
    ),
]


TensorBoard = Annotated[
    bool,
    typer.Option(
        "--tensorboard",
        help="Also write scalars, sample sheets and the configuration to RUN/tensorboard.",
    ),
]


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


class RunOptions(NamedTuple):
    """Where a run is carried out, and who looks on."""

    runtime: Runtime | None
    workers: str
    tensorboard: bool


def start(
    config: RunConfig, out: Path | None, how: RunOptions, on_pixels: RunConfig | None = None
) -> Run:
    """Begin a run, with progress on standard error."""
    from manege import api, starting

    with _observed(how) as observer:
        return api.start_run(
            config,
            out=out,
            observer=observer,
            command=shlex.join(["manege", *sys.argv[1:]]),
            on_pixels=on_pixels,
            runtime=starting.chosen_runtime(how.runtime),
            workers=starting.worker_count(how.workers),
        )


def go_on(path: Path, rounds: int | None, budget: str | None, how: RunOptions) -> Run:
    """Go on with a run, with progress on standard error."""
    from manege import api, starting

    with _observed(how) as observer:
        return api.continue_run(
            path,
            rounds=rounds,
            budget_s=budget,
            observer=observer,
            runtime=starting.chosen_runtime(how.runtime),
            workers=starting.worker_count(how.workers),
        )


@contextmanager
def _observed(how: RunOptions) -> Iterator[Observer]:
    """Whoever sees the run on standard error, and signals noted, while inside."""
    from manege.observer import Observers
    from manege.stopping import StopSignals
    from manege.view.live import for_this_terminal

    more: list[Observer] = []
    if how.tensorboard:
        from manege import starting

        more.append(starting.tensorboard_writer())
    with StopSignals() as signals:
        observers = Observers(for_this_terminal(), signals, *more)
        try:
            yield observers
        finally:
            observers.close()
