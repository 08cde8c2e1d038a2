"""Write the command line's reference from its own help: `python scripts/write_cli_docs.py FILE`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

COMMANDS = (
    (),
    ("train",),
    ("resume",),
    ("sample",),
    ("export",),
    ("verdict",),
    ("evaluate",),
    ("compare",),
    ("sweep",),
    ("watch",),
    ("report",),
    ("model",),
    ("model", "show"),
    ("model", "merge"),
    ("model", "drop"),
    ("data",),
    ("data", "list"),
    ("data", "check"),
    ("bench",),
    ("bench", "scaling"),
    ("slurm",),
)


def page() -> str:
    """The whole page."""
    parts = [
        "# The command line\n",
        "Made by `make docs` from the command's own `--help`; a test keeps it fresh.\n",
        "Exit codes: 0 fine · 2 bad input · 3 the machine (disk, permissions, device) · 4 a class "
        "failed, the others are in the model · 75 stopped and saved, `manege resume` goes on.\n",
    ]
    for command in COMMANDS:
        name = " ".join(("manege", *command))
        parts.append(f"## `{name}`\n\n```text\n{_help(command).strip()}\n```\n")
    return "\n".join(parts)


def _help(command: tuple[str, ...]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "manege", *command, "--help"],
        env={**os.environ, "COLUMNS": "96", "TERMINAL_WIDTH": "96", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.replace("python -m manege", "manege")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
