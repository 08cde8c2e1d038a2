"""The inline runtime: coordinator and host in one process, messages by calling."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from manege import device
from manege.config import RunConfig
from manege.data import Dataset
from manege.rundir import RunDir
from manege.runtime.coordinator import Coordinator
from manege.runtime.desk import RunDesk
from manege.runtime.orders import Order, Outcome, Send, Watcher
from manege.runtime.screen import Nobody, Screen
from manege.trainer.binding import bound_method, task_of
from manege.trainer.host import Host

_HOST = 1
_PAUSED_S = 0.1


def run(
    config: RunConfig,
    rundir: RunDir,
    dataset: Dataset,
    *,
    watcher: Watcher,
    stop: Callable[[], str | None],
    screen: Screen | None = None,
) -> Outcome:
    """Train every cell that is not done yet, then write the combined model.

    Args:
        config: the run's configuration, size and channels resolved.
        rundir: started, so that nobody else writes there.
        dataset: opened with the same configuration.
        watcher: sees every event and step.
        stop: asked after every step; the name of a signal, or None to go on.
        screen: somebody who looks on and may ask for something.
    """
    device.keep_memory()
    with device.threads(config.threads_per_cell):
        return _Inline(config, rundir, dataset, watcher).run(stop, screen or Nobody())


class _Inline:
    def __init__(
        self, config: RunConfig, rundir: RunDir, dataset: Dataset, watcher: Watcher
    ) -> None:
        on = device.place(config.device, 0, device.gpus_for(config.device))
        bound = bound_method(config, dataset, rundir, on)
        self._coordinator = Coordinator(
            task_of(bound),
            RunDesk(rundir, config.identity()),
            watcher,
            rundir.status().get("cells", {}),
            hosts=1,
        )
        self._host = Host(
            bound,
            rundir,
            self._hear,
            mark=f"{rundir.incarnation}.{_HOST}",
            listen=self._listen,
            tell_every_s=0.0,
        )
        self._orders: deque[Order] = deque()

    def run(self, stop: Callable[[], str | None], screen: Screen) -> Outcome:
        """Until the run has ended."""
        coordinator, stopping = self._coordinator, False
        self._orders += coordinator.begin(time.monotonic())
        while coordinator.outcome is None:
            if self._orders:
                self._deliver()
                continue
            if not self._host.work():
                assert coordinator.paused, "nothing is left to do, and the run has not ended"
                time.sleep(_PAUSED_S)
            screen.look(1, 0.0, paused=coordinator.paused)
            for wish in screen.wishes():
                self._orders += coordinator.wish(wish, time.monotonic())
            if not stopping and (stopped_by := stop()):
                stopping = True
                # Before what it was told last, which may be to finish.
                self._orders.extendleft(reversed(coordinator.stop(stopped_by, time.monotonic())))
        return coordinator.outcome

    def _deliver(self) -> None:
        while self._orders:
            order = self._orders.popleft()
            if isinstance(order, Send):
                self._host.handle(order.message)

    def _hear(self, message: dict[str, Any], files: tuple[int, ...]) -> None:
        self._orders += self._coordinator.heard(_HOST, message, files, time.monotonic())

    def _listen(self) -> None:
        """In the middle of a commit: what else there is to do comes after it."""
        adopted = [one for one in self._orders if isinstance(one, Send) and _is_adopted(one)]
        assert adopted, "a host waits for what nobody will say"
        for order in adopted:
            self._orders.remove(order)
            self._host.handle(order.message)


def _is_adopted(order: Send) -> bool:
    return bool(order.message["is"] == "adopted")
