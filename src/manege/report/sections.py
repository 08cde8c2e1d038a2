"""What a report says of one run, section by section; each is None when there is nothing to show."""

from __future__ import annotations

import shlex
import time
from typing import Any

import numpy as np

from manege.progress import duration
from manege.report import charts, sheets
from manege.report.axes import told
from manege.report.charts import Curve, Panel, Whisker
from manege.report.drawing import escape
from manege.report.history import INDEX_NOTES, INDICES, MEASURES, Cell, History, place_of
from manege.report.page import Page, Section, code, details, paragraph, table
from manege.report.run import Kept, Run, mixture_metric
from manege.report.series import quantiles, thinned

COLUMNS = 8
MOST_STRIPS = 12
MOST_ROUNDS = 7
MOST_PANELS = 24
MOST_ATLAS = 400
MOST_BIRTHS = 3000
_LONGEST = 200_000
"""Characters of a file that is shown whole."""
_LOWER = ("kid", "fd", "label-tvd")
_HIGHER = (
    "precision",
    "recall",
    "density",
    "coverage",
    "label-entropy",
    "label-modes",
    "agreement",
)
HEADLINES = ("kid", "fd", "coverage", "precision", "recall", "agreement", "modes")
NAMES = {
    "kid": "KID",
    "fd": "Fréchet distance",
    "agreement": "label agreement",
    "nearer-to-train": "nearer to training",
    "modes": "modes found",
}
_FAULTS = {
    "cell_failed": ("cells failed", "c1"),
    "trainer_died": ("trainers died", "c4"),
    "rollback": ("rounds begun again", "c3"),
    "warning": ("warnings", "c6"),
    "stopped": ("stops", "c7"),
    "resumed": ("starts after that", "c0"),
}


def measure_name(run: Run) -> str:
    """What cells are judged by, in words."""
    return run.history.measure_name(mixture_metric(run.config))


def head(run: Run) -> list[str]:
    """Title, state, facts and notes."""
    history, state = run.history, run.state
    facts = [
        ("data", f"{run.data.get('name', '?')}{_form(run)}"),
        ("method", str(history.method or run.config.get("method", "?"))),
        ("preset", str(history.preset or run.config.get("preset", "?"))),
        ("length", length(run)),
        ("rounds done", _rounds_done(history)),
    ]
    if history.started_at is not None and history.last_t is not None:
        began = time.strftime("%Y-%m-%d %H:%M", time.gmtime(history.started_at))
        facts += [
            ("began", f"{began} UTC"),
            ("took", duration(history.last_t - history.started_at)),
        ]
    shown = "".join(f'<li><span class="muted">{k}</span> <b>{escape(v)}</b></li>' for k, v in facts)
    parts = [
        f'<h1>{escape(run.name)}<span class="badge {state}">{escape(STATES[state])}</span></h1>',
        f'<ul class="facts">{shown}</ul>',
    ]
    notes = [escape(note) for note in run.notes]
    if words := _state_note(run):
        notes.insert(0, words)
    if notes:
        items = "".join(f"<li>{note}</li>" for note in notes)
        parts.append(f'<div class="notes" role="note"><b>To know</b><ul>{items}</ul></div>')
    return parts


STATES = {
    "finished": "finished",
    "running": "still going on",
    "stopped": "stopped, resumable",
    "interrupted": "interrupted",
    "failed": "finished, with failures",
    "new": "not begun",
    "unknown": "state unknown",
}


def _state_note(run: Run) -> str | None:
    resume = f"<code>manege resume {escape(shlex.quote(str(run.path)))}</code>"
    failed = [cell for cell in run.history.cells.values() if cell.state == "failed"]
    match run.state:
        case "running":
            return "The run goes on; this is what it had come to when the report was made."
        case "interrupted":
            return f"Nobody runs this run, and it has not ended; {resume} goes on."
        case "stopped":
            return f"The run was stopped before its end; {resume} goes on."
        case "failed":
            names = ", ".join(escape(cell.key) for cell in failed[:12])
            return f"Failed: {names}; the model is that of the rest."
    return None


