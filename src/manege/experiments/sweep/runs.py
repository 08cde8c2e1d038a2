"""Train a sweep's runs, each in a process of its own: begin, resume and wait for them.

A run that is finished is left alone, one that was stopped goes on: the sweep can be killed and
started again at any time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from manege.config import stored, to_yaml
from manege.errors import EXIT_FAILED_CELL, EXIT_FINE, EXIT_STOPPED, ManegeError
from manege.experiments.children import Child, Children, ExperimentProgress
from manege.experiments.sweep.plan import SweepRun
from manege.files import below, make_folder, write_atomic
from manege.runs import RunDir


def run_all(
    units: Sequence[SweepRun],
    out: Path,
    *,
    each_s: float,
    jobs: int,
    tell: Callable[[ExperimentProgress], None],
    stop: Callable[[], str | None],
) -> tuple[str, ...]:
    """Train every run, or go on with it, for `each_s` a class; KeyboardInterrupt when stopped.

    Returns the names of the runs that failed, once all have ended.
    """
    waiting = [unit for unit in units if not _ended(out, unit, each_s)]
    failed = [unit.name for unit in units if _state(out, unit) == "failed"]
    before = done = len(units) - len(waiting)
    started = time.monotonic()
    units_of: dict[Child, SweepRun] = {}
    with Children(stop) as children:
        while waiting or children.running:
            while waiting and len(children.running) < jobs:
                unit = waiting.pop(0)
                units_of[_start(children, unit, out, each_s)] = unit
            for child in children.ended():
                done += 1
                name = units_of[child].name
                if not _fine(child, name):
                    failed.append(name)
                pace = (time.monotonic() - started) / (done - before)
                left = pace * (len(units) - done)
                tell(ExperimentProgress(done, len(units), left, name, tuple(failed)))
    return tuple(failed)


def run_folder(out: Path, unit: SweepRun) -> Path:
    """Return the folder of a run."""
    return out / "runs" / unit.name


def _state(out: Path, unit: SweepRun) -> str | None:
    """Return the state of a run; None when it was never begun."""
    folder = run_folder(out, unit)
    if not (folder / "config.yaml").is_file():
        return None
    return str(RunDir.open(folder).status()["state"])


def trained_s(out: Path, unit: SweepRun) -> float:
    """Return the time that a run was last given; 0 when it was never begun."""
    if _state(out, unit) is None:
        return 0.0
    return stored(run_folder(out, unit) / "config.yaml").budget_s or 0.0


def _ended(out: Path, unit: SweepRun, each_s: float) -> bool:
    state = _state(out, unit)
    if state == "finished":
        return trained_s(out, unit) >= unit.budget_s(each_s)
    return state == "failed"


def _start(children: Children, unit: SweepRun, out: Path, each_s: float) -> Child:
    folder = below(out, "runs", unit.name)
    # Not with_suffix: what a label has after a point is no suffix, and two may share the rest.
    log, config = (below(out, "logs", f"{unit.name}.{kind}") for kind in ("log", "yaml"))
    make_folder(log.parent)
    if _state(out, unit) is None:
        write_atomic(config, to_yaml(unit.config).encode())
        make_folder(folder.parent)
        source = unit.config.data.source
        arguments = ["train", source, "--config", str(config), "--out", str(folder)]
    else:
        arguments = ["resume", str(folder)]
        if trained_s(out, unit) < unit.budget_s(each_s):
            arguments += ["--budget", f"{unit.budget_s(each_s)}s"]
    # A run's time is that of one process.
    return children.start([*arguments, "--runtime", "inline"], log)


def _fine(child: Child, name: str) -> bool:
    """Return whether a run ended well; raise an error of the sweep if it could not begin at all."""
    code = child.process.returncode
    if code in (EXIT_FINE, EXIT_FAILED_CELL):
        return bool(code == EXIT_FINE)
    if code == EXIT_STOPPED:
        raise KeyboardInterrupt(name)
    error = ManegeError(f"{name}: {child.last_line()} (log: {child.log})")
    error.exit_code = code if code > 0 else EXIT_FAILED_CELL
    raise error
