"""Where a run is carried out: on processes of its own, or in this one."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from manege.errors import ConfigError

if TYPE_CHECKING:
    from manege.config import RunConfig
    from manege.runtime.local import Manner
    from manege.runtime.orders import Outcome
    from manege.view.live import Careful

Workers = Annotated[
    str,
    typer.Option(
        help="Trainers at the same time, a process each: a number, or auto (as many as this "
        "machine has cores and memory for)."
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


Where = Annotated[
    Runtime,
    typer.Option(
        "--runtime",
        envvar="MANEGE_RUNTIME",
        help="local: trainers as processes, started again when they die; inline: all in this "
        "process. The result is the same.",
    ),
]


def start(
    config: RunConfig, out: Path | None, runtime: Runtime, workers: str, *, tensorboard: bool
) -> Done:
    """A new run, with progress on standard error."""
    command = shlex.join(["manege", *sys.argv[1:]])
    count = _count(workers)
    with _shown(tensorboard=tensorboard) as (watcher, stop):
        if _is_local(runtime):
            from manege.runtime import local

            manner = _manner(count, watcher, stop)
            return Done(*local.start_run(config, out=out, command=command, manner=manner))
        from manege import api

        done = api.start_run(
            config,
            out=out,
            watcher=watcher,
            say=watcher.say,
            stop=stop,
            command=command,
            screen=watcher,
        )
        return Done(done.path, done.config, done.outcome)


def go_on(
    path: Path,
    rounds: int | None,
    budget: str | None,
    runtime: Runtime,
    workers: str,
    *,
    tensorboard: bool,
) -> Done:
    """The same for a run that is there already."""
    count = _count(workers)
    with _shown(tensorboard=tensorboard) as (watcher, stop):
        if _is_local(runtime):
            from manege.runtime import local

            manner = _manner(count, watcher, stop)
            return Done(*local.continue_run(path, rounds=rounds, budget_s=budget, manner=manner))
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


@contextmanager
def _shown(*, tensorboard: bool) -> Iterator[tuple[Careful, Stop]]:
    """The run on standard error, and signals noted, while inside."""
    from manege.stopping import StopSignals
    from manege.view.live import for_this_terminal

    sinks = []
    if tensorboard:
        from manege.view.tensorboard import Board, check_installed

        check_installed()
        sinks.append(Board())
    with StopSignals() as signals, for_this_terminal(sinks) as watcher:
        yield watcher, lambda: signals() or watcher.asked_to_stop()


def _manner(workers: int | None, watcher: Careful, stop: Stop) -> Manner:
    from manege.progress import counter
    from manege.runtime.local import Manner

    show = counter("feature network: seen")
    return Manner(workers, watcher, watcher.say, show, stop, watcher)


def _count(workers: str) -> int | None:
    if workers == "auto":
        return None
    if not (workers.isascii() and workers.isdigit() and int(workers) > 0):
        raise ConfigError(f"--workers {workers}: expected a number from 1, or auto")
    return int(workers)


def _is_local(runtime: Runtime) -> bool:
    """Elsewhere than on Linux there are no files without names to show centres in."""
    return runtime is Runtime.LOCAL and sys.platform == "linux"
