"""A sweep's runs, each a process of its own: begun, resumed, waited for.

A run that is finished is left alone, one that was stopped goes on: the sweep can be killed and
started again at any time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from manege.config import stored, to_yaml
from manege.errors import EXIT_FAILED_CELL, EXIT_FINE, EXIT_STOPPED, ManegeError
from manege.files import below, make_folder, write_atomic
from manege.rundir import RunDir
from manege.sweep.plan import SweepRun

_POLL_S = 0.2


@dataclass(frozen=True)
class SweepProgress:
    """How far a sweep has come."""

    done: int
    total: int
    failed: tuple[str, ...]
    left_s: float | None
    """None before there is anything to judge by."""
    latest: str


@dataclass
class _Child:
    unit: SweepRun
    process: subprocess.Popen[bytes]
    log: IO[bytes]


def run_all(
    units: Sequence[SweepRun],
    out: Path,
    *,
    each_s: float,
    jobs: int,
    tell: Callable[[SweepProgress], None],
    stop: Callable[[], str | None],
) -> tuple[str, ...]:
    """Train each for a time a class, or on to it; KeyboardInterrupt when stopped.

    Returns the names of the runs that failed, once all have ended.
    """
    waiting = [unit for unit in units if not _ended(out, unit, each_s)]
    failed = [unit.name for unit in units if _state(out, unit) == "failed"]
    before = done = len(units) - len(waiting)
    running: list[_Child] = []
    started = time.monotonic()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_start(waiting.pop(0), out, each_s))
            time.sleep(_POLL_S)
            if stopped_by := stop():
                raise KeyboardInterrupt(stopped_by)
            for child in [one for one in running if one.process.poll() is not None]:
                running.remove(child)
                child.log.close()
                done += 1
                if not _fine(child):
                    failed.append(child.unit.name)
                pace = (time.monotonic() - started) / (done - before)
                left = pace * (len(units) - done)
                tell(SweepProgress(done, len(units), tuple(failed), left, child.unit.name))
    finally:
        # Whatever ends the sweep, its runs save and stop.
        for child in running:
            child.process.send_signal(signal.SIGTERM)
        for child in running:
            child.process.wait()
            child.log.close()
    return tuple(failed)


def run_folder(out: Path, unit: SweepRun) -> Path:
    """Where a run lies."""
    return out / "runs" / unit.name


def _state(out: Path, unit: SweepRun) -> str | None:
    """What has become of a run; None when it was never begun."""
    folder = run_folder(out, unit)
    if not (folder / "config.yaml").is_file():
        return None
    return str(RunDir.open(folder).status()["state"])


def trained_s(out: Path, unit: SweepRun) -> float:
    """The time that a run was given at last; 0 when it was never begun."""
    if _state(out, unit) is None:
        return 0.0
    return stored(run_folder(out, unit) / "config.yaml").budget_s or 0.0


def _ended(out: Path, unit: SweepRun, each_s: float) -> bool:
    state = _state(out, unit)
    if state == "finished":
        return trained_s(out, unit) >= unit.budget_s(each_s)
    return state == "failed"


def _start(unit: SweepRun, out: Path, each_s: float) -> _Child:
    folder = below(out, "runs", unit.name)
    # Not with_suffix: what a label has after a point is no suffix, and two may share the rest.
    log_file, config = (below(out, "logs", f"{unit.name}.{kind}") for kind in ("log", "yaml"))
    make_folder(log_file.parent)
    log = log_file.open("ab")
    command = [sys.executable, "-m", "manege"]
    if _state(out, unit) is None:
        write_atomic(config, to_yaml(unit.config).encode())
        make_folder(folder.parent)
        source = unit.config.data.source
        command += ["train", source, "--config", str(config), "--out", str(folder)]
    else:
        command += ["resume", str(folder)]
        if trained_s(out, unit) < unit.budget_s(each_s):
            command += ["--budget", f"{unit.budget_s(each_s)}s"]
    command += ["--runtime", "inline"]  # A run's time is that of one process.
    # A group of its own: Ctrl-C reaches the sweep alone, which then stops its runs.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return _Child(unit, process, log)


def _fine(child: _Child) -> bool:
    """Whether a run ended well; one that could not begin at all is an error of the sweep."""
    code = child.process.returncode
    if code in (EXIT_FINE, EXIT_FAILED_CELL):
        return code == EXIT_FINE
    log = Path(child.log.name)
    if code == EXIT_STOPPED:
        raise KeyboardInterrupt(child.unit.name)
    lines = log.read_text(errors="replace").strip().splitlines()
    error = ManegeError(f"{child.unit.name}: {lines[-1] if lines else 'no output'} (log: {log})")
    error.exit_code = code if code > 0 else EXIT_FAILED_CELL
    raise error
