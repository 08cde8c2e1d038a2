"""`manege bench …`: how fast this machine is with more workers."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manege.cli.options import DataRoot, Json
from manege.cli.output import emit_json, say, tell_progress
from manege.errors import EXIT_STOPPED, ConfigError, MachineError

if TYPE_CHECKING:
    from manege.experiments.scaling import Settings

app = typer.Typer(help="Measure this machine: how training scales.", no_args_is_help=True)


class Scaled(StrEnum):
    """Methods that more workers make faster."""

    PER_CLASS = "per-class"
    CELLULAR = "cellular"


class Over(StrEnum):
    """Runtimes that have workers."""

    LOCAL = "local"
    MPI = "mpi"


@app.callback()
def _group() -> None:
    """A group, also while it has one command."""


@app.command()
def scaling(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the bench; goes on there.")],
    method: Annotated[
        Scaled, typer.Option(help="per-class (workers train classes) or cellular (cells).")
    ] = Scaled.CELLULAR,
    runtime: Annotated[
        Over,
        typer.Option(help="local (processes), or mpi (ranks, started with mpiexec)."),
    ] = Over.LOCAL,
    workers: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="W: weak scaling goes from 1 to W, strong scaling sets one against W.",
            show_default="as many as cores, at least 2",
        ),
    ] = None,
    grids: Annotated[
        str | None,
        typer.Option(
            help="Grids of strong scaling, with --method cellular.", show_default="2x2,3x3,4x4"
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1, help="Rounds of every run.", show_default="10 of a grid, 50 of classes"
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each kind.")] = 3,
    data: Annotated[str, typer.Option(help="As of `manege train`.")] = "digits",
    preset: Annotated[
        str | None, typer.Option(help="As of `manege train`; else the method's default.")
    ] = None,
    data_root: DataRoot = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any other key of all runs; repeatable."),
    ] = None,
    json_: Json = False,
) -> None:
    """Measure weak and strong scaling, memory, cores, profile and, of a grid, cells' traffic.

    Every run is a `manege train` of its own; run it alone on the machine. It can be stopped and
    started again: what was measured is kept. Writes results.json, tables.md and plot.png.
    """
    from manege import machine
    from manege.experiments.scaling import (
        Settings,
        check_files,
        measure_all,
        plan_of,
        results_of,
        surroundings,
        write_results,
    )
    from manege.stopping import StopSignals

    if sys.platform != "linux":
        raise MachineError("bench scaling: workers are measured through /proc, which Linux has")
    settings = Settings(
        method=method.value,
        runtime=runtime.value,
        workers=workers or max(2, machine.cores()),
        grids=_grids(grids, method),
        rounds=rounds or (10 if method is Scaled.CELLULAR else 50),
        repeats=repeats,
        data=data,
        data_root=data_root,
        preset=preset,
        sets=tuple(sets or ()),
    )
    found = surroundings(settings.runtime)
    units = plan_of(settings)
    if method is Scaled.CELLULAR:
        check_files()
    _keep_plan(settings, found, out)
    try:
        with StopSignals() as stop:
            runs, sent = measure_all(
                units, out, runtime=settings.runtime, tell=tell_progress, stop=stop
            )
    except KeyboardInterrupt:
        say(f"stopped, and what was measured is kept; go on with the same command (folder {out})")
        raise typer.Exit(EXIT_STOPPED) from None
    results = results_of(settings, found, runs, sent)
    files = write_results(results, out)
    if json_:
        emit_json({"out": str(out), "files": [str(file) for file in files], **results})
        return
    say(files[1].read_text(encoding="utf-8").rstrip())
    for file in files:
        say(f"{file.stem}: {file}")


def _grids(text: str | None, method: Scaled) -> tuple[tuple[int, int], ...]:
    """`2x2,3x3`: at least two cells each, none twice."""
    if method is not Scaled.CELLULAR:
        if text is not None:
            raise ConfigError("--grids: only with --method cellular")
        return ()
    found = []
    for part in (text or "2x2,3x3,4x4").split(","):
        rows, times, columns = part.strip().lower().partition("x")
        if not (times and rows.isdecimal() and columns.isdecimal()):
            raise ConfigError(f"--grids {part!r}: expected rows x columns, as in --grids 2x2,3x3")
        found.append((int(rows), int(columns)))
        if int(rows) * int(columns) < 2:
            raise ConfigError(f"--grids {part!r}: expected at least two cells")
    if len(set(found)) < len(found):
        raise ConfigError(f"--grids {text}: a grid stands twice; name each once")
    return tuple(found)


def _keep_plan(settings: Settings, found: dict[str, Any], out: Path) -> None:
    """The plan beside its results; another plan's or machine's folder is refused."""
    from manege.files import blaming, make_folder, read_capped, write_atomic

    content = json.dumps({"settings": asdict(settings), "machine": found}, indent=1).encode()
    kept = out / "plan.json"
    if kept.exists():
        if read_capped(kept, 1 << 20) != content:
            raise ConfigError(
                f"--out {out}: holds a bench with other options, or of another machine or version "
                f"({kept}); choose another folder"
            )
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {out}: not empty, and not a bench; choose another folder")
    with blaming(out):
        make_folder(out)
    write_atomic(kept, content)
