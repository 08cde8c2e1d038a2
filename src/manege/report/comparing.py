"""The report of several runs side by side: how they differ, and what they achieved."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from manege.progress import duration
from manege.report import charts, sections, sheets
from manege.report.axes import told
from manege.report.charts import Curve, Whisker
from manege.report.drawing import SERIES, escape
from manege.report.history import INDEX_NOTES
from manege.report.page import Page, PageSection, code, paragraph, table
from manege.report.records import Settled
from manege.report.run import RunRecord, differences, measured_by, read_run, stability_rows
from manege.report.series import quantiles

MOST_SCORES = 8
_SAME_SEED = re.compile(r"seed-(\d+)\.png")


def compare(paths: Sequence[Path]) -> Page:
    """Return the page that compares the runs in these folders, in their order."""
    return page_of([read_run(path) for path in paths])


def page_of(runs: Sequence[RunRecord]) -> Page:
    """Return the page that compares runs that were read."""
    names = names_of(runs)
    page = Page(f"{' / '.join(names)} – manege report")
    made = [
        _overview(runs, names),
        _scores(runs, names, page),
        _samples(runs, names, page),
        _differences(runs, names),
        _curves(runs, names, page),
        _stability(runs, names, page),
        _profile(runs, names),
        _again(runs, names),
    ]
    page.sections = [section for section in made if section is not None]
    title = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) < 4 else f"{len(names)} runs"
    page.head = [f"<h1>{escape(title)}</h1>", '<p class="muted">side by side</p>']
    notes = [
        f"{escape(name)}: {escape(note)}"
        for run, name in zip(runs, names, strict=True)
        for note in run.notes
    ]
    if notes:
        items = "".join(f"<li>{note}</li>" for note in notes)
        page.head.append(f'<div class="notes" role="note"><b>To know</b><ul>{items}</ul></div>')
    return page


def names_of(runs: Sequence[RunRecord]) -> list[str]:
    """Name each run by its folder, with as many parent folders as tell the runs apart."""
    parts = [run.path.resolve().parts for run in runs]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-depth:]) for one in parts]
        if len(set(names)) == len(names):
            break
    # What all have in common at the end tells nobody anything.
    cut = [name.split("/") for name in names]
    while len(cut) > 1 and all(len(one) > 1 for one in cut) and len({one[-1] for one in cut}) == 1:
        cut = [one[:-1] for one in cut]
    return ["/".join(one) for one in cut]


def _overview(runs: Sequence[RunRecord], names: Sequence[str]) -> PageSection:
    section = PageSection("runs", "The runs")
    rows = []
    for run, name in zip(runs, names, strict=True):
        history = run.history
        took = (history.last_t or 0.0) - (history.started_at or 0.0)
        failed = [cell.key for cell in history.cells.values() if cell.state == "failed"]
        rows.append(
            (
                escape(name),
                f'<span class="badge {run.state}" style="margin:0;vertical-align:0">'
                f"{escape(sections.STATES[run.state])}</span>",
                escape(run.data.get("name", "?")),
                escape(history.method or "?"),
                escape(sections.length(run)),
                str(max((cell.last for cell in history.cells.values()), default=0)),
                duration(took) if took > 0 else "–",
                escape(", ".join(failed[:8])) or "none",
            )
        )
    heads = ("run", "state", "data", "method", "length", "rounds", "took", "failed")
    section.add(table(heads, rows, caption="Each run as it stands.", numbers=(5, 6)))
    return section


def _scores(runs: Sequence[RunRecord], names: Sequence[str], page: Page) -> PageSection:
    section = PageSection("scores", "Scores")
    found = _evaluated(runs)
    figures = []
    for (name, _, _), values in list(found.items())[:MOST_SCORES]:
        floor = next((one.get("floor") for one in values.values() if one.get("floor")), None)
        rows = [
            Whisker(
                names[number],
                float(one["value"]),
                one.get("low"),
                one.get("high"),
                SERIES[number % len(SERIES)],
                (floor or {}).get("value"),
            )
            for number, one in values.items()
        ]
        better = sections.better(name)
        note = f"{better + '; ' if better else ''}95 % intervals; dashed: real pictures"
        title = sections.NAMES.get(name, name)
        drawing = charts.whiskers(title[:1].upper() + title[1:], note, rows)
        figures.append(page.figure(f"score-{name}", drawing))
    if figures:
        section.add(f'<div class="figures">{"".join(figures)}</div>')
        rows_ = []
        for (name, space, _), values in found.items():
            cells = [
                f"{told(one['value'])}<br><span class=muted>{told(one.get('low'))} to "
                f"{told(one.get('high'))}{_marks(one)}</span>"
                if (one := values.get(number))
                else "–"
                for number in range(len(runs))
            ]
            rows_.append((f"{escape(name)}<br><span class=muted>{escape(space)}</span>", *cells))
        section.add(
            table(
                ("score", *map(escape, names)),
                rows_,
                caption="Scores of the same space and reference stand in one row; 95 % intervals.",
                numbers=range(1, len(names) + 1),
            )
        )
    missing = [escape(name) for run, name in zip(runs, names, strict=True) if not run.evaluations]
    if missing:
        section.add(
            paragraph(
                f"Not evaluated: {', '.join(missing)}. <code>manege compare</code> evaluates all "
                "runs in the same way and draws their pictures at the same seed.",
                "muted",
            )
        )
    return section


def _marks(one: dict[str, Any]) -> str:
    return "".join(f" ({escape(mark)})" for mark in one.get("marks") or ())


def _evaluated(runs: Sequence[RunRecord]) -> dict[tuple[str, str, str], dict[int, dict[str, Any]]]:
    """Return the scores that can be compared, by name, space and reference, each run's newest."""
    found: dict[tuple[str, str, str], dict[int, dict[str, Any]]] = {}
    for number, run in enumerate(runs):
        for kept in run.evaluations:
            reference = kept.protocol["reference"]
            what = json.dumps([reference.get("digest"), reference.get("other")])
            digest = hashlib.sha256(what.encode()).hexdigest()
            for one in kept.overall:
                key = (str(one["name"]), str(one.get("space", "")), digest)
                found.setdefault(key, {}).setdefault(number, one)
    order = [*sections.HEADLINES, *sorted({name for name, _, _ in found})]
    # Those that most runs have first.
    return dict(sorted(found.items(), key=lambda one: (order.index(one[0][0]), -len(one[1]))))


