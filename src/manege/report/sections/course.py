"""Sections on how a run went, round by round: losses, scores, collapse and cycling."""

from __future__ import annotations

from manege.report import charts
from manege.report.axes import told
from manege.report.charts import Curve, Panel
from manege.report.drawing import escape
from manege.report.history import INDEX_NOTES, INDICES, MEASURES, History
from manege.report.page import Page, PageSection, paragraph, table
from manege.report.run import RunRecord, part_of, spanned
from manege.report.sections.words import measure_name, ranked, titled
from manege.report.series import quantiles, thinned

MOST_PANELS = 24


def progress(run: RunRecord, page: Page) -> PageSection | None:
    """Show losses and scores over the rounds, with bands, and a small figure for each cell."""
    history = run.history
    section = PageSection("curves", "Curves")
    figures = []
    pair = [
        Curve(name, found, colour)
        for name, colour in (("generator", "c0"), ("discriminator", "c1"))
        if (found := quantiles(history, name)) is not None
    ]
    many = len(history.cells) > 1
    over = f"median of {len(history.cells)} cells, middle half and four fifths" if many else ""
    if pair:
        loss = str(part_of(run.config, "training").get("loss", "loss"))
        note = f"{loss}, mean of a round{'; ' + over if over else ''}"
        figures.append(page.figure("losses", charts.curves("Losses", note, pair)))
    judged = quantiles(history, history.measure)
    if judged is not None and history.measure != "generator":
        title = titled(measure_name(run))
        note = f"lower is better{'; ' + over if over else ''}"
        drawing = charts.curves(title, note, [Curve(title, judged, "c2")], log=True)
        figures.append(page.figure("score", drawing))
    if figures:
        section.add(f'<div class="figures">{"".join(figures)}</div>')
    panels = _panels(run)
    if len(panels) > 1:
        name = measure_name(run)
        drawing = charts.multiples(
            f"{titled(name)} of each {'cell' if history.on_grid else 'class'}",
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


def _panels(run: RunRecord) -> list[Panel]:
    history, measure = run.history, run.history.measure
    shown = []
    for cell in ranked(run)[:MOST_PANELS]:
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


def stability(run: RunRecord, page: Page) -> PageSection | None:
    """Show collapse and cycling where a run measured them, and always spread and diversity."""
    history = run.history
    section = PageSection("stability", "Collapse and cycling")
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
    """Return a table of both indices over the last half of the run."""
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
        space += f", {spanned(history.index_samples)} pictures a round"
    if history.index_compared:
        space += (
            f"; collapse by {spanned(history.index_compared)} of them and as many held-out ones, "
            f"covering {spanned(history.index_references)} training pictures"
        )
    return table(
        ("index", "mean of the cells", "least", "most", "in cell", "what it says"),
        rows,
        caption=f"Means over the last half of each cell's rounds{space}.",
        numbers=(1, 2, 3),
    )
