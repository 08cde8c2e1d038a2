"""Centres across ranks: a slot's memory stays on its rank, and ranks that read it have mirrors.

A slot's number names it in the whole job and says which rank owns it. `Shown` is the owner's
side, `Mirrors` that of the readers; what they post to each other is carried by others.
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
"""The most bytes that a round's arrays may have: what MPI counts in one message."""
AboutOther = SlotShown | CentreShown | CellFrozen
_HEAD = struct.Struct("<QQ")
"""What comes before a round's arrays: the slot's number and the round."""


class Post(Protocol):
    """Carries messages to other ranks."""

    def post(self, rank: int, message: Mapping[str, Any]) -> None:
        """Send a message, without waiting."""
        ...

    def post_bytes(self, rank: int, buffer: np.ndarray) -> None:
        """Send a buffer, which may not change any more, without waiting."""
        ...

    def expect(self, num_bytes: int) -> None:
        """Accept buffers of up to so many bytes."""
        ...


@dataclass
class _Owned:
    """A slot of a worker of this rank."""

    file: int
    slot: CentreSlot
    lengths: Lengths
    followers: dict[int, int] = field(default_factory=dict)
    """Ranks that read it, and the last round that each was sent."""


class Shown:
    """The slots of the workers of this rank, and which other ranks read them."""

    def __init__(self, post: Post, rank: int, size: int) -> None:
        self._post = post
        self._rank, self._size = rank, size
        self._made = 0
        self._slots: dict[int, _Owned] = {}
        self._of_cell: dict[tuple[int, str], int] = {}

    def add(self, host: int, cell: str, file: int) -> int:
        """Add a worker's slot, whose file is ours from now on; return its number."""
        self._made += 1
        number = self._made * self._size + self._rank
        lengths = stated_lengths(file)
        _check_size(lengths)
        self._slots[number] = _Owned(file, CentreSlot.attach(file, lengths), lengths)
        self._of_cell[host, cell] = number
        return number

    def file(self, number: int) -> int | None:
        """Return a slot's file; None if the slot is gone."""
        owned = self._slots.get(number)
        return None if owned is None else owned.file

    def follow(self, number: int, rank: int) -> None:
        """Send a rank what a slot holds, and every later round."""
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
        """Send a rank no more of a slot."""
        if number in self._slots:
            self._slots[number].followers.pop(rank, None)

    def shows(self, host: int, cell: str, round_: int) -> None:
        """Send on the round that a worker has just put into a cell's slot."""
        number = self._of_cell.get((host, cell))
        if number is not None:
            self._send(number, self._slots[number], round_)

    def forget(self, number: int) -> None:
        """Close a slot that nobody will ask for any more."""
        owned = self._slots.pop(number, None)
        if owned is not None:
            self._of_cell = {key: one for key, one in self._of_cell.items() if one != number}
            owned.slot.close()
            os.close(owned.file)

    def _send(self, number: int, owned: _Owned, round_: int) -> None:
        """Send a round to the followers that lack it; do nothing when the slot holds it no more.

        Only cells that do not wait for each other overwrite a round that is wanted; a message about
        another follows right after.
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
    """What is known here of a slot of another rank."""

    lengths: Lengths = ()
    slot: CentreSlot | None = None
    filled: bool = False
    """Whether all that the slot held when this rank asked for it is here."""
    newest: int = -1


@dataclass
class _Look:
    """The slot a worker reads for a cell elsewhere, and the messages held back until it is here."""

    number: int
    held: deque[Any] = field(default_factory=deque)


class Mirrors:
    """Copies of other ranks' slots, as far as workers here read them."""

    def __init__(
        self, post: Post, size: int, give: Callable[[int, Any, tuple[int, ...]], None]
    ) -> None:
        """Begin without any mirror.

        Args:
            post: carries messages to other ranks.
            size: how many ranks there are.
            give: gives a worker a message.
        """
        self._post = post
        self._size = size
        self._give = give
        self._mirrors: dict[int, _Mirror] = {}
        self._looks: dict[tuple[int, str], _Look] = {}

    def tell(self, host: int, message: AboutOther, number: int | None = None) -> None:
        """Give a worker a message about a cell, once the round it speaks of is here.

        Args:
            host: the worker's number.
            message: that the cell shows a slot, or a centre, or shows no more.
            number: the slot elsewhere that the worker is to read from now on.
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
        """Note that a worker does not read a cell elsewhere, or any if none is named, any more."""
        gone = [key for key in self._looks if key[0] == host and cell in (None, key[1])]
        for key in gone:
            self._leave(self._looks.pop(key).number)

    def hold(self, number: int, lengths: Lengths) -> None:
        """Make the mirror of a slot that has arrays of those lengths."""
        _check_size(lengths)
        # It comes even if nobody here looks at it any more.
        self._post.expect(payload_bytes(lengths) + _HEAD.size)
        mirror = self._mirrors.get(number)
        if mirror is not None and mirror.slot is None:
            mirror.lengths, mirror.slot = lengths, CentreSlot.create(lengths)

    def fill(self, packet: np.ndarray) -> None:
        """Write a round that another rank sent into its mirror."""
        number, round_ = _HEAD.unpack(packet[: _HEAD.size].tobytes())
        mirror = self._mirrors.get(number)
        if mirror is None or mirror.slot is None:
            return
        mirror.slot.write(round_, split(packet[_HEAD.size :], mirror.lengths))
        mirror.newest = max(mirror.newest, round_)
        self._release_all(number)

    def filled(self, number: int) -> None:
        """Note that all that a slot held when this rank asked for it is here."""
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
        """Give up a mirror that nobody reads."""
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
        """Give a worker the messages held back for it, in order, as far as they are true here."""
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
