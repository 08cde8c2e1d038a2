"""Sections that only a grid has: the torus, its mixtures, the winner's family tree."""

from __future__ import annotations

from manege.report import charts, maps, sheets
from manege.report.drawing import escape
from manege.report.history import History, place_of
from manege.report.page import Page, PageSection, paragraph
from manege.report.run import RunRecord, mixture_metric, part_of

MOST_BIRTHS = 3000


def torus(run: RunRecord, page: Page) -> PageSection | None:
    """Show the grid as heat maps of fitness, learning rate and loss in use."""
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
    section = PageSection("torus", "The torus")
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
            drawing = maps.heat(
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
        drawing = maps.heat(
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
        kind = str(part_of(run.config, "training").get("loss", "the same"))
        used = dict.fromkeys(lasts, kind)
    drawing = maps.kinds(
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


def mixture(run: RunRecord, page: Page) -> PageSection | None:
    """Show the mixture's weights: those chosen at the end, and how they evolved."""
    history = run.history
    if not history.on_grid:
        return None
    section = PageSection("mixture", "Mixture weights")
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


def _winner(history: History) -> tuple[str | None, str]:
    """Return the cell whose generator counts most, and words that say why."""
    if history.mixture and history.mixture["weights"]:
        cell, weight = max(history.mixture["weights"].items(), key=lambda pair: pair[1])
        return str(cell), f"the generator that draws {weight:.0%} of the final mixture"
    found = history.best_cell(history.measure)
    return (found[0].key, "that of the best cell so far") if found else (None, "")


def family(run: RunRecord, page: Page) -> PageSection | None:
    """Show the family tree of the winning generator."""
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
    section = PageSection("family", "Family tree")
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
