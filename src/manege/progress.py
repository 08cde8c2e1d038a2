"""What `train` and `resume` show while they work: bars on a terminal, plain lines elsewhere.

Watchers of the trainer; they write to standard error, so that standard output is free for the
result. No torch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from manege.runtime.orders import Place

_LINE_EVERY_S = 5.0
_COUNT_EVERY_S = 0.5


def for_this_terminal() -> Bars | Lines:
    """Bars when standard error is a terminal, else plain lines."""
    return Bars() if sys.stderr.isatty() else Lines()


def counter(verb: str) -> Callable[[int, int], None] | None:
    """`drawn 3,200 of 10,000 pictures, 12s left` on a terminal; None, for silence, elsewhere."""
    if not sys.stderr.isatty():
        return None
    started = last = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < _COUNT_EVERY_S and not (done == total and last > started):
            return
        last = now
        left = duration((now - started) / done * (total - done))
        sys.stderr.write(f"\r{verb} {done:,} of {total:,} pictures, {left} left  ")
        if done == total:
            sys.stderr.write("\n")

    return show


class Estimate:
    """Time left of the whole run, from how fast the fraction done has grown since the start."""

    def __init__(self) -> None:
        self._cells: dict[str, float] = {}
        self._started = time.monotonic()
        self._at_start: float | None = None

    def begin(self, cells: list[str]) -> None:
        """These cells make the run."""
        self._cells = dict.fromkeys(cells, 0.0)
        self._started = time.monotonic()

    def update(self, cell: str, fraction: float) -> None:
        """A cell has come so far."""
        if self._at_start is None:
            self._at_start = self.overall
        self._cells[cell] = fraction

    @property
    def overall(self) -> float:
        """The part of the run that is done."""
        return sum(self._cells.values()) / max(1, len(self._cells))

    def left(self) -> str:
        """Time left, in words, or `?` before there is anything to judge by."""
        gained = self.overall - (self._at_start or 0.0)
        elapsed = time.monotonic() - self._started
        if gained <= 0 or elapsed < 1:
            return "?"
        return duration((1 - self.overall) * elapsed / gained)


def duration(seconds: float) -> str:
    """`45s`, `12m05s`, `3h20m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def _losses(event: dict[str, Any]) -> str:
    parts = [
        f"{name[0].upper()} {value:.3f}" if value is not None else f"{name[0].upper()} -"
        for name, value in sorted(event["losses"].items())
    ]
    rate = event["images_per_s"]
    return " ".join(parts) + (f"  {rate:,.0f} images/s" if rate else "")


def _score(event: dict[str, Any]) -> str:
    told = [
        f"{name} {one['value']:.5g}" if one["value"] is not None else f"{name} -"
        for name, one in event["scores"].items()
    ]
    best = event["best"]
    ever = f"; best {best['value']:.5g} in round {best['round']}" if best else ""
    return f"round {event['round']}, {event['metric']}: {', '.join(told)}{ever}"


def _important(event: dict[str, Any]) -> str | None:
    """The one line an event deserves, if any."""
    match event["event"]:
        case "warning":
            return f"warning: {event['message']}"
        case "rollback":
            return f"{event['cell']}: round {event['round']} again: {event['reason']}"
        case "score":
            return f"{event['cell']}: {_score(event)}"
        case "cell_failed":
            return f"{event['cell']}: FAILED: {event['reason']}"
        case "cell_finished":
            return (
                f"{event['cell']}: done, {event['round']} rounds "
                f"({'budget used up' if event['reason'] == 'budget' else 'all'}) "
                f"in {duration(event['spent_s'])}"
            )
        case "run_stopped":
            return f"stopping on {event['reason']}: everything is saved"
        case _:
            return None


class Lines:
    """Plain lines, no control characters: fit for a log file."""

    def __init__(self) -> None:
        self._estimate = Estimate()
        self._last_line = 0.0
        self._latest: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        sys.stderr.flush()

    def say(self, text: str) -> None:
        """One line."""
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def event(self, event: dict[str, Any]) -> None:
        """See a line of events.jsonl."""
        if event["event"] == "run_started":
            self._estimate.begin(event["cells"])
        elif event["event"] == "round":
            self._latest[event["cell"]] = _losses(event)
        if line := _important(event):
            self.say(line)

    def step(self, cell: str, place: Place, fraction: float) -> None:
        """See a step; speak every few seconds."""
        self._estimate.update(cell, fraction)
        now = time.monotonic()
        if now - self._last_line < _LINE_EVERY_S:
            return
        self._last_line = now
        self.say(
            f"{cell}: round {place.round_} step {place.step}/{place.steps} ({fraction:.0%})  "
            f"{self._latest.get(cell, '')}  whole run {self._estimate.overall:.0%}, "
            f"{self._estimate.left()} left"
        )


class Bars:
    """A bar for the class in training and one for the whole run, with losses, speed, time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=Console(stderr=True),
            refresh_per_second=4,
            transient=False,
        )
        self._estimate = Estimate()
        self._tasks: dict[str, Any] = {}
        self._whole: Any = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """One line above the bars."""
        self._progress.console.print(text, markup=False, highlight=False)

    def event(self, event: dict[str, Any]) -> None:
        """See a line of events.jsonl."""
        kind, cell = event["event"], event.get("cell")
        if kind == "run_started":
            self._estimate.begin(event["cells"])
            self._whole = self._progress.add_task("whole run", total=1.0, note="")
        elif kind == "cell_started" and str(cell) not in self._tasks:
            self._tasks[str(cell)] = self._progress.add_task(str(cell), total=1.0, note="")
        elif kind == "round":
            note = f"round {event['round']}  {_losses(event)}"
            self._progress.update(self._tasks[str(cell)], note=note)
        elif kind in ("cell_finished", "cell_failed"):
            # Its line stays; the bar makes room for the next.
            self._progress.remove_task(self._tasks.pop(str(cell)))
        if line := _important(event):
            self.say(line)

    def step(self, cell: str, place: Place, fraction: float) -> None:
        """See a step."""
        self._estimate.update(cell, fraction)
        self._progress.update(self._tasks[cell], completed=fraction)
        self._progress.update(
            self._whole, completed=self._estimate.overall, note=f"{self._estimate.left()} left"
        )
