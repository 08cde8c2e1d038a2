"""Options that several verbs have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Classes = Annotated[str | None, typer.Option(help="Only these labels, separated by commas.")]
DataRoot = Annotated[str | None, typer.Option(help="Where named datasets lie; else MANEGE_DATA.")]
RunFolder = Annotated[Path, typer.Argument(help="A run directory.")]
