"""A pseudo-terminal of a given size, what was painted on it, and keys pressed there."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Shown:
    """What a command wrote on a terminal."""

    def __init__(self, text: str, code: int) -> None:
        self.text, self.code = text, code

    @property
    def pages(self) -> list[str]:
        """Each painting, without its controls."""
        painted = self.text.split("\x1b[?1049l", 1)[0].split("\x1b[H")[1:]
        return [CONTROL.sub("", page).replace("\r", "") for page in painted]

    @property
    def left(self) -> str:
        """What stays when the page has gone."""
        return CONTROL.sub("", self.text.rsplit("\x1b[?1049l", 1)[-1]).replace("\r", "")


def on_terminal(
    words: Sequence[str | Path],
    *,
    cwd: Path,
    columns: int,
    rows: int,
    press: Callable[[str], str] = lambda text: "",
    env: dict[str, str] | None = None,
    program: Sequence[str] = (sys.executable, "-m", "manege"),
    timeout_s: float = 240.0,
) -> Shown:
    """The command on a terminal of its own; `press` is shown all that was written, and answers."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", _OWN_TERMINAL, *program, *map(str, words)],
        cwd=cwd,
        env={**os.environ, "TERM": "xterm-256color", **(env or {})},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    seen, end = b"", time.monotonic() + timeout_s
    try:
        while time.monotonic() < end:
            ready, _, _ = select.select([ours], [], [], 0.1)
            if ready:
                try:
                    chunk = os.read(ours, 65536)
                except OSError:  # So Linux answers when the last writer has gone.
                    break
                seen += chunk
            if keys := press(seen.decode(errors="replace")):
                os.write(ours, keys.encode())
        code = process.wait(60)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)
    return Shown(seen.decode(errors="replace"), code)


# The session's leader takes the terminal, as a shell would for it; then the command.
_OWN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
