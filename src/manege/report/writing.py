"""Write a page's files: the report itself, and every figure as SVG and PNG beside it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from manege.errors import ConfigError, field
from manege.files import below, blaming, make_folder, write_atomic
from manege.report.page import MOST_BYTES, Page

_OURS = b"manege report"


class Written(NamedTuple):
    """The files that were written."""

    report: Path
    bytes: int
    plots: list[Path]


def check_free(out: Path, *, force: bool) -> None:
    """Raise ConfigError if `out` cannot be a report, or would overwrite somebody else's file."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"{field('out')} {out}: expected a name that ends in .html")
    with blaming(out):
        if out.is_dir():
            raise ConfigError(f"{field('out')} {out}: a folder, expected a file; give another name")
        if force or not out.exists():
            return
        with out.open("rb") as file:
            ours = _OURS in file.read(1 << 12)
    if not ours:
        raise ConfigError(
            f"{field('out')} {out}: exists and is no report of ours; give {field('force')} or "
            f"another {field('out')}"
        )


def write(page: Page, out: Path) -> Written:
    """Write the report to that file, and its figures to plots/ beside it."""
    folder = below(out.parent, "plots")
    with blaming(folder):
        make_folder(folder)
    plots = []
    for name, drawing in page.figures.items():
        for ending, data in (
            ("svg", drawing.svg(name, alone=True).encode()),
            ("png", drawing.png()),
        ):
            plots.append(below(folder, f"{name}.{ending}"))
            write_atomic(plots[-1], data)
    text = page.html().encode("utf-8", "replace")
    assert len(text) < MOST_BYTES, "pictures were given no more room than that"
    write_atomic(out, text)
    return Written(out, len(text), plots)
