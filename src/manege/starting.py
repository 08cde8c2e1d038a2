"""Who trains a run and who sees it: this process, workers of this machine, or ranks of a job.

Chooses, puts together and cleans up for the verbs of `api`; decides nothing of a run itself.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from manege import job, machine, progress
from manege.config import RunConfig
from manege.config import shown as as_shown
from manege.errors import EXIT_FAILED_CELL, EXIT_FINE, EXIT_STOPPED, ConfigError, field
from manege.files import blaming, make_folder, write_atomic
from manege.launching import Job, JobObserver, directory
from manege.launching import run as launch_job
from manege.observer import EventCallback, Observer, Observers
from manege.runtime.coordinator import Outcome
from manege.runtime.driver import drive
from manege.runtime.launch import rank_info
from manege.runtime.messages import NewRun, OldRun, Prepared
from manege.stopping import StopSignals
from manege.view.live import for_this_caller
from manege.view.notebook import in_notebook

CTRL_C = (signal.SIGINT,)
"""The signals that a function handles while it trains: all others stay with the program."""
RUNTIMES = ("local", "inline", "mpi")


def carried(
    request: NewRun | OldRun, observers: Observers, runtime: str, workers: int | None
) -> tuple[Prepared, Outcome]:
    """Carry a run from the request to its outcome, by the runtime of that name."""
    if runtime == "mpi":
        from manege.runtime.transports import ranks

        return ranks.run(job.world(), request, observers, workers)
    if runtime == "local":
        from manege.runtime.transports import local

        return local.run(request, observers, workers)
    from manege.runtime.transports.inline import Inline

    with Inline(observers) as transport:
        return drive(request, transport, observers)


def most_workers(runtime: str) -> int:
    """Return how many workers there can be at the same time."""
    return job.world().size - 1 if runtime == "mpi" else machine.cores()


@contextmanager
def observed(
    on_event: Callable[[dict[str, Any]], object] | None,
    observers: Iterable[Observer],
    *,
    tensorboard: bool = False,
    shown: bool = True,
) -> Iterator[Observers]:
    """Have the run shown, its caller's observers told, and Ctrl-C noted, while inside.

    Without `shown` only a notebook shows it: elsewhere the ranks' own lines are passed on.
    """
    more = list(observers)
    for one in more:
        if not isinstance(one, Observer):
            raise ConfigError(f"observers: found {as_shown(one)}, expected manege.Observer's")
    if on_event is not None:
        if not callable(on_event):
            raise ConfigError(
                f"on_event: found {as_shown(on_event)}, expected a function of an event"
            )
        more.append(EventCallback(on_event))
    if tensorboard:
        more.append(tensorboard_writer())
    with StopSignals(CTRL_C) as stop:
        display = [for_this_caller()] if shown or in_notebook() else []
        all_of_them = Observers(*display, stop, *more)
        try:
            yield all_of_them
        finally:
            all_of_them.close()


def launched_new(
    asked: Job,
    config: RunConfig,
    given: str,
    out: Path | None,
    workers: int | str,
    observer: Observers,
    *,
    tensorboard: bool,
) -> Path:
    """Have a job's ranks begin a run with the settings given, as YAML; return its directory."""
    more = _options(workers, tensorboard=tensorboard)
    with directory(config, out) as path:
        file = path.with_name(f".{path.name}.given.yaml")
        with blaming(file):
            make_folder(file.parent)
        write_atomic(file, given.encode())
        try:
            command = ["train", config.data.source, "--config", str(file), "--out", str(path)]
            _launched(asked, path, [*command, *more], ["resume", str(path), *more], observer)
        finally:
            file.unlink(missing_ok=True)
    return path


def launched_again(
    asked: Job,
    path: Path,
    rounds: int | None,
    budget: float | str | None,
    workers: int | str,
    observer: Observers,
    *,
    tensorboard: bool,
) -> None:
    """Have a job's ranks go on with a run."""
    command = ["resume", str(path), *_options(workers, tensorboard=tensorboard)]
    command += [] if rounds is None else ["--rounds", str(rounds)]
    command += [] if budget is None else ["--budget", str(budget)]
    _launched(asked, path, command, command, observer)


def _options(workers: int | str, *, tensorboard: bool) -> list[str]:
    count = worker_count(workers)
    named = ["--workers", "auto" if count is None else str(count)]
    return [*named, "--tensorboard"] if tensorboard else named


def _launched(
    asked: Job, path: Path, first: list[str], again: list[str], observer: Observers
) -> None:
    """Have a job's ranks train, and follow their files for the observers here."""
    following = JobObserver(path, observer, None if in_notebook() else progress.tell)
    with closing(following):
        code = launch_job(asked, path, first, again, observer.should_stop, following=following)
        if code not in (EXIT_FINE, EXIT_FAILED_CELL, EXIT_STOPPED):
            raise following.error(code)


def tensorboard_writer() -> Observer:
    """Return an observer that writes for TensorBoard; raise MachineError without the extra."""
    from manege.view.tensorboard import TensorBoardWriter, check_installed

    check_installed()
    return TensorBoardWriter()


def worker_count(workers: int | str) -> int | None:
    """Return the number of workers that was asked for; None for auto."""
    if workers == "auto":
        return None
    if isinstance(workers, str) and workers.isascii() and workers.isdigit():
        workers = int(workers)
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        told = workers if isinstance(workers, int | str) else f"found {as_shown(workers)}"
        raise ConfigError(f"{field('workers')} {told}: expected a number from 1, or auto")
    return workers


def chosen_runtime(runtime: str | None) -> str:
    """Return the runtime that was asked for, or the one that suits this process."""
    if runtime is not None and runtime not in RUNTIMES:
        raise ConfigError(
            f"{field('runtime')}: found {as_shown(runtime)}, expected one of {', '.join(RUNTIMES)}"
        )
    if job.is_joined() and runtime in (None, "mpi"):
        return "mpi"
    if runtime == "mpi" or (runtime is None and rank_info(os.environ) is not None):
        raise ConfigError(
            f"{field('runtime')}: this program is no rank of a job of manege's; start it without "
            "mpiexec, and give launch='mpiexec' and ranks"
        )
    # Elsewhere than on Linux there are no files without names to show centres in.
    return "inline" if runtime == "inline" or sys.platform != "linux" else "local"
