"""A run and its results in a notebook: a display that is updated in place, tables, pictures, axes.

All HTML is made here. It holds no script, every text in it is escaped, and pictures are embedded.
IPython and matplotlib are used where they are, and are needed by nothing else.
"""

from __future__ import annotations

import base64
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from manege.errors import ConfigError, MachineError
from manege.observer import Observer, Place
from manege.pictures import Picture, grid, is_points, png_bytes, viewing_scale
from manege.report.drawing import escape
from manege.report.history import MEASURES, History
from manege.report.run import RunRecord
from manege.view.lines import Lines
from manege.view.page import UNICODE, Line, compose
from manege.view.state import Looked

SHARE = 0.01
"""The largest part of the time to be spent on the display."""
_AT_LEAST_S = 0.5
_WIDTH, _HEIGHT = 100, 30
_MOST_BYTES = 2_000_000
_MOST_PICTURES = 100
_MOST_CURVES = 12
_COLOURS = {
    "running": "#0072b2",
    "finished": "#009e73",
    "failed": "#d55e00",
    "again": "#cc79a7",
    "stopped": "#b58900",
    "waiting": "#888888",
    "dim": "#888888",
}


def in_notebook() -> bool:
    """Return whether this process is a notebook's kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


class Display(Observer):
    """An observer that shows a run's page in the output of a cell, and its newest sheet."""

    def __init__(self) -> None:
        self.looked = Looked()
        self._handle: Any = None
        self._path: Path | None = None
        self._sheet: Path | None = None
        self._said: deque[str] = deque(maxlen=8)
        self._due = 0.0
        self._cost_s = 0.0

    def opened(self, path: Path) -> None:
        """Begin to follow the run in that directory."""
        self._path = path
        self.looked.opened(path)

    def event(self, event: dict[str, Any]) -> None:
        """Add a line of events.jsonl."""
        self.looked.event(event)
        if event["event"] == "sheet" and self._path is not None:
            self._sheet = self._path / str(event["file"])
        self._paint()

    def step(self, cell: str, place: Place, fraction: float) -> None:
        """Add a step."""
        self.looked.step(cell, place, fraction)
        self._paint()

    def workers(self, count: int, silent_s: float, *, paused: bool) -> None:
        """Show how many workers there are."""
        self.looked.look(count, silent_s, paused=paused)
        self._paint()

    def say(self, text: str) -> None:
        """Show a line below the page."""
        self._said.append(text)
        self._paint(at_once=True)

    def progress(self, done: int, total: int) -> None:
        """Show how far the training of a feature network is."""
        words = f"feature network: seen {done:,} of {total:,} pictures"
        if self._said and self._said[-1].startswith("feature network: seen"):
            self._said.pop()
        self._said.append(words)
        self._paint()

    def close(self) -> None:
        """Leave the last page there."""
        if self._path is not None:
            model = self._path / "samples" / "model.png"
            self._sheet = model if model.is_file() else self._sheet
        self._paint(at_once=True)

    def in_place_of(self, error: Exception) -> Lines:
        """Go on in plain lines."""
        lines = Lines(looked=self.looked)
        lines.say(f"warning: the display broke ({type(error).__name__}: {error}); lines instead")
        return lines

    def _paint(self, *, at_once: bool = False) -> None:
        """Update the output if it is time to and that has not cost too much."""
        if time.monotonic() < self._due and not at_once:
            return
        from IPython.display import HTML, display

        before = time.thread_time()
        self.looked.refresh()
        content = HTML(self._html())
        if self._handle is None:
            self._handle = display(content, display_id=True)
        else:
            self._handle.update(content)
        self._cost_s = time.thread_time() - before
        self.looked.now.view_s += self._cost_s
        self._due = time.monotonic() + max(_AT_LEAST_S, self._cost_s / SHARE)

    def _html(self) -> str:
        parts = []
        if self.looked.history.cells:
            scene = self.looked.scene(self.looked.history.ended or "running")
            height = min(_HEIGHT, 14 + len(self.looked.history.cells))
            parts.append(_page(compose(scene, _WIDTH, height, UNICODE)))
        parts += [_embedded(self._sheet, "samples")] if self._sheet is not None else []
        parts += [_muted("<br>".join(escape(one) for one in self._said))]
        return "".join(parts)


def _page(lines: Iterable[Line]) -> str:
    """Return a terminal page as HTML."""

    def span(words: str, style: str) -> str:
        if style == "strong":
            return f"<b>{escape(words)}</b>"
        colour = _COLOURS.get(style)
        return f'<span style="color:{colour}">{escape(words)}</span>' if colour else escape(words)

    text = "\n".join("".join(span(*one) for one in line) for line in lines)
    return f'<pre style="line-height:1.25">{text}</pre>'


def html_of_run(run: RunRecord, state: str) -> str:
    """Return a run as HTML: what was trained, what it came to, and its pictures."""
    history = run.history
    lasts = [cell.last for cell in history.cells.values()] or [0]
    data = run.config.get("data")
    facts = {
        "state": state,
        "data": str(data.get("source", "?")) if isinstance(data, dict) else "?",
        "method": str(run.config.get("method", "?")),
        "preset": str(run.config.get("preset", "?")),
        "cells": f"{len(history.cells)}",
        "rounds": f"{min(lasts)}" if min(lasts) == max(lasts) else f"{min(lasts)} to {max(lasts)}",
        "began": "" if not history.starts else time.ctime(history.starts[0]),
    }
    failed = [cell.key for cell in history.cells.values() if cell.state == "failed"]
    if failed:
        facts["failed"] = ", ".join(failed)
    sheet = _newest_sheet(run.path)
    return "".join(
        (
            f"<b>Run</b> <code>{escape(run.path)}</code>",
            _table([], ([name, value] for name, value in facts.items() if value)),
            _embedded(sheet, "samples") if sheet is not None else "",
        )
    )