def _samples(runs: Sequence[RunRecord], names: Sequence[str], page: Page) -> PageSection:
    section = PageSection("samples", "Pictures")
    seeds = [
        {
            int(match[1])
            for file in (run.path / "samples").glob("seed-*.png")
            if (match := _SAME_SEED.fullmatch(file.name))
        }
        for run in runs
    ]
    shared = sorted(set.intersection(*seeds)) if seeds else []
    file = f"seed-{shared[0]}.png" if shared else "model.png"
    blocks = []
    for run, name in zip(runs, names, strict=True):
        sheet = sheets.load(run.path / "samples" / file)
        if sheet is None:
            blocks.append(f"<div><h3>{escape(name)}</h3><p class=muted>no {file}</p></div>")
            continue
        cut = None if run.size is None or run.is_points else sheets.tiles(sheet, run.size)
        small = sheet if cut is None else sheets.strip(cut[:160], sections.COLUMNS)
        image = page.picture(small, f"samples of {name}", 420)
        blocks.append(f"<div><h3>{escape(name)}</h3>{image}</div>")
    words = (
        f"All drawn at seed {shared[0]} by <code>manege compare</code>."
        if shared
        else "Each run's own sheet of its finished model; <code>manege compare</code> draws them "
        "at the same seed."
    )
    kind = "figures three" if len(runs) > 2 else "figures"
    section.add(f'<div class="{kind}">{"".join(blocks)}</div>', paragraph(words, "muted"))
    return section


def _differences(runs: Sequence[RunRecord], names: Sequence[str]) -> PageSection:
    section = PageSection("differences", "What differs in the configuration")
    rows = [
        (f"<code>{escape(key)}</code>", *(escape(_brief(value)) for value in values))
        for key, values in differences([run.config for run in runs]).items()
    ]
    if rows:
        section.add(
            table(("key", *map(escape, names)), rows, caption=f"Keys that differ: {len(rows)}.")
        )
    else:
        section.add(paragraph("Nothing: the configurations are the same."))
    return section


def _brief(value: Any) -> str:
    text = (", ".join(map(str, value)) or "none") if isinstance(value, list) else str(value)
    text = "–" if value is None else text
    return text if len(text) <= 60 else f"{text[:59]}…"


