"""Measure what cells' centres cost between ranks: a rank for each cell, all in this process.

Slots, packets and mirrors are those of the MPI runtime; only the transport between ranks is ours,
and it counts. What the ranks say to the coordinator is not in it.
"""

from __future__ import annotations

import json
import os
import resource
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from manege import machine
from manege.errors import MachineError
from manege.runtime.messages import (
    CentreShown,
    Follow,
    SlotFilled,
    SlotHolds,
    SlotShown,
    Unfollow,
    decode,
)
from manege.runtime.mirrors import Mirrors, Shown
from manege.runtime.slots import CentreSlot, Lengths, payload_bytes
from manege.topology import torus

GRIDS = ((3, 3), (4, 4), (8, 8), (16, 16))
"""Torus sizes, from the smallest on which every cell hears four others."""
MEMORY = 1 << 30
"""Bytes that all slots and mirrors may take; longer centres are shortened."""
_ROUNDS = 3
_SLOTS_PER_CELL = 5
"""A cell's own slot, and its mirrors at four neighbours."""
_FILES_PER_CELL = 4 + 4 * 2
"""Its slot is open in its worker and its rank, a mirror once, and each is mapped as well."""


@dataclass(frozen=True)
class Traffic:
    """Traffic on one grid; each number is the same for every cell and round."""

    grid: str
    cells: int
    centre_bytes: int
    letters: int
    """Messages that a cell's centre causes in a round."""
    sent_bytes: int
    all_gather_bytes: int
    """Bytes a cell would send to show its centre to all others by an all-gather; computed."""


class _Rank:
    """A rank with one cell that counts the messages it sends to others."""

    def __init__(self, ranks: dict[int, _Rank], rank: int, size: int, centre: Lengths) -> None:
        self.letters = self.sent_bytes = 0
        self.files: dict[str, int] = {}
        """Files in which the centres of other cells are found."""
        self.told: dict[str, int] = {}
        """The last round of each other cell's centre that arrived."""
        self.slot = CentreSlot.create(centre)
        self._ranks, self._rank = ranks, rank
        self._arrived: deque[tuple[int, dict[str, Any] | np.ndarray]] = deque()
        self._largest = 0
        self.shown = Shown(self, rank, size)
        self.mirrors = Mirrors(self, size, self._give)

    def post(self, rank: int, message: Mapping[str, Any]) -> None:
        text = json.dumps(message, separators=(",", ":"))
        self._sends(len(text))
        self._ranks[rank]._arrived.append((self._rank, json.loads(text)))

    def post_bytes(self, rank: int, buffer: np.ndarray) -> None:
        self._sends(buffer.nbytes)
        self._ranks[rank]._arrived.append((self._rank, buffer))

    def expect(self, num_bytes: int) -> None:
        self._largest = max(self._largest, num_bytes)

    def read(self) -> bool:
        """Do what messages say, and return whether there were any."""
        found = bool(self._arrived)
        while self._arrived:
            rank, content = self._arrived.popleft()
            if isinstance(content, np.ndarray):
                assert content.nbytes <= self._largest, "more than was expected"
                self.mirrors.fill(content)
            else:
                self._obey(rank, content)
        return found

    def close(self) -> None:
        self.mirrors.look_away(self._rank)
        self.slot.close()

    def _obey(self, rank: int, message: dict[str, Any]) -> None:
        match decode(message):
            case Follow(slot):
                self.shown.follow(slot, rank)
            case Unfollow(slot):
                self.shown.unfollow(slot, rank)
            case SlotHolds(slot, lengths):
                self.mirrors.hold(slot, lengths)
            case SlotFilled(slot):
                self.mirrors.filled(slot)

    def _sends(self, num_bytes: int) -> None:
        self.letters += 1
        self.sent_bytes += num_bytes

    def _give(self, host: int, message: Any, files: tuple[int, ...]) -> None:
        if files:
            self.files[message.cell] = files[0]
        else:
            self.told[message.cell] = message.round


