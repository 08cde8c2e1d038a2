"""Sections of pictures: beside real ones, over time, and beside the nearest training pictures."""

from __future__ import annotations

from typing import Any

import numpy as np

from manege.report import sheets
from manege.report.axes import told
from manege.report.drawing import escape
from manege.report.history import place_of
from manege.report.page import Page, PageSection, paragraph
from manege.report.records import CellRecord
from manege.report.run import RunRecord
from manege.report.sections.words import ranked

COLUMNS = 8
MOST_STRIPS = 12
MOST_ROUNDS = 7
MOST_ATLAS = 400


def pictures(run: RunRecord, page: Page) -> PageSection | None:
    """Show generated pictures beside real ones, by class or cell, and changing over time."""
    section = PageSection("samples", "Pictures")
    if run.is_points:
        _points(run, page, section)
    elif run.size is not None:
        _beside(run, page, section, run.size)
        if run.history.on_grid:
            _atlas(run, page, section, run.size)
    _over_time(run, page, section)
    if not section.parts:
        section.add(paragraph("No sample sheet has been drawn yet.", "muted"))
    return section


def _points(run: RunRecord, page: Page, section: PageSection) -> None:
    shown = []
    for name, file in (("real", "real.png"), ("generated", "model.png")):
        sheet = sheets.load(run.path / "samples" / file)
        if sheet is not None:
            image = page.picture(sheet, f"{name} points in the plane", 320, kind="points")
            shown.append(f'<div><div class="top muted">{name}</div>{image}</div>')
    if shown:
        section.add(f'<div class="figures">{"".join(shown)}</div>')


def _beside(run: RunRecord, page: Page, section: PageSection, side: int) -> None:
    """Add rows of generated pictures beside rows of real ones."""
    real, made = (_rows_of(run, file, side) for file in ("real.png", "model.png"))
    labels = run.history.model or list(made)
    if not made:
        made = {}
        for cell in run.history.cells.values():
            row = _last_row(run, cell, side)
            if row is not None:
                made[cell.key] = row
        labels = list(made)
    if not made:
        return
    unlabelled = len(real) > 1 and not set(real) & set(made)
    parts = [
        '<div class="corner"></div><div class="top">real</div><div class="top">generated</div>'
    ]
    if not real:
        section.add(
            paragraph(
                "The run holds no sheet of real pictures (samples/real.png); newer runs do.",
                "muted",
            )
        )
    shown = 0
    for number, label in enumerate(labels):
        row = made.get(label)
        if row is None:
            continue
        if page.room < 0.35:
            break
        shown += 1
        other = real.get(label) if not unlabelled else real.get(str(number))
        left = (
            page.picture(other, f"real pictures: {label}", 440, kind=_kind(side))
            if other is not None
            else ""
        )
        right = page.picture(row, f"generated pictures: {label}", 440, kind=_kind(side))
        name = escape(label) if label != "all" else "all"
        parts.append(f'<div class="label">{name}</div><div>{left}</div><div>{right}</div>')
    section.add(f'<div class="pair">{"".join(parts)}</div>')
    if shown < len(labels):
        section.add(
            paragraph(f"{len(labels) - shown} more are left out to keep the file small.", "muted")
        )
    section.add(
        paragraph(
            "Generated: by the finished model."
            if (run.path / "samples" / "model.png").exists()
            else "Generated: by each cell as of its last sample sheet; the run has no model yet.",
            "muted",
        )
    )


def _zoom(side: int) -> int:
    return 1 if side >= 48 else max(1, round(44 / side))


def _kind(side: int) -> str:
    """Return the style of a picture: large ones are smoothed, small ones shown pixel by pixel."""
    return "smooth" if side >= 24 else ""


def _rows_of(run: RunRecord, file: str, side: int) -> dict[str, Any]:
    """Return the rows of a sheet by their labels; all pictures as one when rows have none."""
    sheet = sheets.load(run.path / "samples" / file)
    cut = None if sheet is None else sheets.tiles(sheet, side)
    if cut is None:
        return {}
    labels = run.history.model or run.labels
    rows = len(cut) // COLUMNS
    if len(labels) == rows:
        names = labels
    elif run.history.on_grid or run.history.method == "single":
        return {"all": sheets.strip(cut[:64], COLUMNS)}
    elif len(run.labels) == rows:
        names = run.labels
    else:
        return {}
    return {
        name: sheets.strip(cut[n * COLUMNS : (n + 1) * COLUMNS], COLUMNS)
        for n, name in enumerate(names)
    }


def _last_row(run: RunRecord, cell: CellRecord, side: int) -> Any | None:
    for round_ in sorted(cell.sheets, reverse=True):
        cut = _cut(run, cell.sheets[round_], side)
        if cut is not None:
            return sheets.strip(cut[:COLUMNS], COLUMNS)
    return None