def _form(run: Run) -> str:
    if run.is_points:
        return ", points in the plane"
    if run.size is None:
        return ""
    return f", {run.size}×{run.size} {'grey' if run.data.get('channels') == 1 else 'colour'}"


def length(run: Run) -> str:
    """How long the run is meant to be."""
    rounds, budget = run.config.get("rounds"), run.config.get("budget_s")
    parts = [f"{rounds} rounds"] if rounds else []
    if budget:
        clock = "CPU time" if run.config.get("budget_clock") == "cpu" else "training"
        parts.append(f"{duration(float(budget))} of {clock}")
    return " or ".join(parts) or "?"


def _rounds_done(history: History) -> str:
    lasts = sorted(cell.last for cell in history.cells.values())
    if not lasts:
        return "0"
    span = f"{lasts[0]}" if lasts[0] == lasts[-1] else f"{lasts[0]} to {lasts[-1]}"
    if len(lasts) == 1:
        return span
    return f"{span} in each of {len(lasts)} {'cells' if history.on_grid else 'classes'}"


def scores(run: Run, page: Page) -> Section | None:
    """Headline scores with protocol and interval."""
    section = Section("scores", "Scores")
    figures: list[str] = []
    if run.evaluations:
        newest = run.evaluations[0]
        figures += _evaluation(newest, section, page)
        for other in run.evaluations[1:6]:
            section.add(details(f"Another evaluation: {_protocol(other)}", _score_table(other)))
    else:
        section.add(
            paragraph(
                "Not evaluated against held-out pictures yet. "
                f"<code>manege evaluate {escape(shlex.quote(str(run.path)))}</code> does that, and "
                "the next report shows it here."
            )
        )
    figures += _training_scores(run, page)
    if figures:
        # Before what is folded.
        folded = [part for part in section.parts if part.startswith("<details")]
        plain = [part for part in section.parts if not part.startswith("<details")]
        section.parts = [*plain, f'<div class="figures">{"".join(figures)}</div>', *folded]
    return section


def _evaluation(kept: Kept, section: Section, page: Page) -> list[str]:
    known = {str(one["name"]): one for one in kept.overall}
    tiles = "".join(_tile(known[name]) for name in HEADLINES if name in known)
    section.add(f'<div class="tiles">{tiles}</div>', paragraph(_protocol(kept), "muted"))
    section.add(details("All scores, with their definitions", _score_table(kept)))
    per_class, figures = kept.per_class, []
    if per_class:
        rows = [
            Whisker(
                label,
                float(one["value"]),
                one.get("low"),
                one.get("high"),
                floor=(one.get("floor") or {}).get("value"),
            )
            for label, one in list(per_class.items())[:40]
        ]
        name = str(next(iter(per_class.values()))["name"])
        split = kept.protocol["reference"].get("split")
        drawing = charts.whiskers(
            f"{NAMES.get(name, name)} of each class",
            f"against {split} pictures; lower is better; dashed: real pictures",
            rows,
        )
        figures.append(page.figure("class-scores", drawing))
    return figures


def better(name: str) -> str:
    """Which way a score is good, where that is known."""
    if name == "nearer-to-train":
        return "0.5 is neutral"
    return "lower is better" if name in _LOWER else "higher is better" if name in _HIGHER else ""


def _tile(one: dict[str, Any]) -> str:
    name = str(one["name"])
    floor = one.get("floor")
    real = f"<br>real pictures: {told(floor['value'])}" if floor else ""
    marks = "".join(f" ({escape(mark)})" for mark in one.get("marks") or ())
    return (
        f'<div class="tile"><div class="name">{escape(NAMES.get(name, name))}</div>'
        f'<div class="value">{told(one["value"])}</div><div class="more">'
        f"{told(one.get('low'))} to {told(one.get('high'))}{marks}{real}<br>{better(name)}"
        "</div></div>"
    )