def measure_traffic(centre: Lengths, grid: tuple[int, int]) -> Traffic:
    """Send centres of those lengths round a torus, read each where it arrived, and count."""
    rows, columns = grid
    cells = [f"{row}-{column}" for row in range(rows) for column in range(columns)]
    neighbours = torus(cells, columns).neighbours
    homes = {cell: number for number, cell in enumerate(cells, 1)}
    ranks: dict[int, _Rank] = {}
    try:
        for number in homes.values():
            ranks[number] = _Rank(ranks, number, len(cells) + 1, centre)
        _introduce(ranks, homes, neighbours, centre)
        counted = set()
        for round_ in range(1, _ROUNDS + 1):
            before = {n: (rank.letters, rank.sent_bytes) for n, rank in ranks.items()}
            _exchange(ranks, homes, neighbours, centre, round_)
            counted |= {
                (rank.letters - before[n][0], rank.sent_bytes - before[n][1])
                for n, rank in ranks.items()
            }
    finally:
        for rank in ranks.values():
            rank.close()
        _deliver(ranks)
        for number, rank in ranks.items():
            rank.shown.forget(_number_of(number, len(cells) + 1))
    if len(counted) != 1:
        raise MachineError(f"{rows}x{columns}: cells' traffic differs: {sorted(counted)}")
    ((letters, sent_bytes),) = counted
    size = payload_bytes(centre)
    return Traffic(
        f"{rows}x{columns}", len(cells), size, letters, sent_bytes, (len(cells) - 1) * size
    )


def shortened(centre: Lengths, cells: int) -> Lengths:
    """Halve the lengths until all slots and mirrors of so many cells fit into memory."""
    places = 2 * _SLOTS_PER_CELL * cells
    factor = 1
    while payload_bytes(_divided(centre, factor)) * places > MEMORY and factor < MEMORY:
        factor *= 2
    return _divided(centre, factor)


def check_files(grids: Sequence[tuple[int, int]] = GRIDS) -> None:
    """Raise MachineError when so many slots cannot be open at once."""
    machine.allow_many_files()
    needed = _FILES_PER_CELL * max(rows * columns for rows, columns in grids)
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != resource.RLIM_INFINITY and allowed < needed:
        raise MachineError(
            f"the cells' traffic takes {needed:,} open files, and {allowed:,} are allowed; raise "
            "the hard limit (ulimit -Hn)"
        )


def _divided(centre: Lengths, factor: int) -> Lengths:
    return tuple((kind, max(1, length // factor)) for kind, length in centre)


def _number_of(rank: int, size: int) -> int:
    """Return the number of a rank's only slot, as `Shown.add` gives it."""
    return size + rank


def _introduce(
    ranks: Mapping[int, _Rank],
    homes: Mapping[str, int],
    neighbours: Mapping[str, tuple[str, ...]],
    centre: Lengths,
) -> None:
    """Have every cell show its untrained centre, and follow its neighbours'."""
    numbers = {}
    for cell, home in homes.items():
        ranks[home].slot.write(0, _arrays(centre, home, 0))
        numbers[cell] = ranks[home].shown.add(home, cell, os.dup(ranks[home].slot.fileno()))
    for cell, home in homes.items():
        for other in neighbours[cell]:
            ranks[home].mirrors.tell(home, SlotShown(other), numbers[other])
    _deliver(ranks)


def _exchange(
    ranks: Mapping[int, _Rank],
    homes: Mapping[str, int],
    neighbours: Mapping[str, tuple[str, ...]],
    centre: Lengths,
    round_: int,
) -> None:
    """Have every cell show a round's centre, and read its neighbours'."""
    for cell, home in homes.items():
        ranks[home].slot.write(round_, _arrays(centre, home, round_))
        ranks[home].shown.shows(home, cell, round_)
    for cell, home in homes.items():
        for other in neighbours[cell]:
            message = CentreShown(other, round_)
            ranks[home].mirrors.tell(home, message)
    _deliver(ranks)
    for cell, home in homes.items():
        for other in neighbours[cell]:
            _check_came(ranks[home], other, round_, _arrays(centre, homes[other], round_), centre)


def _deliver(ranks: Mapping[int, _Rank]) -> None:
    """Deliver messages until there are none."""
    # A list: all of them read, also when the first had something.
    while any([rank.read() for rank in ranks.values()]):
        pass


def _check_came(
    rank: _Rank, cell: str, round_: int, wanted: Sequence[np.ndarray], centre: Lengths
) -> None:
    mirror = CentreSlot.attach(rank.files[cell], centre)
    try:
        found = mirror.read(round_)
        same = all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))
        del found
    finally:
        mirror.close()
    if rank.told[cell] != round_ or not same:
        raise MachineError(f"the centre of cell {cell}, round {round_}, did not come as it went")


def _arrays(centre: Lengths, rank: int, round_: int) -> list[np.ndarray]:
    """Return arrays that no other rank shows, and not in any other round."""
    return [np.full(length, rank + round_ / 8, kind) for kind, length in centre]
