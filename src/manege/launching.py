"""Jobs of MPI ranks: start them under mpiexec, pass a stop on, start a job that died again.

Knows command lines and exit codes. What ranks do is theirs: each runs the command of its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, NamedTuple

from manege import plugins, progress
from manege.config import RunConfig
from manege.errors import (
    EXIT_FAILED_CELL,
    EXIT_FINE,
    EXIT_INPUT,
    EXIT_MACHINE,
    EXIT_STOPPED,
    ConfigError,
    MachineError,
    ManegeError,
    field,
)
from manege.observer import Observer
from manege.report.events import Tail
from manege.runs import RunDir

_OWN_WORDS = (EXIT_FINE, EXIT_INPUT, EXIT_MACHINE, EXIT_FAILED_CELL, EXIT_STOPPED)
"""Exit codes of a command that came to its end; any other is a death."""
_LOOK_S = 0.2
LAUNCHERS = ("mpiexec",)


class Job(NamedTuple):
    """What was asked for."""

    launch: str | None
    """Who starts the ranks."""
    ranks: int | None
    """How many, the coordinator's included."""
    hosts: str | None
    """Machines to start them on, as mpiexec's option has them."""
    restarts: int | None
    """How often a job that died is started again."""

    def check(self) -> None:
        """Raise ConfigError for what would do nothing, or is missing."""
        if self.launch is None:
            for name in ("ranks", "hosts", "restarts"):
                if getattr(self, name) is not None:
                    raise ConfigError(f"{field(name)}: only with {field('launch')} mpiexec")
            return
        if self.launch not in LAUNCHERS:
            raise ConfigError(f"{field('launch')} {self.launch!r:.80}: expected mpiexec")
        if self.ranks is None:
            raise ConfigError(
                f"{field('launch')} mpiexec: say {field('ranks')}, how many ranks; at least 2"
            )
        if not isinstance(self.ranks, int) or self.ranks < 2:
            raise ConfigError(f"{field('ranks')} {self.ranks!r:.80}: expected a number from 2")


@contextmanager
def directory(config: RunConfig, out: Path | None) -> Iterator[Path]:
    """Give the run directory before the ranks make a run of it; an empty one does not stay."""
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


class JobObserver:
    """Follows a job by the files of its run and the words of its ranks, for observers here."""

    def __init__(self, path: Path, observer: Observer, say: Callable[[str], None] | None) -> None:
        """Begin before the job does; `say` is told what ranks write for people, if anybody is."""
        self._path = path
        self._observer = observer
        self._say = say
        self._events = Tail(path / "events.jsonl")
        # What a run that goes on has in it already is known.
        self._opened = (path / "config.yaml").is_file()
        if self._opened:
            list(self._events.read())
            observer.opened(path)
        self.words: IO[bytes] = TemporaryFile()  # noqa: SIM115
        """Where the ranks' standard error goes."""
        self._read = 0
        self._last = ""

    def look(self) -> None:
        """Tell what is new."""
        if not self._opened and (self._path / "config.yaml").is_file():
            self._opened = True
            self._observer.opened(self._path)
        for event in self._events.read():
            self._observer.event(event)
        for line in self._lines():
            self._last = line
            if self._say is not None:
                self._say(line)

    def error(self, code: int) -> ManegeError:
        """Return the error that the job ended with."""
        kind = MachineError if code == EXIT_MACHINE else ConfigError
        return kind(self._last.removeprefix("manege: ") or f"the job ended with exit code {code}")

    def close(self) -> None:
        """Forget the words."""
        self.words.close()

    def _lines(self) -> list[str]:
        # The ranks write where the file ends, by their own descriptor of it.
        read = os.pread(self.words.fileno(), 1 << 20, self._read)
        whole = read.rpartition(b"\n")[0]
        if not whole:
            return []
        self._read += len(whole) + 1
        return whole.decode(errors="replace").splitlines()


def run(
    job: Job,
    path: Path,
    first: Sequence[str],
    again: Sequence[str],
    stop: Callable[[], str | None],
    *,
    say: Callable[[str], None] = progress.tell,
    following: JobObserver | None = None,
) -> int:
    """Start a job's ranks, and again if it dies; return its exit code once it has ended.

    Args:
        job: what was asked for.
        path: the run directory.
        first: the arguments of the ranks' command.
        again: the arguments that go on with a run that has begun.
        stop: why to stop, or None.
        say: told about the job.
        following: sees what the ranks do; what they write goes to standard error when None.
    """
    head, stop_by = _head(job, say)
    left = job.restarts or 0
    while True:
        begun = (path / "config.yaml").exists()
        args = again if begun else first
        code = _carried_out([*head, *args, "--runtime", "mpi"], stop, stop_by, following)
        if code in _OWN_WORDS:
            return code
        if stop() is not None:
            if not (path / "config.yaml").exists():
                raise KeyboardInterrupt  # Before ranks could listen to it.
            say(f"stopped; go on with: manege resume {path}")
            return EXIT_STOPPED
        if not left:
            raise MachineError(f"the job died (exit code {code}); go on with: manege resume {path}")
        left -= 1
        say(f"the job died (exit code {code}); started again, {left} times left")


def _carried_out(
    command: Sequence[str],
    stop: Callable[[], str | None],
    stop_by: signal.Signals,
    following: JobObserver | None,
) -> int:
    """Return one job's exit code; a stop is passed on to it as the signal that its ranks get."""
    # In a group of its own, which the terminal's Ctrl-C does not reach.
    out = None if following is None else subprocess.DEVNULL
    words = None if following is None else following.words
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=words,
        process_group=0,
        env=plugins.environment(),
    ) as process:
        told = False
        try:
            while True:
                try:
                    return process.wait(_LOOK_S)
                except subprocess.TimeoutExpired:
                    if not told and stop() is not None:
                        told = True
                        process.send_signal(stop_by)
                finally:
                    if following is not None:
                        following.look()
        except BaseException:
            process.terminate()
            raise


def _head(job: Job, say: Callable[[str], None]) -> tuple[list[str], signal.Signals]:
    """Return the command line up to manege's own arguments, and the signal that stops it.

    What is added to it is said.

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
        say(f"mpiexec {option.replace('=', ' ')} ({why})")
    options = [part for option, _ in added for part in option.split("=")]
    hosts = [] if job.hosts is None else ["--host", job.hosts]
    own = [sys.executable, "-m", "manege"]
    return [mpiexec, *options, *hosts, "-n", str(job.ranks), *own], stop_by


def _is_allotted(ranks: int) -> bool:
    """Return whether Slurm has given us a place for each of them, on this machine or more."""
    tasks = os.environ.get("SLURM_NTASKS", "")
    return tasks.isdecimal() and int(tasks) >= ranks


def _is_open_mpi(mpiexec: str) -> bool:
    """Return whether this launcher is Open MPI's."""
    told = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False)
    return "Open MPI" in told.stdout or "OpenRTE" in told.stdout or "prte" in told.stdout.lower()
