"""`manege data …`: what datasets there are, and what is in one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from manege import progress
from manege.cli.options import Classes, DataRoot, Json
from manege.cli.output import emit_json, say

if TYPE_CHECKING:
    from manege.config import DataConfig
    from manege.data import Report

app = typer.Typer(help="What datasets there are, and what is in one.", no_args_is_help=True)


@app.command("list")
def list_(
    data_root: DataRoot = None,
    json_: Json = False,
) -> None:
    """List the datasets that have a name, and what else `train` takes."""
    from manege.data import list_datasets

    rows = list_datasets(data_root)
    if json_:
        emit_json({"datasets": rows})
        return
    for row in rows:
        count = f"{row['pictures']:,} pictures, " if row["pictures"] else ""
        say(f"{row['name']:16}{row['description']} ({count}{row['where']})")


@app.command()
def check(
    data: Annotated[str, typer.Argument(help="A dataset's name, an image folder, or an .npz.")],
    classes: Classes = None,
    size: Annotated[int | None, typer.Option(help="Side the pictures will have.")] = None,
    channels: Annotated[int | None, typer.Option(help="1 grey, 3 colour.")] = None,
    data_root: DataRoot = None,
    sheet: Annotated[
        Path | None, typer.Option(help="Also write a picture sheet, a row a class: sheet.png.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the sheet.")] = False,
    json_: Json = False,
) -> None:
    """Look at every picture: counts, sizes, broken and duplicate files, memory it will take."""
    from manege.cli.samples import parse_labels
    from manege.config import resolve
    from manege.data import check as check_data
    from manege.errors import ConfigError, DataError
    from manege.picture_files import check_free

    if sheet is not None:
        if sheet.suffix.lower() != ".png":
            raise ConfigError(f"--sheet {sheet}: expected a name that ends in .png")
        check_free(sheet, force=force)
    config = resolve(
        flags={
            "data.source": data,
            "data.root": data_root,
            "data.classes": parse_labels(classes),
            "data.size": size,
            "data.channels": channels,
            # No network is made here, and points refuse the default ones.
            "networks.kind": "mlp",
        }
    ).data
    report = check_data(config, progress=progress.counter("looked at"))
    no_sheet: DataError | None = None
    if sheet is not None:
        try:
            _write_sheet(sheet, config)
        except DataError as error:
            # The report says what is wrong with the data; it must not be lost with the sheet.
            no_sheet = error
    drawn = str(sheet) if sheet and not no_sheet else None
    if json_:
        emit_json({**report.as_dict(), "sheet": drawn})
    else:
        _print(report)
        if drawn:
            say(f"sheet: {drawn}")
    if no_sheet:
        raise DataError(f"{sheet}: no sheet drawn; {no_sheet}")


def _write_sheet(path: Path, config: DataConfig) -> None:
    from manege.data import open_dataset
    from manege.data import sheet as draw
    from manege.files import blaming
    from manege.pictures import save_png, viewing_scale

    dataset = open_dataset(config)
    with blaming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    recipe = {"data": dataset.name, "rows": ", ".join(dataset.labels)}
    save_png(path, draw(dataset), recipe, viewing_scale(dataset.size))


def _print(report: Report) -> None:
    say(f"{report.name}: {len(report.classes)} classes, trained as {report.form}")
    say(f"held out: {report.held_out_rule}; decoded {report.memory_bytes / 1e6:,.1f} MB")
    for count in report.classes:
        say(f"  {count.label:20} {count.train:7,} to train on {count.held_out:7,} held out")
    sizes = ", ".join(f"{w}x{h} ({n:,})" for w, h, n in report.sides.commonest)
    modes = ", ".join(f"{mode} ({n:,})" for mode, n in report.modes.items())
    say(f"original sizes: {sizes or 'none'}; modes: {modes or 'none'}")
    for broken in report.broken:
        say(f"broken: {broken.name}: {broken.reason}")
    for name in report.ignored:
        say(f"ignored: {name}")
    for duplicate in report.duplicates:
        places = " = ".join(f"{p.label}/{p.name} ({p.split})" for p in duplicate.pictures[:6])
        more = len(duplicate.pictures) - 6
        say(f"duplicate: {places}" + (f" and {more} more" if more > 0 else ""))
    for problem in report.problems:
        say(f"PROBLEM: {problem}")
    if not report.problems:
        say("fine to train on")
