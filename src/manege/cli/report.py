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
    from manege import api

    with fields_named(SHORT_OUT):
        written = api.report(runs, out, force=force)
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