def _protocol(kept: Kept) -> str:
    subject, reference, space = (kept.protocol[key] for key in ("subject", "reference", "space"))
    generated = subject.get("pictures")
    count = f"{generated:,}" if isinstance(generated, int) else "?"
    real = reference.get("pictures")
    against = f"{real:,}" if isinstance(real, int) else "?"
    split = "" if reference.get("split") == "all" else f" {escape(reference.get('split'))}"
    return (
        f"{count} generated pictures (seed {escape(kept.protocol.get('seed'))}) against {against}"
        f"{split} pictures of {escape(reference.get('name'))}; features "
        f"<code>{escape(space.get('name'))}</code>, {escape(space.get('dimensions'))} dimensions; "
        "95 % intervals."
    )


def _score_table(kept: Kept) -> str:
    rows = []
    for one in kept.scores:
        label = f" [{escape(one['label'])}]" if one.get("label") is not None else ""
        floor = (one.get("floor") or {}).get("value")
        interval = f"{told(one.get('low'))} to {told(one.get('high'))}"
        rows.append(
            (
                f"{escape(one['name'])}{label}",
                told(one["value"]),
                interval,
                told(floor) if floor is not None else "",
                escape(one.get("definition", "")),
            )
        )
    for name, reason in kept.left_out.items():
        rows.append((escape(name), "–", "", "", f"left out: {escape(reason)}"))
    names = ("score", "value", "95 % interval", "real pictures", "definition")
    return table(names, rows, caption=_protocol(kept), numbers=(1, 2, 3))


def _training_scores(run: Run, page: Page) -> list[str]:
    history = run.history
    best = {cell.key: cell.best for cell in history.cells.values() if cell.best}
    if best and history.metric:
        rows = [
            Whisker(key, float(one["value"]), one.get("low"), one.get("high"))
            for key, one in sorted(best.items(), key=lambda pair: float(pair[1]["value"]))
        ][:40]
        drawing = charts.whiskers(
            f"Best {_titled(history.metric)} during training",
            "against training pictures; by it the generator was chosen",
            rows,
        )
        return [page.figure("training-scores", drawing)]
    if history.mixture:
        rows = [
            Whisker(
                cell,
                one.value,
                one.low,
                one.high,
                colour="c1" if cell == history.mixture["cell"] else "c0",
            )
            for cell, one in history.mixture["scores"].items()
            if one is not None
        ]
        rows = sorted(rows, key=lambda one: one.value)[:30]
        drawing = charts.whiskers(
            f"Final mixtures: {mixture_metric(run.config)} of each neighbourhood",
            "on fresh pictures against training ones; lower is better; the chosen one first",
            rows,
        )
        return [page.figure("mixtures", drawing)]
    return []


def pictures(run: Run, page: Page) -> Section | None:
    """Real beside generated, per class or per cell; and over time at fixed latents."""
    section = Section("samples", "Pictures")
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


def _points(run: Run, page: Page, section: Section) -> None:
    shown = []
    for name, file in (("real", "real.png"), ("generated", "model.png")):
        sheet = sheets.load(run.path / "samples" / file)
        if sheet is not None:
            image = page.picture(sheet, f"{name} points in the plane", 320, kind="points")
            shown.append(f'<div><div class="top muted">{name}</div>{image}</div>')
    if shown:
        section.add(f'<div class="figures">{"".join(shown)}</div>')


def _beside(run: Run, page: Page, section: Section, side: int) -> None:
    """Rows of real pictures beside rows of generated ones."""
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
    """Small pictures are shown pixel by pixel; larger ones would look torn."""
    return "smooth" if side >= 24 else ""


def _rows_of(run: Run, file: str, side: int) -> dict[str, Any]:
    """The rows of a sheet by their labels: all of it in one when they have none."""
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


def _last_row(run: Run, cell: Cell, side: int) -> Any | None:
    for round_ in sorted(cell.sheets, reverse=True):
        cut = _cut(run, cell.sheets[round_], side)
        if cut is not None:
            return sheets.strip(cut[:COLUMNS], COLUMNS)
    return None


def _sheet(run: Run, file: str) -> Any | None:
    """A sheet that an event names; only inside the run."""
    path = run.path / file
    return sheets.load(path) if path.resolve().is_relative_to(run.path.resolve()) else None


