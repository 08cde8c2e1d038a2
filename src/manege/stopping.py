"""Note signals that ask for an end, without obeying at once, so that a commit can come first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any, Self

from manege.observer import Observer

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)


class StopSignals(Observer):
    """Notes SIGINT, SIGTERM and SIGUSR2 inside `with`; a second SIGINT interrupts.

    Call it to ask: the name of the signal that came, or None. Outside the main thread, where
    Python takes no handlers, none is noted.
    """

    def __init__(self, signals: Sequence[signal.Signals] = SIGNALS) -> None:
        self._signals = signals
        self._came: str | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __call__(self) -> str | None:
        """Return the name of the signal that came; None if none did."""
        return self._came

    def should_stop(self) -> str | None:
        """Return the name of the signal that came, if one did: it stops the run."""
        return self._came

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._came == "SIGINT" and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._came = signal.Signals(number).name
