"""`manege report`: a run, or several side by side, as one page worth sending."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from manege.cli.flags import SHORT_OUT
from manege.cli.options import Json
from manege.cli.output import emit_json, say
from manege.errors import fields_named


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN [RUN ...]", help="A run, or several to compare.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="The page; else RUN/report.html, for several runs comparison.html."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a file that is no report.")
    ] = False,
    json_: Json = False,
) -> None:
    """Draw a run as one page that opens without a network, finished or not; its figures in plots/.

    Of several runs: what they differ in, their scores, curves and pictures side by side. All comes
    from the run directory; scores are there once `manege evaluate` or `manege compare` has run.
    """
    from manege.errors import ConfigError
    from manege.report import comparing, single, writing

    places = [run.resolve() for run in runs]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise ConfigError(f"report: {runs[number]} is named twice; name each run once")
    single_run = len(runs) == 1
    file = out or (runs[0] / "report.html" if single_run else Path("comparison.html"))
    if out is not None or not single_run:
        with fields_named(SHORT_OUT):
            writing.check_free(file, force=force)
    page = single.report(runs[0]) if single_run else comparing.compare(runs)
    written = writing.write(page, file)
    if json_:
        emit_json(
            {
                "report": str(written.report),
                "bytes": written.bytes,
                "plots": [str(plot) for plot in written.plots],
                "runs": [str(run) for run in runs],
            }
        )
        return
    say(f"report: {written.report} ({written.bytes / 1e6:.1f} MB)")
    if written.plots:
        say(f"figures: {written.plots[0].parent}{'/'}")
