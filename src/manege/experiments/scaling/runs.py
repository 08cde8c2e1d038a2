"""Measure runs: one command after the other, watched from outside, each kept once it is whole.

A run that was broken off is begun again: a time in two parts is no time.
"""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from manege.config import RunConfig, stored, to_yaml
from manege.errors import (
    EXIT_FAILED_CELL,
    EXIT_FINE,
    EXIT_STOPPED,
    CheckpointError,
    MachineError,
    ManegeError,
)
from manege.experiments.children import Child, Children, ExperimentProgress
from manege.experiments.scaling import traffic
from manege.experiments.scaling.plan import WARM_UP, MeasuredUnit
from manege.experiments.scaling.reading import read_times
from manege.experiments.scaling.traffic import Traffic
from manege.experiments.scaling.usage import Usage
from manege.files import make_folder, read_capped, write_atomic
from manege.runs import RunDir
from manege.runtime.slots import Lengths, lengths_of

_SPARING = 20
"""The pause before memory is read again, in multiples of the time that it took."""
_PATIENCE_S = 60.0
"""Seconds that a run has to end after it was told to stop."""
_CAP_BYTES = 1 << 22


@dataclass(frozen=True)
class MeasuredRun:
    """One run, measured from inside by its events and from outside by its processes."""

    name: str
    kind: str
    shape: str
    cells: int
    workers: int
    repeat: int
    wall_s: float
    """Seconds of the whole command, its start and its end included."""
    span_s: float
    slowest_s: float
    training_cpu_s: float
    cpu_s: float
    """CPU seconds of all processes of the command."""
    others_cores: float
    """Cores that other processes kept busy, on average."""
    peak_bytes: int | None
    processes: int
    routines: dict[str, float]
    deaths: int
    moves: int
    centre: list[list[Any]] | None
    """Types and lengths of a cell's centre; known only for a grid's warm-up."""

    @property
    def utilisation(self) -> float:
        """The part of the workers' time in which their cells computed."""
        return self.training_cpu_s / (self.span_s * self.workers)

    @property
    def cores(self) -> float:
        """Cores kept busy on average, start and end included."""
        return self.cpu_s / self.wall_s


def measure_all(
    units: Sequence[MeasuredUnit],
    out: Path,
    *,
    runtime: str,
    tell: Callable[[ExperimentProgress], None],
    stop: Callable[[], str | None],
) -> tuple[list[MeasuredRun], list[Traffic]]:
    """Return all runs but the warm-up, and grids' traffic; KeyboardInterrupt when stopped.

    What a folder holds already is not measured again.
    """
    found = {unit.name: kept for unit in units if (kept := _kept(out, unit.name)) is not None}
    cost, took_s = 0.0, 0.0
    for unit in units:
        if unit.name in found:
            continue
        began = time.monotonic()
        found[unit.name] = _measure(unit, out, runtime, stop)
        write_atomic(_place(out, unit.name), _spelled(asdict(found[unit.name])))
        if unit.kind != WARM_UP:
            cost, took_s = cost + unit.cost, took_s + time.monotonic() - began
        left = sum(one.cost for one in units if one.name not in found)
        left_s = took_s / cost * left if cost else None
        tell(ExperimentProgress(len(found), len(units), left_s, unit.name))
    warm_up = next(found[unit.name] for unit in units if unit.kind == WARM_UP)
    others = [found[unit.name] for unit in units if unit.kind != WARM_UP]
    return others, _traffic(warm_up, out, stop)


def _traffic(warm_up: MeasuredRun, out: Path, stop: Callable[[], str | None]) -> list[Traffic]:
    """Measure the traffic of a grid's centres, grid by grid; the largest come last."""
    if warm_up.centre is None:
        return []
    path = _place(out, "traffic")
    if path.exists():
        return [Traffic(**one) for one in _read(path)["grids"]]
    own: Lengths = tuple((str(kind), int(length)) for kind, length in warm_up.centre)
    centre = traffic.shortened(own, max(rows * columns for rows, columns in traffic.GRIDS))
    found = []
    for grid in traffic.GRIDS:
        if stopped_by := stop():
            raise KeyboardInterrupt(stopped_by)
        found.append(traffic.measure_traffic(centre, grid))
    write_atomic(path, _spelled({"grids": [asdict(one) for one in found]}))
    return found


