"""Two ends that write to each other, over a channel or over MPI; run by test_messages.py.

python -m tests.helpers.correspondents channel DESCRIPTOR 0|1
mpiexec -n 2 python -m tests.helpers.correspondents mpi exchange|unexpected
"""

from __future__ import annotations

import math
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from manege.runtime import channel, launch, mpi
from manege.runtime.channel import Channel
from manege.runtime.slots import CentreSlot, stated_lengths

CORRESPONDENTS = 300
LARGEST = 5 << 20
"""Bytes of a centre of the papers' networks, roughly."""
_END_S = 60.0


class End(Protocol):
    """One of two."""

    cap: int

    def send(self, message: dict[str, Any]) -> None: ...

    def show(self, array: np.ndarray) -> None: ...

    def come(self) -> Iterator[dict[str, Any] | np.ndarray]: ...


class ChannelEnd:
    """As trainers and the coordinator of one machine have it: arrays stay in shared memory."""

    cap = channel.CAP

    def __init__(self, descriptor: int) -> None:
        self._channel = Channel(socket.socket(fileno=descriptor))

    def send(self, message: dict[str, Any]) -> None:
        self._channel.send(message)

    def show(self, array: np.ndarray) -> None:
        slot = CentreSlot.create((("f", len(array)),))
        slot.write(1, [array])
        self._channel.send({"is": "slot"}, [slot.fileno()])
        slot.close()

    def come(self) -> Iterator[dict[str, Any] | np.ndarray]:
        self._channel.wait(0.01)
        for message, files in self._channel.receive():
            if files:
                slot = CentreSlot.attach(files[0], stated_lengths(files[0]))
                yield slot.read(1)[0].copy()
                slot.close()
                os.close(files[0])
            else:
                yield message


class RankEnd:
    """As ranks have it."""

    cap = mpi.CAP

    def __init__(self) -> None:
        self.world = mpi.join(launch.rank_info(os.environ))
        self.world.expect(4 * LARGEST)

    def send(self, message: dict[str, Any]) -> None:
        self.world.post(1 - self.world.rank, message)

    def show(self, array: np.ndarray) -> None:
        self.world.post_bytes(1 - self.world.rank, array.view(np.uint8))

    def come(self) -> Iterator[dict[str, Any] | np.ndarray]:
        for letter in self.world.poll():
            content = letter.content
            yield content.view(np.float32) if isinstance(content, np.ndarray) else content
        time.sleep(0.001)


def letters(seed: int) -> Iterator[dict[str, Any] | np.ndarray]:
    """What one end writes, known to the other: words of all lengths, now and then an array."""
    rng = np.random.default_rng(seed)
    for number in range(CORRESPONDENTS):
        if number % 20 == 7:
            length = LARGEST // 4 if number % 40 == 7 else int(rng.integers(1, 1000))
            yield rng.random(length, dtype=np.float32)
        else:
            word = "ü" * int(2 ** rng.uniform(0, 14))
            yield {"is": "word", "number": number, "word": word, "half": number / 2}


def exchange(end: End, mine: int) -> None:
    """Everything comes once, in order and unchanged, in both directions at the same time."""
    to_send = deque(letters(mine))
    for awaited in letters(1 - mine):
        for _ in range(min(3, len(to_send))):
            _send(end, to_send.popleft())
        _check(_next(end), awaited)
    while to_send:
        _send(end, to_send.popleft())


def refusals(end: End) -> None:
    """What is too long is not sent, and what is no number is nothing."""
    try:
        end.send({"is": "x" * (end.cap + 1)})
    except ValueError:
        pass
    else:
        raise AssertionError("a letter above the cap was sent")
    end.send({"is": "odd", "values": [math.nan, math.inf, 1.5]})
    _check(_next(end), {"is": "odd", "values": [None, None, 1.5]})


def unexpected(end: RankEnd) -> None:
    """An array larger than was expected is refused before memory is taken for it."""
    if end.world.rank == 0:
        end.show(np.zeros(LARGEST + 1, np.float32))
    _next(end)


_waiting: deque[dict[str, Any] | np.ndarray] = deque()


def _next(end: End) -> dict[str, Any] | np.ndarray:
    deadline = time.monotonic() + _END_S
    while not _waiting:
        assert time.monotonic() < deadline, "nothing more came"
        _waiting.extend(end.come())
    return _waiting.popleft()


def _send(end: End, content: dict[str, Any] | np.ndarray) -> None:
    if isinstance(content, np.ndarray):
        end.show(content)
    else:
        end.send(content)


def _check(found: object, awaited: object) -> None:
    if isinstance(awaited, np.ndarray):
        assert isinstance(found, np.ndarray)
        assert np.array_equal(found, awaited)
    else:
        assert found == awaited


def main() -> None:
    if sys.argv[1] == "channel":
        end: End = ChannelEnd(int(sys.argv[2]))
        exchange(end, int(sys.argv[3]))
        refusals(end)
        return
    ranks = RankEnd()
    try:
        if sys.argv[2] == "unexpected":
            unexpected(ranks)
        exchange(ranks, ranks.world.rank)
        refusals(ranks)
    except BaseException as error:
        sys.stderr.write(f"rank {ranks.world.rank}: {error!r}\n")
        ranks.world.abort(1)
    ranks.world.leave(0)


if __name__ == "__main__":
    main()
