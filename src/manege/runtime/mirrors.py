"""Centres across ranks: a slot's memory stays on its rank, those who look at it have mirrors.

A slot's number names it in the whole job and says whose it is. `Shown` is the owner's side,
`Mirrors` that of those who look; what they post to each other is carried by others.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from manege import errors
from manege.errors import MachineError
from manege.runtime.messages import (
    CellFrozen,
    CentreShown,
    Follow,
    SlotFilled,
    SlotHolds,
    SlotShown,
    Unfollow,
    encode,
)
from manege.runtime.slots import CentreSlot, Lengths, payload_bytes, split, stated_lengths

MAX_BYTES = (1 << 31) - 1
"""Of a round's arrays, at most: what MPI counts in one message."""
AboutOther = SlotShown | CentreShown | CellFrozen
_HEAD = struct.Struct("<QQ")
"""A slot's number and the round, before the round's arrays."""


class Post(Protocol):
    """Carries letters to other ranks."""

    def post(self, rank: int, message: Mapping[str, Any]) -> None:
        """A letter is under way."""
        ...

    def post_bytes(self, rank: int, buffer: np.ndarray) -> None:
        """A buffer is under way; it may not change any more."""
        ...

    def expect(self, num_bytes: int) -> None:
        """Buffers of up to so many bytes may come."""
        ...


@dataclass
class _Owned:
    """A slot of a trainer here."""

    file: int
    slot: CentreSlot
    lengths: Lengths
    followers: dict[int, int] = field(default_factory=dict)
    """Ranks that look at it, and the last round each was sent."""


class Shown:
    """Slots of the trainers of this rank."""

    def __init__(self, post: Post, rank: int, size: int) -> None:
        self._post = post
        self._rank, self._size = rank, size
        self._made = 0
        self._slots: dict[int, _Owned] = {}
        self._of_cell: dict[tuple[int, str], int] = {}

    def add(self, host: int, cell: str, file: int) -> int:
        """The number of a trainer's slot; the file is ours from now on."""
        self._made += 1
        number = self._made * self._size + self._rank
        lengths = stated_lengths(file)
        _check_size(lengths)
        self._slots[number] = _Owned(file, CentreSlot.attach(file, lengths), lengths)
        self._of_cell[host, cell] = number
        return number

    def file(self, number: int) -> int | None:
        """A slot's file, while it is there."""
        owned = self._slots.get(number)
        return None if owned is None else owned.file

    def follow(self, number: int, rank: int) -> None:
        """A rank wants to see a slot: what it holds, then every round."""
        owned = self._slots.get(number)
        if owned is None:
            return  # Its cell has gone elsewhere, where it shows itself anew.
        self._post.post(rank, encode(SlotHolds(number, owned.lengths)))
        newest = owned.slot.newest()
        owned.followers[rank] = -1
        for round_ in () if newest is None else (newest - 1, newest):
            self._send(number, owned, round_)
        self._post.post(rank, encode(SlotFilled(number)))

    def unfollow(self, number: int, rank: int) -> None:
        """It does not any more."""
        if number in self._slots:
            self._slots[number].followers.pop(rank, None)

    def shows(self, host: int, cell: str, round_: int) -> None:
        """A trainer has put another round into a cell's slot."""
        number = self._of_cell.get((host, cell))
        if number is not None:
            self._send(number, self._slots[number], round_)

    def forget(self, number: int) -> None:
        """Nobody will ask for a slot any more."""
        owned = self._slots.pop(number, None)
        if owned is not None:
            self._of_cell = {key: one for key, one in self._of_cell.items() if one != number}
            owned.slot.close()
            os.close(owned.file)

    def _send(self, number: int, owned: _Owned, round_: int) -> None:
        """That round to all who have not seen it; nothing when it is there no more.

        Only cells that do not wait for each other overwrite what is wanted; another round is told
        of right after.
        """
        behind = [rank for rank, sent in owned.followers.items() if sent < round_]
        if not behind or not owned.slot.check(round_):
            return
        arrays = [array.view(np.uint8) for array in owned.slot.read(round_)]
        packet = np.concatenate([np.frombuffer(_HEAD.pack(number, round_), np.uint8), *arrays])
        if owned.slot.check(round_):
            for rank in behind:
                self._post.post_bytes(rank, packet)
                owned.followers[rank] = round_


@dataclass
class _Mirror:
    """What is known here of a slot elsewhere."""

    lengths: Lengths = ()
    slot: CentreSlot | None = None
    filled: bool = False
    """Whether all that the slot held at first is here."""
    newest: int = -1


