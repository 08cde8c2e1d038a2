"""`manege sweep`: recipes × seeds × classes, as a table and a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from manege.cli.options import DataRoot, Json
from manege.cli.output import emit_json, say, tell, tell_progress
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
    from manege.errors import ConfigError
    from manege.experiments.sweep import (
        load_plan,
        measure_all,
        replaced_presets,
        run_all,
        write_table,
    )
    from manege.progress import counter
    from manege.stopping import StopSignals

    if jobs < 1:
        raise ConfigError(f"--jobs {jobs}: expected at least 1")
    settled, units = load_plan(plan, data_root)
    _keep_plan(plan, out)
    for recipe, (asked, used) in replaced_presets(settled, units).items():
        tell(
            f"{recipe}: preset {used} is trained, not {asked}, as always on {settled.data}; name "
            "critic.kind to have it otherwise"
        )
    stages = []
    try:
        for each_s in settled.budget_s:
            with StopSignals() as stop:
                failed = run_all(
                    units, out, each_s=each_s, jobs=jobs, tell=tell_progress, stop=stop
                )
            stages.append(
                measure_all(
                    settled,
                    units,
                    out,
                    each_s=each_s,
                    say=tell,
                    counting=counter,
                    data_root=data_root,
                )
            )
    except KeyboardInterrupt:
        say(f"stopped and saved; go on with the same command (folder {out})")
        raise typer.Exit(EXIT_STOPPED) from None
    written = write_table(stages, settled, out)
    if json_:
        emit_json(
            {
                "out": str(out),
                **{path.stem: str(path) for path in written},
                "rows": [vars(row) for row in stages[-1].rows],
                "failed": list(failed),
            }
        )
    else:
        say(written[0].read_text(encoding="utf-8").rstrip())
        for path in written:
            say(f"{path.stem}: {path}")
    raise typer.Exit(EXIT_FAILED_CELL if failed else 0)


def _keep_plan(plan: Path, out: Path) -> None:
    """The plan beside its results; another plan's folder is refused."""
    from manege.errors import ConfigError
    from manege.files import blaming, make_folder, write_atomic

    with blaming(out):
        make_folder(out)
    kept, content = out / "plan.yaml", plan.read_bytes()
    if kept.exists() and kept.read_bytes() != content:
        raise ConfigError(
            f"{out}: holds the sweep of another plan ({kept}); choose another --out, or continue "
            "with that plan"
        )
    if not kept.exists() and any(out.iterdir()):
        raise ConfigError(f"{out}: not empty, and not a sweep; choose another --out")
    write_atomic(kept, content)
