"""Sections that account for a run: its cells, its time, its faults, how to make it again."""

from __future__ import annotations

import shlex
from typing import Any

from manege.progress import duration
from manege.report import charts
from manege.report.axes import told
from manege.report.drawing import escape
from manege.report.page import Page, PageSection, code, details, paragraph, table
from manege.report.records import CellRecord
from manege.report.run import RunRecord, part_of
from manege.report.sections.words import measure_name

_LONGEST = 200_000
"""The most characters of a file that are shown."""
_FAULTS = {
    "cell_failed": ("cells failed", "c1"),
    "trainer_died": ("trainers died", "c4"),
    "rollback": ("rounds begun again", "c3"),
    "warning": ("warnings", "c6"),
    "stopped": ("stops", "c7"),
    "resumed": ("starts after that", "c0"),
}


def classes(run: RunRecord) -> PageSection | None:
    """Show a table of the classes, or of a grid's cells."""
    history = run.history
    counts = run.classes
    if not history.cells and not counts:
        return None
    per_class = history.method == "per-class"
    title = "Classes" if per_class else "Cells" if history.on_grid else "The pair"
    section = PageSection("table", title)
    judged = run.evaluations[0].per_class if run.evaluations else {}
    rows = []
    names = list(history.cells) or list(counts)
    if per_class:
        names.sort(key=lambda key: list(counts).index(key) if key in counts else len(counts))
    for key in names:
        cell = history.cells.get(key, CellRecord(key))
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


def _classes_caption(run: RunRecord) -> str:
    if run.history.measure == "score":
        return "Score: the best during training, by which the generator was chosen; 95 % interval."
    return "Values after the last round."


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "–"


def _cell_score(run: RunRecord, cell: CellRecord) -> str:
    if cell.best is not None:
        ends = f"{told(cell.best.get('low'))} to {told(cell.best.get('high'))}"
        return f"{told(float(cell.best['value']))} ({ends})"
    return told(run.history.latest(cell, run.history.measure))


def _health(cell: CellRecord) -> str:
    if cell.state == "failed":
        return f'<span class="bad">✗ failed</span>: {escape(cell.reason or "")}'
    words = {"finished": "✓ healthy", "running": "▸ training", "waiting": "· waiting"}
    shown = words.get(cell.state, cell.state)
    return f'<span class="good">{shown}</span>' if cell.state == "finished" else shown


def profile(run: RunRecord, page: Page) -> PageSection | None:
    """Show where the time went, as Table IV and Figure 4 of the cellular paper do."""
    history = run.history
    found = history.routines()
    total = sum(found.values())
    if not total or not history.done:
        return None
    section = PageSection("profile", "Where the time went")
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


def faults(run: RunRecord, page: Page) -> PageSection | None:
    """Show what went wrong, and how the run recovered."""
    history = run.history
    section = PageSection("faults", "Faults and recoveries")
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


def reproduce(run: RunRecord) -> PageSection:
    """Show the configuration, the environment, and the command that makes the run again."""
    section = PageSection("again", "How to make it again")
    if run.command:
        section.add("<h3>The command</h3>", code(run.command[:_LONGEST]))
    source = str(part_of(run.config, "data").get("source", "DATA"))
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
