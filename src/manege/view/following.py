"""`manege watch`: show the same page for a run of another process, or of another machine.

Reads the run directory and nothing else; opening and closing it leaves no trace.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from manege.report.events import Tail
from manege.report.run import RunRecord
from manege.runs import check_run
from manege.view.lines import Lines
from manege.view.page import Line, compose, text_of
from manege.view.scene import Now, Scene, read_live
from manege.view.state import Looked
from manege.view.terminal import Keys, Suspending, TerminalScreen

EVERY_S = 1.0
KEYS = "q close (the run goes on)"
_NEW_S = 60.0
"""The age up to which a new run may still be about to begin."""
_STALE_S = 15.0


class Followed:
    """A run directory that is read again and again, each time only what is new."""

    def __init__(self, path: Path) -> None:
        check_run(path)
        self.path = path
        self.looked = Looked()
        self.looked.opened(path, pulse=False)
        self.tail = Tail(path / "events.jsonl")
        self._run = RunRecord(path, self.looked.history)

    def refresh(self) -> list[dict[str, Any]]:
        """Read what is new, and return the new events."""
        fresh = list(self.tail.read())
        for event in fresh:
            with suppress(KeyError, TypeError, ValueError, AttributeError):
                self.looked.event(event)
        with suppress(OSError, ValueError):
            status = json.loads((self.path / "status.json").read_text(encoding="utf-8"))
            self._run.status = status if isinstance(status, dict) else {}
        self._live()
        return fresh

    def _live(self) -> None:
        found = read_live(self.path)
        if found is None:
            self.looked.now = Now()
            return
        now, t = found
        age = max(0.0, time.time() - t)
        if age > _STALE_S:
            # What was going on when it was written goes on no more.
            now.places, now.left = {}, None
        if now.heartbeat_s is not None:
            now.heartbeat_s += age if age > 2 * EVERY_S else 0.0
        self.looked.now = now

    @property
    def state(self) -> str:
        """The run's state, as a report gives it."""
        return self._run.state

    def about_to_begin(self) -> bool:
        """Return whether the run was made just now."""
        try:
            return time.time() - (self.path / "config.yaml").stat().st_mtime < _NEW_S
        except OSError:
            return False

    @property
    def going_on(self) -> bool:
        """Whether the run goes on, or may be about to begin."""
        return self.state == "running" or (self.state == "new" and self.about_to_begin())

    def scene(self, keys: str = "") -> Scene:
        """Return what a page shows of the run."""
        scene = self.looked.scene(self.state, keys)
        if self.looked.damage:
            scene.messages.append(self.looked.damage)
        if self.tail.damaged:
            scene.messages.append(
                f"{len(self.tail.damaged)} damaged lines of events.jsonl left out"
            )
        return scene

    def page(self, width: int, height: int, keys: str = "", **signs: Any) -> list[Line]:
        """Return the lines of the page."""
        return compose(self.scene(keys), width, height, **signs)


def once(path: Path, width: int, height: int) -> str:
    """Return the page as it is now, as plain text."""
    followed = Followed(path)
    followed.refresh()
    return text_of(followed.page(width, height))


def watch(path: Path) -> None:
    """Show the page until the run ends or somebody closes it; the last page stays visible."""
    followed = Followed(path)
    screen = TerminalScreen(sys.stdout)
    try:
        with Keys() as keys, Suspending(screen, keys):
            while True:
                began = time.thread_time()
                followed.refresh()
                if not followed.going_on:
                    break
                width, height = screen.size
                words = KEYS if keys.listening else "Ctrl-C closes (the run goes on)"
                screen.paint(followed.page(width, height, words, signs=screen.signs))
                cost = time.thread_time() - began
                if _closed(keys, max(EVERY_S, cost / 0.05)):
                    break
    except KeyboardInterrupt:
        pass
    finally:
        screen.leave()
    width, _ = screen.size
    height = min(40, 14 + len(followed.looked.history.cells))
    screen.show(followed.page(width, height, signs=screen.signs))


def _closed(keys: Keys, wait_s: float) -> bool:
    """Wait, and return whether somebody asked to close the page meanwhile."""
    end = time.monotonic() + wait_s
    while (left := end - time.monotonic()) > 0:
        if not keys.listening:
            time.sleep(left)
            return False
        if "q" in keys.pressed(left).lower():
            return True
    return False


def follow(path: Path) -> None:
    """Write plain lines to standard output, one a round, until the run ends."""
    followed = Followed(path)
    lines = Lines(sys.stdout, followed.looked, own=False)
    first, told = True, False
    while True:
        fresh = followed.refresh()
        for event in [] if first else fresh:
            lines.tell(event)
        if first:
            lines.say(_where(followed))
            first = False
        if not followed.going_on:
            break
        time.sleep(EVERY_S)
        told = True
    if told:
        lines.say(_where(followed))


def _where(followed: Followed) -> str:
    history = followed.looked.history
    lasts = [cell.last for cell in history.cells.values()] or [0]
    part = followed.looked.now.overall(history)
    done = "" if part is None else f", {part:.0%} done"
    return f"{followed.looked.name}: {followed.state}, rounds {min(lasts)} to {max(lasts)}{done}"
