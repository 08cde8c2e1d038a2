"""`manege sweep`: recipes × seeds × classes, as a table and a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from manege.cli.options import DataRoot, Json
from manege.cli.output import emit_json, say
from manege.errors import EXIT_FAILED_CELL, EXIT_STOPPED


def sweep(
    plan: Annotated[Path, typer.Argument(metavar="FILE", help="The plan, a YAML file.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the sweep; goes on there.")],
    jobs: Annotated[int, typer.Option(help="Runs at the same time, a process each.")] = 1,
    data_root: DataRoot = None,
    json_: Json = False,
) -> None:
    """Train recipes on the same classes and seeds at equal CPU time, and compare their scores.

    FILE names data, classes, seeds, budget_s (CPU time a class; of several, scores are taken
    at each), base (keys of all runs) and recipes (a name and its keys each). The sweep can be
    stopped and started again: finished runs are kept, stopped ones go on. Writes table.md,
    table.json, plot.png, curve.png and sheets/ into the folder.
    """
    from manege import api
    from manege.stopping import SIGNALS

    try:
        found = api.sweep(plan, out, jobs=jobs, data_root=data_root, signals=SIGNALS)
    except KeyboardInterrupt:
        say(f"stopped and saved; go on with the same command (folder {out})")
        raise typer.Exit(EXIT_STOPPED) from None
    if json_:
        emit_json(
            {
                "out": str(out),
                **{path.stem: str(path) for path in found.files},
                "rows": [vars(row) for row in found.stages[-1].rows],
                "failed": list(found.failed),
            }
        )
    else:
        say(found.table.rstrip())
        for path in found.files:
            say(f"{path.stem}: {path}")
    raise typer.Exit(EXIT_FAILED_CELL if found.failed else 0)