def _cut(run: Run, file: str, side: int) -> Any | None:
    """The pictures of a sheet that an event names."""
    sheet = _sheet(run, file)
    return None if sheet is None else sheets.tiles(sheet, side)


def _atlas(run: Run, page: Page, section: Section, side: int) -> None:
    """Every cell's pictures in its place on the torus."""
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


def _over_time(run: Run, page: Page, section: Section) -> None:
    cells = [cell for cell in _ranked(run) if len(cell.sheets) > 1]
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


def _film(run: Run, page: Page, cell: Cell) -> str | None:
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


def _ranked(run: Run) -> list[Cell]:
    """Cells, the best first; in their own order where nobody judged them."""
    history, measure = run.history, run.history.measure
    cells = list(history.cells.values())
    if measure == "generator":
        return cells
    if not history.on_grid:
        return sorted(
            cells, key=lambda cell: run.labels.index(cell.key) if cell.key in run.labels else 0
        )
    latest = {cell.key: history.latest(cell, measure) for cell in cells}
    winner = history.mixture["cell"] if history.mixture else None
    return sorted(
        cells,
        key=lambda cell: (
            cell.key != winner,
            latest[cell.key] is None,
            latest[cell.key] or 0.0,
        ),
    )


def nearest(run: Run, page: Page) -> Section | None:
    """Generated pictures above the training pictures nearest to them."""
    section = Section("nearest", "Nearest training pictures")
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


def progress(run: Run, page: Page) -> Section | None:
    """Losses and scores over the rounds, with bands, and a small figure for each cell."""
    history = run.history
    section = Section("curves", "Curves")
    figures = []
    pair = [
        Curve(name, found, colour)
        for name, colour in (("generator", "c0"), ("discriminator", "c1"))
        if (found := quantiles(history, name)) is not None
    ]
    many = len(history.cells) > 1
    over = f"median of {len(history.cells)} cells, middle half and four fifths" if many else ""
    if pair:
        loss = str((run.config.get("training") or {}).get("loss", "loss"))
        note = f"{loss}, mean of a round{'; ' + over if over else ''}"
        figures.append(page.figure("losses", charts.curves("Losses", note, pair)))
    judged = quantiles(history, history.measure)
    if judged is not None and history.measure != "generator":
        title = _titled(measure_name(run))
        note = f"lower is better{'; ' + over if over else ''}"
        drawing = charts.curves(title, note, [Curve(title, judged, "c2")], log=True)
        figures.append(page.figure("score", drawing))
    if figures:
        section.add(f'<div class="figures">{"".join(figures)}</div>')
    panels = _panels(run)
    if len(panels) > 1:
        name = measure_name(run)
        drawing = charts.multiples(
            f"{_titled(name)} of each {'cell' if history.on_grid else 'class'}",
            "all on the same axes; the dot is the lowest value"
            + ("; bands are 95 % intervals" if history.measure == "score" else ""),
            panels,
            log=history.measure != "generator",
        )
        caption = ""
        if len(history.cells) > len(panels):
            caption = f"{len(panels)} of {len(history.cells)}; the table has all."
        figure = page.figure("each", drawing, caption, wide=True)
        section.add(f'<div class="figures" style="margin-top:26px">{figure}</div>')
    return section if section.parts else None


def _titled(name: str) -> str:
    return {"kid": "KID", "fd": "Fréchet distance"}.get(name, name[:1].upper() + name[1:])


