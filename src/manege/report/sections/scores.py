"""The section of a run's scores."""

from __future__ import annotations

import shlex
from typing import Any

from manege.report import charts
from manege.report.axes import told
from manege.report.charts import Whisker
from manege.report.drawing import escape
from manege.report.page import Page, PageSection, details, paragraph, table
from manege.report.run import Kept, RunRecord, mixture_metric
from manege.report.sections.words import titled

HEADLINES = (
    "fid",
    "clean-fid",
    "is",
    "kid",
    "fd",
    "coverage",
    "precision",
    "recall",
    "agreement",
    "modes",
    "modes-covered",
)
NAMES = {
    "fid": "FID",
    "clean-fid": "clean FID",
    "is": "Inception score",
    "kid": "KID",
    "intra-class-kid": "KID within classes",
    "fd": "Fréchet distance",
    "agreement": "label agreement",
    "nearer-to-train": "nearer to training",
    "modes": "modes found",
    "modes-covered": "modes covered",
}
_LOWER = ("kid", "intra-class-kid", "fid", "clean-fid", "fd", "label-tvd", "modes-kl")
_HIGHER = (
    "precision",
    "recall",
    "density",
    "coverage",
    "label-entropy",
    "label-modes",
    "agreement",
    "is",
    "modes-covered",
)


def scores(run: RunRecord, page: Page) -> PageSection | None:
    """Show the main scores with their protocol and intervals."""
    section = PageSection("scores", "Scores")
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
    section.add(
        *(
            paragraph(f"<strong>Found in training: {escape(line)}.</strong>")
            for line in run.history.blind.values()
        )
    )
    figures += _training_scores(run, page)
    if figures:
        # Before what is folded.
        folded = [part for part in section.parts if part.startswith("<details")]
        plain = [part for part in section.parts if not part.startswith("<details")]
        section.parts = [*plain, f'<div class="figures">{"".join(figures)}</div>', *folded]
    return section


def _evaluation(kept: Kept, section: PageSection, page: Page) -> list[str]:
    known = {str(one["name"]): one for one in kept.overall}
    tiles = "".join(_tile(known[name]) for name in HEADLINES if name in known)
    section.add(*(paragraph(f"<strong>{escape(line)}.</strong>") for line in kept.blind))
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
    """Return which way a score is good; an empty string where that is not known."""
    if name == "nearer-to-train":
        return "0.5 is neutral"
    return "lower is better" if name in _LOWER else "higher is better" if name in _HIGHER else ""


def _tile(one: dict[str, Any]) -> str:
    name = str(one["name"])
    floor = one.get("floor")
    real = f"<br>real pictures: {told(floor['value'])}" if floor else ""
    if "blind" in (one.get("marks") or ()):
        # No headline; the table below has the number.
        return (
            f'<div class="tile"><div class="name">{escape(NAMES.get(name, name))}</div>'
            '<div class="value">–</div><div class="more">withheld: its feature space is blind'
            "<br>for these data</div></div>"
        )
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
        marks = "".join(f" ({escape(mark)})" for mark in one.get("marks") or ())
        rows.append(
            (
                f"{escape(one['name'])}{label}{marks}",
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


def _training_scores(run: RunRecord, page: Page) -> list[str]:
    history = run.history
    best = {cell.key: cell.best for cell in history.cells.values() if cell.best}
    if best and history.metric:
        rows = [
            Whisker(key, float(one["value"]), one.get("low"), one.get("high"))
            for key, one in sorted(best.items(), key=lambda pair: float(pair[1]["value"]))
        ][:40]
        mark = " (blind)" if history.blind else ""
        drawing = charts.whiskers(
            f"Best {titled(history.metric)} during training{mark}",
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
