"""The section on whether the pictures help a classifier, from what `manege verdict` has kept."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from manege.report import charts, sheets
from manege.report.charts import Whisker
from manege.report.drawing import Drawing, escape
from manege.report.page import Page, PageSection, details, paragraph, table
from manege.report.run import RunRecord, VerdictRecord

WIDTH = 720.0
"""The width of a figure: the arms' names need room."""
MOST_OTHERS = 6
_PLAIN, _SYNTHETIC, _HELPED = "c6", "c0", "c2"


def verdict(run: RunRecord, page: Page) -> PageSection | None:
    """Show the sentence, every arm's recall, each class's gain, and the nearest pairs."""
    section = PageSection("verdict", "Did it help?")
    if not run.trials:
        if not _has_a_small_class(run):
            return None
        command = f"manege verdict {shlex.quote(str(run.path))}"
        section.add(
            paragraph(
                "Some class has less than half the pictures of another. Whether these pictures "
                f"help a classifier to learn it says <code>{escape(command)}</code>."
            )
        )
        return section
    newest, *others = run.trials
    section.add(
        f'<p class="sentence"><b>{escape(newest.tree["sentence"])}</b></p>',
        paragraph(_protocol(newest.tree), "muted"),
    )
    names = ("verdict-arms", "verdict-gains")
    figures = [
        page.figure(name, drawing, wide=True)
        for name, drawing in zip(names, drawings_of(newest.tree), strict=False)
    ]
    section.add(f'<div class="figures">{"".join(figures)}</div>', _arms_table(newest.tree))
    _copies(newest, page, section)
    if others:
        rows = [(_protocol(one.tree), escape(one.tree["sentence"])) for one in others[:MOST_OTHERS]]
        listed = table(("trial", "verdict"), rows, caption="Trials before, the newest first.")
        section.add(details(f"{len(others)} more", listed))
    return section


def _has_a_small_class(run: RunRecord) -> bool:
    counts = [one.get("train") for one in run.classes.values()]
    known = [count for count in counts if isinstance(count, int)]
    return len(known) > 1 and not run.is_points and 2 * min(known) < max(known)


def drawings_of(tree: Mapping[str, Any]) -> list[Drawing]:
    """Draw every arm's mean recall and, where something was balanced, each class's gain."""
    seeds = tree["protocol"]["seeds"]
    arms = [
        _whisker(f"{arm}  {one['title']}", one["mean_recall"], _colour(arm))
        for arm, one in tree["arms"].items()
    ]
    note = f"{seeds} seeds; bars: 95 %"
    drawings = [charts.whiskers("Mean recall, %", note, arms, width=WIDTH)]
    comparison = tree["comparison"]
    if comparison is not None:
        gains = [_whisker("mean", comparison["mean_recall"], _SYNTHETIC)]
        gains += [
            _whisker(label, one, _HELPED if label in comparison["helped"] else _PLAIN)
            for label, one in comparison["recall"].items()
        ]
        note = "mean: over the best arm without synthetic pictures; a class: over the best at it"
        title = f"Gain of arm {comparison['arm']}, points"
        drawings.append(charts.whiskers(title, note, gains, width=WIDTH))
    return drawings


def _whisker(label: str, estimate: Mapping[str, float], colour: str) -> Whisker:
    value, low, high = (100 * estimate[key] for key in ("value", "low", "high"))
    return Whisker(label, value, low, high, colour)


def _colour(arm: str) -> str:
    return _SYNTHETIC if arm in "def" else _PLAIN


def _protocol(tree: Mapping[str, Any]) -> str:
    protocol = tree["protocol"]
    counts = list(protocol["data"]["train"].values())
    gated = ", gated" if protocol.get("gate") else ""
    if any(one.get("blind") for one in (tree.get("gate") or {}).values()):
        gated += " (blind: the gate's network does not see these data)"
    return (
        f"{sum(counts):,} training pictures, {min(counts):,} to {max(counts):,} a class{gated}; "
        f"{protocol['seeds']} seeds, {protocol['steps']:,} steps each; tested on "
        f"{sum(protocol['data']['test'].values()):,} pictures that neither GAN nor gate nor choice "
        "saw."
    )


def _arms_table(tree: Mapping[str, Any]) -> str:
    rows = [
        (escape(f"{arm}  {one['title']}"), _percent(one["accuracy"]), _percent(one["mean_recall"]))
        for arm, one in tree["arms"].items()
    ]
    reached = _percent(tree["cas"]["synthetic_to_real"])
    reverse = tree["cas"].get("real_to_synthetic")
    caption = f"In %, with 95 % intervals. Classification accuracy score: {reached}"
    caption += f"; the reverse: {_percent(reverse)}." if reverse else "."
    return table(("arm", "accuracy", "mean recall"), rows, caption=caption, numbers=(1, 2))


def _percent(one: Mapping[str, float]) -> str:
    return f"{100 * one['value']:.1f} ({100 * one['low']:.1f} to {100 * one['high']:.1f})"


def _copies(trial: VerdictRecord, page: Page, section: PageSection) -> None:
    share = trial.tree["memorisation"]["share"]["value"]
    words = (
        f"Near-copies of training pictures: {share:.1%} of what it would add; real pictures have "
        "5 %."
    )
    sheet = sheets.load(trial.nearest) if trial.nearest else None
    if sheet is not None:
        alt = "generated pictures above their nearest training pictures"
        section.add(page.picture(sheet, alt, min(1000.0, 1.5 * sheet.shape[1])))
        words += " Above: the nearest of them; below: the training picture."
    section.add(paragraph(words, "muted"))