def _newest_sheet(run: Path) -> Path | None:
    model = run / "samples" / "model.png"
    if model.is_file():
        return model
    sheets = [one for one in run.glob("samples/**/*.png") if one.name != "real.png"]
    return max(sheets, key=lambda one: one.stat().st_mtime, default=None)


def html_of_samples(pictures: Picture, labels: Sequence[str]) -> str:
    """Return drawn pictures as HTML: a sheet of the first hundred, and how many of each label."""
    counts: dict[str, int] = {}
    for label in labels:
        counts[label] = counts.get(label, 0) + 1
    told = ", ".join(f"{escape(label)}: {count:,}" for label, count in list(counts.items())[:20])
    more = f" and {len(counts) - 20} labels more" if len(counts) > 20 else ""
    # Points make one drawing, however many they are.
    most = len(pictures) if is_points(pictures) else _MOST_PICTURES
    sheet = grid(pictures[:most])
    shown = f" (the first {most})" if len(pictures) > most else ""
    return _image(png_bytes(sheet, {}, viewing_scale(pictures.shape[1])), "samples") + _muted(
        f"{len(pictures):,} pictures{shown}; {told}{more}"
    )


def html_of_scores(
    protocol: Mapping[str, Any], rows: Iterable[Sequence[str]], warnings: Iterable[str]
) -> str:
    """Return an evaluation as HTML: what was compared with what, and each score."""
    subject, reference, space = (protocol[key] for key in ("subject", "reference", "space"))
    head = ("score", "value", "95 % interval", "real pictures", "")
    return "".join(
        (
            f"<b>{escape(subject['name'])}</b> ({subject['pictures']:,} pictures) against ",
            f"<b>{escape(reference['name'])}</b> ({reference['pictures']:,} pictures), ",
            f"features {escape(space['name'])}",
            *(f"<br>warning: {escape(line)}" for line in warnings),
            _table(head, rows),
        )
    )


def html_of_verdict(tree: Mapping[str, Any], figure: Path) -> str:
    """Return a verdict as HTML: its sentence, every arm's accuracy, and its figure."""

    def percent(one: Mapping[str, float]) -> str:
        return f"{100 * one['value']:.1f} [{100 * one['low']:.1f}, {100 * one['high']:.1f}]"

    rows = [
        (arm, one["title"], percent(one["accuracy"]), percent(one["mean_recall"]))
        for arm, one in tree["arms"].items()
    ]
    return "".join(
        (
            f"<b>{escape(tree['sentence'])}</b>",
            _table(("arm", "trained on", "accuracy, %", "mean recall, %"), rows),
            _embedded(figure, "the verdict's figure"),
        )
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        inside = "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells)
        return f"<tr>{inside}</tr>"

    top = f"<thead>{line(head, 'th')}</thead>" if head else ""
    return f"<table>{top}<tbody>{''.join(line(row, 'td') for row in rows)}</tbody></table>"


def _muted(html: str) -> str:
    return f'<div style="color:#888888">{html}</div>' if html else ""


def _embedded(file: Path, alt: str) -> str:
    """Return a PNG file as HTML; words where it is gone, or too large for a notebook."""
    try:
        data = file.read_bytes() if file.stat().st_size <= _MOST_BYTES else None
    except OSError:
        return ""
    return _muted(escape(file)) if data is None else _image(data, alt)


def _image(png: bytes, alt: str) -> str:
    data = base64.b64encode(png).decode("ascii")
    return f'<img alt="{escape(alt)}" src="data:image/png;base64,{data}">'


def axes(ax: Any) -> Any:
    """Return the axes that were given, else new ones; raise MachineError without matplotlib."""
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError:
        raise MachineError(
            "plot: the package matplotlib is missing; install it with `pip install matplotlib`"
        ) from None
    return pyplot.figure().add_subplot()


def plot_history(history: History, ax: Any, measure: str | None) -> Any:
    """Draw a measure of the cells over their rounds on matplotlib's axes, and return these."""
    chosen = measure or history.measure
    if chosen not in MEASURES:
        raise ConfigError(f"measure {chosen!r}: expected one of {', '.join(MEASURES)}")
    curves = {key: history.series(cell, chosen) for key, cell in history.cells.items()}
    if not any(curves.values()):
        raise ConfigError(f"measure {chosen}: this run has none; choose another")
    ax = axes(ax)
    for key, points in curves.items():
        ax.plot([at for at, _ in points], [value for _, value in points], label=key)
    ax.set_xlabel("round")
    ax.set_ylabel(MEASURES[chosen])
    if len(curves) <= _MOST_CURVES:
        ax.legend()
    return ax


def plot_scores(
    rows: Sequence[tuple[str, float, float, float, float | None]], ax: Any, title: str
) -> Any:
    """Draw scores with their intervals and what real pictures get; return matplotlib's axes."""
    ax = axes(ax)
    places = list(range(len(rows)))
    values = [row[1] for row in rows]
    spread = [[row[1] - row[2] for row in rows], [row[3] - row[1] for row in rows]]
    ax.errorbar(values, places, xerr=spread, fmt="o", label="generated, 95 % interval")
    floors = [(row[4], place) for row, place in zip(rows, places, strict=True)]
    known = [(value, place) for value, place in floors if value is not None]
    if known:
        ax.plot([one for one, _ in known], [one for _, one in known], "|", label="real pictures")
    ax.set_yticks(places, [row[0] for row in rows])
    ax.set_title(title)
    ax.legend()
    return ax
