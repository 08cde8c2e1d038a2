"""`--launch mpiexec`: starts the ranks, passes a stop on to them, starts a job that died again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from manege import plugins
from manege.errors import (
    EXIT_FAILED_CELL,
    EXIT_FINE,
    EXIT_INPUT,
    EXIT_MACHINE,
    EXIT_STOPPED,
    ConfigError,
    MachineError,
)

if TYPE_CHECKING:
    from manege.config import RunConfig
    from manege.stopping import StopSignals

_OWN_WORDS = (EXIT_FINE, EXIT_INPUT, EXIT_MACHINE, EXIT_FAILED_CELL, EXIT_STOPPED)
"""Exit codes of a command that came to its end; any other is a death."""
_LOOK_S = 0.2


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


class Job(NamedTuple):
    """What the options say."""

    launch: Launcher | None
    ranks: int | None
    hosts: str | None
    restarts: int | None

    def check(self) -> None:
        """Refuse options that would do nothing."""
        others = {"-n": self.ranks, "--hosts": self.hosts, "--restarts": self.restarts}
        given = [name for name, value in others.items() if value is not None]
        if self.launch is None and given:
            raise ConfigError(f"{given[0]}: only with --launch mpiexec")
        if self.launch is not None and self.ranks is None:
            raise ConfigError("--launch mpiexec: say -n, how many ranks; at least 2")


@contextmanager
def directory(config: RunConfig, out: Path | None) -> Iterator[Path]:
    """The run directory, known before the ranks make a run of it; an empty one does not stay."""
    from manege.runs import RunDir

    if out is not None:
        yield out
        return
    data, method = Path(plugins.short(config.data.source)).stem, plugins.short(config.method)
    path = RunDir.reserve(f"{data}-{method}")
    try:
        yield path
    finally:
        with suppress(OSError):
            path.rmdir()


def run(job: Job, path: Path, more: Sequence[str] = (), again: Sequence[str] | None = None) -> int:
    """The job's exit code, once it has come to its end.

    Args:
        job: what was asked for.
        path: the run directory.
        more: arguments besides those of this command.
        again: the arguments that go on with the run; None: those of this command.
    """
    from manege.stopping import StopSignals

    head, stop_by = _head(job)
    first = [*_without_launch(sys.argv[1:]), *more]
    left = job.restarts or 0
    with StopSignals() as stop:
        while True:
            begun = (path / "config.yaml").exists()
            args = first if again is None or not begun else [*again]
            code = _carried_out([*head, *args, "--runtime", "mpi"], stop, stop_by)
            if code in _OWN_WORDS:
                return code
            if stop() is not None:
                if not (path / "config.yaml").exists():
                    raise KeyboardInterrupt  # Before ranks could listen to it.
                sys.stderr.write(f"stopped; go on with: manege resume {path}\n")
                return EXIT_STOPPED
            if not left:
                raise MachineError(
                    f"the job died (exit code {code}); go on with: manege resume {path}"
                )
            left -= 1
            sys.stderr.write(f"the job died (exit code {code}); started again, {left} times left\n")


def _carried_out(command: Sequence[str], stop: StopSignals, stop_by: signal.Signals) -> int:
    """One job's exit code; a stop is passed on to it as the signal that its ranks get."""
    # In a group of its own, which the terminal's Ctrl-C does not reach.
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0) as process:
        told = False
        try:
            while True:
                try:
                    return process.wait(_LOOK_S)
                except subprocess.TimeoutExpired:
                    if not told and stop() is not None:
                        told = True
                        process.send_signal(stop_by)
        except BaseException:
            process.terminate()
            raise


def _head(job: Job) -> tuple[list[str], signal.Signals]:
    """The command line up to manege's own arguments, with a word on what is added; how to stop it.

    Open MPI's mpiexec kills ranks within a second of SIGTERM and hands on SIGUSR2; MPICH's dies of
    SIGUSR2 and hands on SIGTERM.
    """
    mpiexec = shutil.which(
        "mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    )
    if mpiexec is None:
        raise MachineError("there is no mpiexec; pip install 'manege[mpi]' brings one")
    assert job.ranks is not None
    added, stop_by = [], signal.SIGTERM
    if _is_open_mpi(mpiexec):
        stop_by = signal.SIGUSR2
        from manege import machine

        if os.geteuid() == 0:
            added.append(("--allow-run-as-root", "this is root"))
        if _is_allotted(job.ranks):
            added.append(("--bind-to=none", "Slurm has chosen the cores"))
        elif job.hosts is None and job.ranks > machine.cores():
            added.append(("--oversubscribe", f"{job.ranks} ranks on {machine.cores()} cores"))
        added.append(("--with-ft=ulfm", "a lost rank's cells go to the others"))
    for option, why in added:
        sys.stderr.write(f"mpiexec {option.replace('=', ' ')} ({why})\n")
    options = [part for option, _ in added for part in option.split("=")]
    hosts = [] if job.hosts is None else ["--host", job.hosts]
    own = [sys.executable, "-m", "manege"]
    return [mpiexec, *options, *hosts, "-n", str(job.ranks), *own], stop_by


def _is_allotted(ranks: int) -> bool:
    """Whether Slurm has given us a place for each of them, on this machine or more."""
    tasks = os.environ.get("SLURM_NTASKS", "")
    return tasks.isdecimal() and int(tasks) >= ranks


def _is_open_mpi(mpiexec: str) -> bool:
    told = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False)
    return "Open MPI" in told.stdout or "OpenRTE" in told.stdout or "prte" in told.stdout.lower()


def _without_launch(args: Sequence[str]) -> list[str]:
    """The arguments but those of this module."""
    ours, kept, skip = ("--launch", "-n", "--hosts", "--restarts"), [], False
    for one in args:
        if skip:
            skip = False
        elif one in ours:
            skip = True
        elif one.partition("=")[0] not in ours and not (one[:2] == "-n" and one[2:].isdecimal()):
            kept.append(one)
    return kept