@dataclass
class _Look:
    """A trainer that looks at a cell elsewhere, and what it is still to be told of it."""

    number: int
    held: deque[Any] = field(default_factory=deque)


class Mirrors:
    """Slots of other ranks, as far as trainers here look at them."""

    def __init__(
        self, post: Post, size: int, give: Callable[[int, Any, tuple[int, ...]], None]
    ) -> None:
        """No trainer looks at any.

        Args:
            post: carries letters to other ranks.
            size: how many there are.
            give: gives a trainer a message.
        """
        self._post = post
        self._size = size
        self._give = give
        self._mirrors: dict[int, _Mirror] = {}
        self._looks: dict[tuple[int, str], _Look] = {}

    def tell(self, host: int, message: AboutOther, number: int | None = None) -> None:
        """Give a trainer a message about a cell, once what it speaks of is here.

        Args:
            host: the trainer.
            message: that the cell shows a slot, or a centre, or shows no more.
            number: the slot elsewhere that it is to look at from now on.
        """
        key = host, message.cell
        if number is not None:
            self._look(key, number)
        if key in self._looks:
            self._looks[key].held.append(message)
            self._release(key)
        else:
            self._give(host, message, ())

    def look_away(self, host: int, cell: str | None = None) -> None:
        """A trainer does not look at a cell elsewhere, or at any, any more."""
        gone = [key for key in self._looks if key[0] == host and cell in (None, key[1])]
        for key in gone:
            self._leave(self._looks.pop(key).number)

    def hold(self, number: int, lengths: Lengths) -> None:
        """A slot elsewhere has arrays of those lengths."""
        _check_size(lengths)
        # It comes even if nobody here looks at it any more.
        self._post.expect(payload_bytes(lengths) + _HEAD.size)
        mirror = self._mirrors.get(number)
        if mirror is not None and mirror.slot is None:
            mirror.lengths, mirror.slot = lengths, CentreSlot.create(lengths)

    def fill(self, packet: np.ndarray) -> None:
        """A round of a slot elsewhere."""
        number, round_ = _HEAD.unpack(packet[: _HEAD.size].tobytes())
        mirror = self._mirrors.get(number)
        if mirror is None or mirror.slot is None:
            return
        mirror.slot.write(round_, split(packet[_HEAD.size :], mirror.lengths))
        mirror.newest = max(mirror.newest, round_)
        self._release_all(number)

    def filled(self, number: int) -> None:
        """All that a slot elsewhere held at first is here."""
        if number in self._mirrors:
            self._mirrors[number].filled = True
            self._release_all(number)

    def _look(self, key: tuple[int, str], number: int) -> None:
        before = self._looks.get(key)
        self._looks[key] = _Look(number)
        if number not in self._mirrors:
            self._mirrors[number] = _Mirror()
            self._post.post(number % self._size, encode(Follow(number)))
        if before is not None:
            self._leave(before.number)

    def _leave(self, number: int) -> None:
        """A mirror that nobody looks at is given up."""
        if number in self._mirrors and all(look.number != number for look in self._looks.values()):
            mirror = self._mirrors.pop(number)
            if mirror.slot is not None:
                mirror.slot.close()
            self._post.post(number % self._size, encode(Unfollow(number)))

    def _release_all(self, number: int) -> None:
        for key, look in list(self._looks.items()):
            if look.number == number:
                self._release(key)

    def _release(self, key: tuple[int, str]) -> None:
        """Give a trainer what was held back, in order, as far as it is true here."""
        look = self._looks[key]
        mirror = self._mirrors[look.number]
        while look.held and _is_true(look.held[0], mirror):
            message = look.held.popleft()
            files: tuple[int, ...] = ()
            if isinstance(message, SlotShown):
                assert mirror.slot is not None
                files = (mirror.slot.fileno(),)
            self._give(key[0], message, files)


def _check_size(lengths: Lengths) -> None:
    if payload_bytes(lengths) + _HEAD.size > MAX_BYTES:
        raise MachineError(
            f"a centre of {payload_bytes(lengths)} bytes; MPI carries {MAX_BYTES - _HEAD.size} at "
            f"most: make the networks smaller, or use {errors.field('runtime')} local"
        )


def _is_true(message: AboutOther, mirror: _Mirror) -> bool:
    if isinstance(message, CentreShown):
        return mirror.newest >= message.round
    return mirror.filled
