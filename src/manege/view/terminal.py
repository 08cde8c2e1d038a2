"""The terminal: its size, its colours, a screen that is painted over, keys without Enter.

Whatever happens, it is left as it was found.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self, TextIO

from manege.view.page import ASCII, UNICODE, Line, Signs

_COLOURS = {
    "running": "38;5;39",
    "finished": "38;5;36",
    "failed": "1;38;5;208",
    "again": "38;5;177",
    "stopped": "38;5;178",
    "waiting": "38;5;245",
    "dim": "38;5;245",
    "strong": "1",
}
"""Colours from Okabe's and Ito's palette, which everybody can tell apart; signs say the same."""


def can_paint(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that can be painted over."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def in_colour() -> bool:
    """Return whether colours may be used: nobody set NO_COLOR."""
    return not os.environ.get("NO_COLOR")


def in_foreground(file: int) -> bool | None:
    """Return whether we are in the terminal's foreground; None where it has no job control."""
    try:
        return os.tcgetpgrp(file) == os.getpgrp()
    except OSError:
        return None


def signs_of(stream: TextIO) -> Signs:
    """Return the signs that the stream's encoding can show."""
    encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "")
    return UNICODE if encoding.startswith("utf") else ASCII


def painted(lines: Sequence[Line], *, colour: bool) -> str:
    """Return the lines with their styles as the terminal's escape sequences."""
    return "\n".join(
        "".join(_span(words, style, colour=colour) for words, style in line) for line in lines
    )


def _span(words: str, style: str, *, colour: bool) -> str:
    code = _COLOURS.get(style) if colour else None
    return f"\x1b[{code}m{words}\x1b[0m" if code else words


class TerminalScreen:
    """A page on the terminal's alternate screen, painted over again and again."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._colour = in_colour()
        self.signs = signs_of(stream)
        self._on = False
        self._last = ""

    @property
    def size(self) -> tuple[int, int]:
        """The terminal's columns and rows."""
        try:
            found = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):
            return 80, 24
        return max(20, found.columns), max(8, found.lines)

    def paint(self, lines: Sequence[Line]) -> None:
        """Replace the page by these lines; does nothing while we are in the background."""
        if in_foreground(self._stream.fileno()) is False:
            return
        text = painted(lines, colour=self._colour)
        if text == self._last and self._on:
            return
        self._last = text
        start = "" if self._on else "\x1b[?1049h\x1b[?25l\x1b[2J"
        self._on = True
        body = text.replace("\n", "\x1b[K\r\n")
        self._stream.write(f"{start}\x1b[H{body}\x1b[K\x1b[J")
        self._stream.flush()

    def leave(self) -> None:
        """Return to the screen that was there before."""
        if self._on:
            self._on = False
            # A signal may have come in the middle of a painting: then nothing can be written.
            with suppress(OSError, ValueError, RuntimeError):
                self._stream.write("\x1b[?25h\x1b[?1049l")
                self._stream.flush()

    def show(self, lines: Sequence[Line]) -> None:
        """Write lines that stay."""
        if lines:
            self._stream.write(painted(lines, colour=self._colour) + "\n")
            self._stream.flush()


class Keys:
    """Reads keys as they are pressed, without Enter and without an echo; Ctrl-C stays a signal."""

    def __init__(self) -> None:
        self._before: Any = None
        self._file: int | None = None

    def __enter__(self) -> Self:
        with suppress(OSError, ValueError, ImportError):
            import termios
            import tty

            file = sys.stdin.fileno()
            if self._file is None and os.isatty(file) and in_foreground(file):
                self._before = termios.tcgetattr(file)
                tty.setcbreak(file, termios.TCSANOW)
                # Keys pressed before there was a page were meant for nobody.
                termios.tcflush(file, termios.TCIFLUSH)
                self._file = file
        return self

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            import termios

            with suppress(OSError, termios.error):
                termios.tcsetattr(self._file, termios.TCSANOW, self._before)
            self._file = None

    @property
    def listening(self) -> bool:
        """Whether keys can be read at all."""
        return self._file is not None

    def pressed(self, wait_s: float = 0.0) -> str:
        """Return the keys pressed since the last call, after waiting at most `wait_s` for one."""
        if self._file is None:
            return ""
        try:
            if not in_foreground(self._file):
                return ""
            ready, _, _ = select.select([self._file], [], [], wait_s)
            data = os.read(self._file, 64) if ready else b""
        except OSError:
            return ""
        if ready and not data:
            self._file = None  # The terminal has gone.
        return data.decode("ascii", "ignore")


class Suspending:
    """Ctrl-Z gives the terminal back before the command stops; `fg` takes it again."""

    def __init__(self, screen: TerminalScreen, keys: Keys) -> None:
        self._screen, self._keys = screen, keys
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number, act in ((signal.SIGTSTP, self._stop), (signal.SIGCONT, self._go_on)):
                self._before[number] = signal.signal(number, act)
        return self

    def __exit__(self, *exc: object) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def _stop(self, number: int, frame: object) -> None:
        self._keys.__exit__()
        self._screen.leave()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _go_on(self, number: int, frame: object) -> None:
        signal.signal(signal.SIGTSTP, self._stop)
        self._keys.__enter__()