def _measure(
    unit: MeasuredUnit, out: Path, runtime: str, stop: Callable[[], str | None]
) -> MeasuredRun:
    run, log = out / "runs" / unit.name, out / "logs" / f"{unit.name}.log"
    for folder in (run.parent, log.parent, _place(out, unit.name).parent):
        make_folder(folder)
    shutil.rmtree(run, ignore_errors=True)
    config = log.with_suffix(".yaml")
    write_atomic(config, to_yaml(unit.config).encode())
    log.unlink(missing_ok=True)
    child, wall_s, usage = _carried_out(_arguments(unit, config, run, runtime), log, stop)
    if child.process.returncode != EXIT_FINE:
        raise _failure(unit, child)
    times = read_times(run, unit.cells)
    found = MeasuredRun(
        name=unit.name,
        kind=unit.kind,
        shape=unit.shape,
        cells=unit.cells,
        workers=unit.workers,
        repeat=unit.repeat,
        wall_s=wall_s,
        cpu_s=usage.cpu_s(),
        others_cores=usage.others_s() / wall_s,
        peak_bytes=usage.peak_bytes,
        processes=usage.most_processes,
        centre=_centre(run, unit.config) if unit.kind == WARM_UP else None,
        **asdict(times),
    )
    shutil.rmtree(run)
    return found


def _arguments(unit: MeasuredUnit, config: Path, run: Path, runtime: str) -> list[str]:
    own = ["train", unit.config.data.source]
    own += ["--config", str(config), "--out", str(run), "--workers", str(unit.workers)]
    if runtime == "mpi":
        return [*own, "--launch", "mpiexec", "-n", str(unit.workers + 1)]
    return [*own, "--runtime", runtime]


def _carried_out(
    arguments: Sequence[str], log: Path, stop: Callable[[], str | None]
) -> tuple[Child, float, Usage]:
    """Run a command; return it once it has ended, its seconds, and what its processes used."""
    with Children(stop, _PATIENCE_S) as children:
        began = time.monotonic()
        child = children.start(arguments, log)
        usage = Usage(child.process.pid)
        weigh_at = 0.0
        while not children.ended():
            usage.look()
            if (now := time.monotonic()) >= weigh_at:
                usage.weigh()
                weigh_at = now + _SPARING * (time.monotonic() - now)
        return child, time.monotonic() - began, usage


def _failure(unit: MeasuredUnit, child: Child) -> BaseException:
    """Return an error that says why a run ended badly, with its own last words."""
    code, log = child.process.returncode, child.log
    if code == EXIT_STOPPED:
        return KeyboardInterrupt(unit.name)
    if code < 0:
        return MachineError(f"{unit.name}: killed by {signal.Signals(-code).name} (log: {log})")
    last = child.last_line().removeprefix("manege: ")
    error = ManegeError(f"{unit.name}: {last} (log: {log})")
    error.exit_code = code or EXIT_FAILED_CELL
    return error


def _centre(run: Path, config: RunConfig) -> list[list[Any]] | None:
    """Return types and lengths of a grid cell's centre, from the last commit of one cell."""
    if config.cellular is None:
        return None
    rundir = RunDir.open(run)
    # The run's own configuration: the data have decided some of it.
    identity = stored(run / "config.yaml").identity()
    found = rundir.load(rundir.cells()[0], identity=identity)
    assert found is not None, "a run that is finished has commits"
    names = ("generator 0", "discriminator 0", "centre moments")
    return [list(one) for one in lengths_of([found.tensors[name] for name in names])]


def _place(out: Path, name: str) -> Path:
    return out / "measured" / f"{name}.json"


def _kept(out: Path, name: str) -> MeasuredRun | None:
    path = _place(out, name)
    if not path.exists():
        return None
    try:
        return MeasuredRun(**_read(path))
    except TypeError as error:
        raise CheckpointError(f"{path}: damaged ({error}); delete it and try again") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        tree = json.loads(read_capped(path, _CAP_BYTES))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: damaged ({error}); delete it and try again") from None
    if not isinstance(tree, dict):
        raise CheckpointError(f"{path}: damaged (no object); delete it and try again")
    return tree


def _spelled(tree: dict[str, Any]) -> bytes:
    return json.dumps(tree, indent=1, allow_nan=False).encode()
