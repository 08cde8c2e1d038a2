"""The first code that a worker server's process runs, before torch is imported.

    python -m manege.runtime.boot MODULE ARGUMENT…

Loads the module and calls its `main`. An interrupt while loading ends the process silently: it is
Ctrl-C, which reaches the command too, or OpenBLAS, which interrupts its own process when it
cannot start its threads. Imports nothing that starts threads.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from manege.errors import EXIT_STOPPED, MachineError
from manege.processes import check_threads

NO_ROOM = 71
"""The exit code of a server that could not start its threads."""


def main() -> None:
    """Load the module that was named and run it."""
    try:
        module = import_module(sys.argv.pop(1))
    except KeyboardInterrupt:
        os._exit(_why_interrupted())
    module.main()


def _why_interrupted() -> int:
    try:
        check_threads(1)
    except MachineError:
        return NO_ROOM
    return EXIT_STOPPED


if __name__ == "__main__":
    main()