def _panels(run: Run) -> list[Panel]:
    history, measure = run.history, run.history.measure
    shown = []
    for cell in _ranked(run)[:MOST_PANELS]:
        points = thinned(history.series(cell, measure), 80)
        if not points:
            continue
        interval = []
        if measure == "score":
            for one in list(cell.scored.values())[:: max(1, len(cell.scored) // 80)]:
                best = min(one.scores.values(), key=lambda score: score.value, default=None)
                if best is not None and best.low is not None and best.high is not None:
                    interval.append((float(one.round_), best.low, best.high))
        lowest = min(value for _, value in points)
        colour = "c1" if cell.state == "failed" else "c0"
        shown.append(Panel(cell.key, points, told(lowest), colour, interval))
    return shown


def torus(run: Run, page: Page) -> Section | None:
    """The grid as heat maps: fitness, learning rate, loss in use."""
    history, shape = run.history, run.history.shape()
    if shape is None:
        return None
    lasts = {
        place: row
        for cell in history.cells.values()
        if (place := place_of(cell.key)) is not None and cell.rounds
        for row in [cell.rounds[max(cell.rounds)]]
    }
    if not lasts:
        return None
    section = Section("torus", "The torus")
    winner = place_of(history.mixture["cell"]) if history.mixture else None
    width = charts.THIRD if shape[1] <= 6 else charts.HALF
    figures = []
    for name, title, note, number, field_ in (
        (
            "fitness-g",
            "Generator fitness",
            "binary cross-entropy, after the last round",
            0,
            "fitness",
        ),
        (
            "fitness-d",
            "Discriminator fitness",
            "binary cross-entropy, after the last round",
            1,
            "fitness",
        ),
        ("rate-g", "Generator learning rate", "as evolved, in the last round", 0, "rate"),
        ("rate-d", "Discriminator learning rate", "as evolved, in the last round", 1, "rate"),
    ):
        values = {
            place: value
            for place, row in lasts.items()
            if row.offspring is not None
            and (value := getattr(row.offspring[number], field_)) is not None
        }
        if values:
            marked = winner if field_ == "fitness" else None
            drawing = charts.heat(
                title,
                note,
                shape,
                values,
                marked=marked,
                width=width,
                lower_is_better=field_ == "fitness",
            )
            figures.append(page.figure(name, drawing))
    mixtures = {place: row.mixture for place, row in lasts.items() if row.mixture is not None}
    if mixtures:
        drawing = charts.heat(
            "Mixture score",
            f"{mixture_metric(run.config)} of each neighbourhood, after the last round",
            shape,
            mixtures,
            marked=winner,
            width=width,
        )
        figures.append(page.figure("mixture-map", drawing))
    losses = {
        place: row.offspring[0].objective
        for place, row in lasts.items()
        if row.offspring and row.offspring[0].objective
    }
    used = {place: str(kind) for place, kind in losses.items()}
    if not used:
        kind = str((run.config.get("training") or {}).get("loss", "the same"))
        used = dict.fromkeys(lasts, kind)
    drawing = charts.kinds(
        "Loss in use", "of the generator, in the last round", shape, used, width=width
    )
    figures.append(page.figure("losses-map", drawing))
    # Fitness, then learning rates, a row each, where three fit side by side.
    order = ("fitness-g", "fitness-d", "mixture-map", "rate-g", "rate-d", "losses-map")
    figures.sort(
        key=lambda figure: next(n for n, one in enumerate(order) if f'id="{one}"' in figure)
    )
    kind = "figures three" if width == charts.THIRD else "figures"
    section.add(f'<div class="{kind}">{"".join(figures)}</div>')
    if winner is not None:
        section.add(
            paragraph(
                "The framed cell is the one whose neighbourhood makes the final mixture.", "muted"
            )
        )
    return section


def mixture(run: Run, page: Page) -> Section | None:
    """The mixture's weights: as chosen at the end, and how they came to be."""
    history = run.history
    if not history.on_grid:
        return None
    section = Section("mixture", "Mixture weights")
    chosen = history.mixture
    figures = []
    if chosen and chosen["weights"]:
        rows = [
            (cell, weight, f"{weight:.1%}")
            for cell, weight in sorted(chosen["weights"].items(), key=lambda pair: -pair[1])
        ]
        drawing = charts.bars(
            "The final mixture",
            f"how often each generator round cell {chosen['cell']} draws",
            rows[:30],
        )
        figures.append(page.figure("weights", drawing))
    best = chosen["cell"] if chosen else (history.best_cell(history.measure) or (None,))[0]
    cell = history.cells.get(best) if isinstance(best, str) else best
    rows_ = [row for row in cell.ordered() if row.weights] if cell is not None else []
    if cell is not None and len(rows_) > 1:
        thin = sheets.spread_over(list(range(len(rows_))), 160)
        names = list(dict.fromkeys(name for n in thin for name in rows_[n].weights or {}))
        parts = {
            name: [(rows_[n].weights or {}).get(name, 0.0) for n in thin] for name in names[:9]
        }
        drawing = charts.shares_over_time(
            f"Weights in cell {cell.key}",
            "evolved round by round",
            [rows_[n].round_ for n in thin],
            parts,
        )
        figures.append(page.figure("weights-over-time", drawing))
    if not figures:
        return None
    section.add(f'<div class="figures">{"".join(figures)}</div>')
    return section


def stability(run: Run, page: Page) -> Section | None:
    """Collapse and cycling where a run tells them; spread and diversity in any case."""
    history = run.history
    section = Section("stability", "Collapse and cycling")
    figures = []
    has_index = False
    for name in INDICES:
        found = quantiles(history, name)
        if found is not None:
            has_index = True
            drawing = charts.curves(
                f"{name.capitalize()} index", INDEX_NOTES[name], [Curve(name, found, "c1")]
            )
            figures.append(page.figure(name, drawing))
    notes = {
        "spread": "mean distance between two samples; a fall towards 0 is collapse",
        "diversity": "mean distance between two generators' pictures at one latent",
    }
    for name, note in notes.items():
        found = quantiles(history, name)
        if found is not None:
            title = MEASURES[name]
            drawing = charts.curves(title[:1].upper() + title[1:], note, [Curve(name, found, "c3")])
            figures.append(page.figure(name, drawing))
    if not figures:
        return None
    section.add(f'<div class="figures">{"".join(figures)}</div>')
    if has_index:
        section.add(_indices_table(history))
    else:
        section.add(
            paragraph(
                "This run has written no collapse or cycling index; what it has told of its "
                "samples' variety is drawn instead.",
                "muted",
            )
        )
    return section


def _indices_table(history: History) -> str:
    """Both indices over the last half of the run."""
    found = {name: history.stability(name) for name in INDICES}
    rows = [
        (
            name,
            told(one.mean),
            told(one.low),
            told(one.high),
            escape(one.worst),
            INDEX_NOTES[name],
        )
        for name, one in found.items()
        if one is not None
    ]
    space = f"; features {escape(history.index_space)}" if history.index_space else ""
    if history.index_samples:
        few, many = min(history.index_samples), max(history.index_samples)
        space += f", {few if few == many else f'{few} to {many}'} pictures a round"
    return table(
        ("index", "mean of the cells", "least", "most", "in cell", "what it says"),
        rows,
        caption=f"Means over the last half of each cell's rounds{space}.",
        numbers=(1, 2, 3),
    )


def _winner(history: History) -> tuple[str | None, str]:
    """The cell whose generator counts most, and why it does."""
    if history.mixture and history.mixture["weights"]:
        cell, weight = max(history.mixture["weights"].items(), key=lambda pair: pair[1])
        return str(cell), f"the generator that draws {weight:.0%} of the final mixture"
    found = history.best_cell(history.measure)
    return (found[0].key, "that of the best cell so far") if found else (None, "")


def family(run: Run, page: Page) -> Section | None:
    """The family tree of the winning generator."""
    history = run.history
    if not history.on_grid:
        return None
    best, why = _winner(history)
    if best is None or best not in history.cells:
        return None
    line = history.lineage(best)
    if len(line) < 2:
        return None
    births, objectives = [], {}
    for cell in history.cells.values():
        for row in cell.rounds.values():
            if row.offspring is None or not row.offspring[0].replaced:
                continue
            if row.offspring[0].parent is not None:
                births.append(((cell.key, row.round_), row.offspring[0].parent))
            if row.offspring[0].objective:
                objectives[cell.key, row.round_] = str(row.offspring[0].objective)
    # On a large grid only those who are of the family, and their neighbours' number, fit.
    cells = sorted(history.cells, key=lambda key: place_of(key) or (0, 0))
    if len(cells) > 64:
        members = {cell for cell, _ in line}
        cells = [key for key in cells if key in members]
    last = max(cell.last for cell in history.cells.values())
    drawing = charts.tree(
        "Family tree of the winning generator",
        "each birth a line from the parent's; a generator trains where it was born",
        line,
        births if len(births) <= MOST_BIRTHS else [],
        cells,
        last,
        {one: objectives[one] for one in line if one in objectives},
    )
    section = Section("family", "Family tree")
    origins = len({cell for cell, _ in line})
    words = (
        f"The winner is {why}: {len(line) - 1} generations since the first generator of "
        f"cell {escape(line[-1][0])}, "
        f"over {origins} cell{'s' if origins > 1 else ''}."
    )
    section.add(
        f'<div class="figures">{page.figure("family-tree", drawing, words, wide=True)}</div>'
    )
    return section


def profile(run: Run, page: Page) -> Section | None:
    """Where the time went: Table IV and Figure 4 of the cellular paper."""
    history = run.history
    found = history.routines()
    total = sum(found.values())
    if not total or not history.done:
        return None
    section = Section("profile", "Where the time went")
    rows = [(name, seconds, f"{seconds / total:.1%}") for name, seconds in found.items()]
    drawing = charts.bars("Share of each routine", "of the time of all cells' rounds", rows)
    by_cell = [
        (cell.key, sum(row.seconds for row in cell.rounds.values()))
        for cell in history.cells.values()
    ]
    by_cell = sorted((pair for pair in by_cell if pair[1] > 0), key=lambda pair: -pair[1])
    figures = [page.figure("profile-bars", drawing)]
    if len(by_cell) > 1:
        shown = [(name, seconds, duration(seconds)) for name, seconds in by_cell[:12]]
        more = (
            f"the longest {len(shown)} of {len(by_cell)}"
            if len(by_cell) > 12
            else "wall time of its rounds"
        )
        figures.append(page.figure("profile-cells", charts.bars("Time of each cell", more, shown)))
    longest = by_cell[0][1] if by_cell else total
    listed = table(
        ("routine", "seconds", "a cell and round", "share"),
        [
            (name, f"{seconds:,.2f}", f"{seconds / history.done:.4f}", f"{seconds / total:.1%}")
            for name, seconds in found.items()
        ]
        + [("overall", f"{total:,.2f}", f"{total / history.done:.4f}", "100 %")],
        caption=(
            f"Wall seconds of all {history.done:,} rounds together; the cell that took longest "
            f"had {longest:,.1f}."
        ),
        numbers=(1, 2, 3),
    )
    section.add(f'<div class="figures"><div>{listed}</div>{"".join(figures)}</div>')
    if history.commits:
        section.add(
            paragraph(
                f"{history.commits:,} commits, {history.commit_bytes / 1e6:,.0f} MB in all, "
                f"{1000 * history.commit_s / history.commits:.0f} ms each.",
                "muted",
            )
        )
    return section


def faults(run: Run, page: Page) -> Section | None:
    """What went wrong, and how the run got over it."""
    history = run.history
    section = Section("faults", "Faults and recoveries")
    if not history.faults:
        if not history.events:
            return None
        section.add(paragraph("None: no round began again, no trainer died, nothing failed."))
        return section
    start = history.started_at or history.faults[0].t
    kinds = [
        (words, colour, [one.t - start for one in history.faults if one.kind == kind])
        for kind, (words, colour) in _FAULTS.items()
    ]
    kinds = [one for one in kinds if one[2]]
    drawing = charts.timeline(
        "Faults and recoveries", "since the run began", kinds, (history.last_t or start) - start
    )
    section.add(f'<div class="figures">{page.figure("timeline", drawing, wide=True)}</div>')
    rows = [
        (
            duration(max(0.0, one.t - start)),
            escape(_FAULTS[one.kind][0]),
            escape(one.cell or ""),
            str(one.round_ or ""),
            escape(one.text[:240]),
        )
        for one in history.faults[:200]
    ]
    more = f"the first 200 of {len(history.faults):,}" if len(history.faults) > 200 else "all"
    names = ("after", "what", "cell", "round", "in words")
    listed = table(names, rows, caption=f"Faults and recoveries: {more}.", numbers=(3,))
    section.add(listed if len(rows) <= 8 else details(f"All {len(rows)} of them", listed))
    return section


def classes(run: Run) -> Section | None:
    """A table of the classes, or of a grid's cells."""
    history = run.history
    counts = run.classes
    if not history.cells and not counts:
        return None
    per_class = history.method == "per-class"
    title = "Classes" if per_class else "Cells" if history.on_grid else "The pair"
    section = Section("table", title)
    judged = run.evaluations[0].per_class if run.evaluations else {}
    rows = []
    names = list(history.cells) or list(counts)
    if per_class:
        names.sort(key=lambda key: list(counts).index(key) if key in counts else len(counts))
    for key in names:
        cell = history.cells.get(key, Cell(key))
        count = counts.get(key) or {} if per_class else {}
        row = [escape(key)]
        if per_class:
            row += [_count(count.get("train")), _count(count.get("held_out"))]
        row += [str(cell.last), _cell_score(run, cell)]
        if judged:
            one = judged.get(key)
            row.append(
                f"{told(one['value'])} ({told(one.get('low'))} to {told(one.get('high'))})"
                if one
                else "–"
            )
        row += [duration(cell.spent_s) if cell.spent_s is not None else "–", _health(cell)]
        rows.append(row)
    heads = [title[:-2].lower() if per_class else "cell"]
    if per_class:
        heads += ["pictures", "held out"]
    heads += ["rounds", f"{escape(measure_name(run))}"]
    if judged:
        heads.append("held-out score")
    heads += ["time", "state"]
    listed = table(heads, rows, caption=_classes_caption(run), numbers=range(1, len(heads) - 1))
    section.add(listed if len(rows) <= 30 else details(f"All {len(rows)}", listed))
    if not per_class and counts:
        pictures_rows = [
            (escape(label), _count(one.get("train")), _count(one.get("held_out")))
            for label, one in counts.items()
        ]
        section.add(
            details(
                f"The data's {len(counts)} classes",
                table(
                    ("class", "pictures", "held out"),
                    pictures_rows,
                    caption=f"Held out: {escape(run.data.get('rule', '?'))}.",
                    numbers=(1, 2),
                ),
            )
        )
    return section


def _classes_caption(run: Run) -> str:
    if run.history.measure == "score":
        return "Score: the best during training, by which the generator was chosen; 95 % interval."
    return "Values after the last round."


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "–"


def _cell_score(run: Run, cell: Cell) -> str:
    if cell.best is not None:
        ends = f"{told(cell.best.get('low'))} to {told(cell.best.get('high'))}"
        return f"{told(float(cell.best['value']))} ({ends})"
    return told(run.history.latest(cell, run.history.measure))


def _health(cell: Cell) -> str:
    if cell.state == "failed":
        return f'<span class="bad">✗ failed</span>: {escape(cell.reason or "")}'
    words = {"finished": "✓ healthy", "running": "▸ training", "waiting": "· waiting"}
    shown = words.get(cell.state, cell.state)
    return f'<span class="good">{shown}</span>' if cell.state == "finished" else shown


def reproduce(run: Run) -> Section:
    """Configuration, environment, and the command that makes the run again."""
    section = Section("again", "How to make it again")
    if run.command:
        section.add("<h3>The command</h3>", code(run.command[:_LONGEST]))
    source = str((run.config.get("data") or {}).get("source", "DATA"))
    again = shlex.join(
        ["manege", "train", source, "--config", str(run.path / "config.yaml"), "--out", "again"]
    )
    section.add("<h3>The same run from its configuration</h3>", code(again))
    if run.environment:
        rows = [(escape(key), escape(value)) for key, value in run.environment.items()]
        section.add(table(("environment", ""), rows, caption="What the run was made with."))
    if run.config_text:
        section.add(details("The whole configuration", code(run.config_text[:_LONGEST])))
    return section
