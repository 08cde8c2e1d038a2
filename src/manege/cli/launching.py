"""`--launch mpiexec`: starts the ranks, passes a stop on to them, starts a job that died again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

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


def run(job: Job, *, again: Sequence[str] | None, path: Path | None) -> int:
    """The job's exit code, once it has come to its end.

    Args:
        job: what was asked for.
        again: the arguments that go on with the run; None: those of this command.
        path: the run directory, where that is known.
    """
    from manege.stopping import StopSignals

    if job.restarts and path is None:
        raise ConfigError("--restarts: say --out too, so that it is known what to go on with")
    head, first = _head(job), _without_launch(sys.argv[1:])
    left = job.restarts or 0
    with StopSignals() as stop:
        while True:
            begun = path is not None and (path / "config.yaml").exists()
            args = first if again is None or not begun else [*again]
            code = _carried_out([*head, *args, "--runtime", "mpi"], stop)
            if code in _OWN_WORDS:
                return code
            if stop() is not None:
                if not begun and (path is None or not (path / "config.yaml").exists()):
                    raise KeyboardInterrupt  # Before ranks could listen to it.
                sys.stderr.write(f"stopped; go on with: manege resume {path}\n")
                return EXIT_STOPPED
            if not left:
                where = "" if path is None else f" {path}"
                raise MachineError(
                    f"the job died (exit code {code}); go on with: manege resume{where}"
                )
            left -= 1
            sys.stderr.write(f"the job died (exit code {code}); started again, {left} times left\n")


def _carried_out(command: Sequence[str], stop: StopSignals) -> int:
    """One job; mpiexec would kill its ranks at SIGTERM or SIGINT before they could commit."""
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
                        process.send_signal(signal.SIGUSR2)
        except BaseException:
            process.terminate()
            raise


def _head(job: Job) -> list[str]:
    """The command line up to manege's own arguments, with a word on what is added."""
    mpiexec = shutil.which(
        "mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    )
    if mpiexec is None:
        raise MachineError("there is no mpiexec; pip install 'manege[mpi]' brings one")
    assert job.ranks is not None
    added = []
    if _is_open_mpi(mpiexec):
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
    return [mpiexec, *options, *hosts, "-n", str(job.ranks), *own]


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
        elif one.partition("=")[0] not in ours:
            kept.append(one)
    return kept