def _curves(runs: Sequence[RunRecord], names: Sequence[str], page: Page) -> PageSection | None:
    section = PageSection("curves", "Curves")
    figures = []
    judged = {(run.history.measure, sections.measure_name(run)) for run in runs}
    shown = {
        "generator": "Generator loss",
        "discriminator": "Discriminator loss",
        "spread": "Spread of samples",
        "diversity": "Diversity of the neighbourhood",
    }
    measures = list(shown.items())
    if len(judged) == 1:
        measure, title = judged.pop()
        if measure not in shown:
            measures.insert(0, (measure, title[:1].upper() + title[1:]))
    for measure, title in measures:
        found = _over_rounds(runs, names, measure)
        if len(found) > 0:
            note = "median of the cells, middle half and four fifths"
            log = measure in ("score", "mixture")
            drawing = charts.curves(title, note, found, height=280, log=log)
            figures.append(page.figure(f"compare-{measure}", drawing))
    if not figures:
        return None
    section.add(f'<div class="figures">{"".join(figures)}</div>')
    if len(runs) > len(SERIES):
        section.add(paragraph(f"The first {len(SERIES)} runs.", "muted"))
    return section


def _over_rounds(runs: Sequence[RunRecord], names: Sequence[str], measure: str) -> list[Curve]:
    return [
        Curve(names[number], values, SERIES[number % len(SERIES)])
        for number, run in enumerate(runs[: len(SERIES)])
        if (values := quantiles(run.history, measure)) is not None
    ]


def _stability(runs: Sequence[RunRecord], names: Sequence[str], page: Page) -> PageSection | None:
    """Show collapse and cycling: curves in one figure where they compare, and a table."""
    rows = stability_rows(runs)
    if not rows:
        return None
    section = PageSection("stability", "Collapse and cycling")
    figures = [
        page.figure(
            f"compare-{name}",
            charts.curves(f"{name.capitalize()} index", note, found, height=280),
        )
        for name, note in INDEX_NOTES.items()
        if len({by for run in runs if (by := measured_by(run, name)) is not None}) == 1
        and (found := _over_rounds(runs, names, name))
    ]
    if figures:
        section.add(f'<div class="figures">{"".join(figures)}</div>')
    section.add(
        table(
            ("index", *map(escape, names)),
            [(escape(name), *map(_settled, row)) for name, row in rows.items()],
            caption="Means over the last half of the rounds and over the cells, below them the "
            "least and the most of a cell; lower is better. In one row stands what was told in "
            "one space, by as many pictures, against the same real ones; of cycling what was also "
            "told as often, as many rounds back, of rounds as long. Rows that are apart name what "
            "they differ in.",
            numbers=range(1, len(names) + 1),
        )
    )
    return section


def _settled(one: Settled | None) -> str:
    if one is None:
        return "–"
    cells = f"{told(one.low)} to {told(one.high)}, {one.cells} cells" if one.cells > 1 else "1 cell"
    return f"{told(one.mean)}<br><span class=muted>{cells}</span>"


def _profile(runs: Sequence[RunRecord], names: Sequence[str]) -> PageSection | None:
    """Show seconds of each routine, and the speed-up against the first run, as in Table IV."""
    found = [run.history.routines() for run in runs]
    if not any(found):
        return None
    section = PageSection("profile", "Where the time went")
    rows = []
    for name in dict.fromkeys(name for one in found for name in one):
        cells = [
            f"{one[name] / max(1, run.history.done):.4f}" if name in one else "–"
            for one, run in zip(found, runs, strict=True)
        ]
        rows.append((escape(name), *cells))
    totals = [
        sum(one.values()) / max(1, run.history.done) for one, run in zip(found, runs, strict=True)
    ]
    rows.append(("overall", *(f"{total:.4f}" for total in totals)))
    rows.append(("speed-up", *(f"{totals[0] / total:.2f}×" if total else "–" for total in totals)))
    section.add(
        table(
            ("routine", *map(escape, names)),
            rows,
            caption="Seconds a cell and round; speed-up against the first run.",
            numbers=range(1, len(names) + 1),
        )
    )
    return section


def _again(runs: Sequence[RunRecord], names: Sequence[str]) -> PageSection:
    section = PageSection("again", "How to make them again")
    for run, name in zip(runs, names, strict=True):
        section.add(f"<h3>{escape(name)}</h3>", code(run.command or "no command.txt"))
    return section
