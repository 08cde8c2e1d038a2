"""`manege watch`: the live page of a run that goes on elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from manege.cli.output import say


def watch(
    run: Annotated[Path, typer.Argument(help="A run directory, of this machine or a shared disk.")],
    once: Annotated[
        bool, typer.Option("--once", help="Print the page as it is now, as plain text, and end.")
    ] = False,
) -> None:
    """Look at a run that another process or another node carries out; q closes.

    On a terminal the page of `manege train`, elsewhere a plain line a round. It reads the run
    directory only: open and close it at will. It ends with the run.
    """
    import shutil

    from manege.view import following
    from manege.view.terminal import can_paint

    if once:
        size = shutil.get_terminal_size((100, 40))
        say(following.once(run, size.columns, size.lines))
    elif can_paint(sys.stdout):
        following.watch(run)
    else:
        following.follow(run)