def _sheet(run: RunRecord, file: str) -> Any | None:
    """Load a sheet that an event names, if it lies inside the run."""
    path = run.path / file
    return sheets.load(path) if path.resolve().is_relative_to(run.path.resolve()) else None


def _cut(run: RunRecord, file: str, side: int) -> Any | None:
    """Return the pictures of a sheet that an event names."""
    sheet = _sheet(run, file)
    return None if sheet is None else sheets.tiles(sheet, side)


def _atlas(run: RunRecord, page: Page, section: PageSection, side: int) -> None:
    """Add every cell's pictures in its place on the torus."""
    shape = run.history.shape()
    if shape is None or shape[0] * shape[1] > MOST_ATLAS:
        return
    each = 2 if shape[0] * shape[1] <= 64 else 1
    block = each * (side + 1) + 3
    sheet = None
    for cell in run.history.cells.values():
        place, round_ = place_of(cell.key), max(cell.sheets, default=None)
        cut = _cut(run, cell.sheets[round_], side) if round_ is not None else None
        if cut is None or place is None or len(cut) < each * each:
            continue
        if sheet is None:
            size = (shape[0] * block, shape[1] * block, cut.shape[-1])
            sheet = np.full(size, 232, dtype=np.uint8)
        tile = sheets.strip(cut[: each * each], each)
        top, left = place[0] * block + 1, place[1] * block + 1
        sheet[top : top + tile.shape[0], left : left + tile.shape[1]] = tile
    if sheet is None:
        return
    width = min(640.0, sheet.shape[1] * _zoom(side))
    section.add(
        "<h3>Each cell in its place on the torus</h3>",
        page.picture(
            sheet,
            f"samples of {shape[0]} by {shape[1]} cells, each in its place",
            width,
            kind=_kind(side),
        ),
    )


def _over_time(run: RunRecord, page: Page, section: PageSection) -> None:
    cells = [cell for cell in ranked(run) if len(cell.sheets) > 1]
    if not cells:
        return
    few = cells[: 4 if run.history.on_grid else MOST_STRIPS]
    strips = [strip for cell in few if page.room > 0.2 and (strip := _film(run, page, cell))]
    if strips:
        left = len(cells) - len(few)
        more = f" The {len(few)} best of {len(cells)} are shown." if left > 0 else ""
        section.add(
            "<h3>Over time, at latents that never change</h3>",
            f'<div class="strips">{"".join(strips)}</div>',
            paragraph(f"Each column is one latent.{more}", "muted"),
        )


def _film(run: RunRecord, page: Page, cell: CellRecord) -> str | None:
    rows = []
    for round_ in sheets.spread_over(sorted(cell.sheets), MOST_ROUNDS):
        alt = f"{cell.key} after round {round_}"
        if run.is_points:
            sheet = _sheet(run, cell.sheets[round_])
            image = None if sheet is None else page.picture(sheet, alt, 160, kind="points")
        else:
            cut = None if run.size is None else _cut(run, cell.sheets[round_], run.size)
            image = None
            if cut is not None:
                row = sheets.strip(cut[:COLUMNS], COLUMNS)
                image = page.picture(row, alt, 290, kind=_kind(run.size or 1))
        if image is not None:
            rows.append(f'<div class="round">round {round_}</div><div>{image}</div>')
    if not rows:
        return None
    return f'<div class="strip"><h3>{escape(cell.key)}</h3>{"".join(rows)}</div>'


def nearest(run: RunRecord, page: Page) -> PageSection | None:
    """Show generated pictures above the training pictures nearest to them."""
    section = PageSection("nearest", "Nearest training pictures")
    for kept in run.evaluations:
        sheet = sheets.load(kept.nearest) if kept.nearest else None
        if sheet is None:
            continue
        cut = None if run.size is None else sheets.tiles(sheet, run.size)
        small = sheet
        if cut is not None and len(cut) > 1:
            half = len(cut) // 2
            some = min(16, half)
            small = sheets.strip(np.concatenate([cut[:some], cut[half : half + some]]), some)
        known = {str(one["name"]): one for one in kept.overall}
        words = (
            "Above: the generated pictures that lie nearest to a training picture; below: that "
            "training picture. A generator that copies shows twins."
        )
        if (one := known.get("nearer-to-train")) is not None:
            words += (
                f" Of all generated pictures {one['value']:.0%} ({told(one.get('low'))} to "
                f"{told(one.get('high'))}) are nearer to a training than to a held-out picture; "
                "half is neutral."
            )
        section.add(
            page.picture(
                small,
                "generated pictures above their nearest training pictures",
                1000,
                kind=_kind(run.size or 1),
            ),
            paragraph(words, "muted"),
        )
        return section
    return None
