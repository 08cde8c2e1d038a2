"""The head of a report: title, state and facts of a run."""

from __future__ import annotations

import shlex
import time

from manege.progress import duration
from manege.report.drawing import escape
from manege.report.history import History
from manege.report.records import number
from manege.report.run import RunRecord

STATES = {
    "finished": "finished",
    "running": "still going on",
    "stopped": "stopped, resumable",
    "interrupted": "interrupted",
    "failed": "finished, with failures",
    "new": "not begun",
    "unknown": "state unknown",
}


def head(run: RunRecord) -> list[str]:
    """Return title, state, facts and notes as HTML."""
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


def _state_note(run: RunRecord) -> str | None:
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


def _form(run: RunRecord) -> str:
    if run.is_points:
        return ", points in the plane"
    if run.size is None:
        return ""
    return f", {run.size}×{run.size} {'grey' if run.data.get('channels') == 1 else 'colour'}"


def length(run: RunRecord) -> str:
    """Return how long the run is meant to be, in words."""
    rounds, budget = run.config.get("rounds"), number(run.config.get("budget_s"))
    parts = [f"{rounds} rounds"] if rounds else []
    if budget:
        clock = "CPU time" if run.config.get("budget_clock") == "cpu" else "training"
        parts.append(f"{duration(budget)} of {clock}")
    return " or ".join(parts) or "?"


def _rounds_done(history: History) -> str:
    lasts = sorted(cell.last for cell in history.cells.values())
    if not lasts:
        return "0"
    span = f"{lasts[0]}" if lasts[0] == lasts[-1] else f"{lasts[0]} to {lasts[-1]}"
    if len(lasts) == 1:
        return span
    return f"{span} in each of {len(lasts)} {'cells' if history.on_grid else 'classes'}"
