"""Centres across ranks, with letters that are carried when a test says so."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from manege.runtime.messages import decode, encode
from manege.runtime.mirrors import Mirrors, Shown
from manege.runtime.slots import CentreSlot, lengths_of

SIZE = 3
OWNER, READER = 1, 2


def centre(round_: int) -> list[np.ndarray]:
    return [np.full(5, round_, np.float32), np.array([round_, 7], np.int64)]


class Rank:
    """One rank's two sides, and the letters to it."""

    def __init__(self, ranks: dict[int, Rank], rank: int) -> None:
        self.ranks = ranks
        self.rank = rank
        self.letters: deque[tuple[int, Any]] = deque()
        self.limit = 0
        self.told: list[tuple[int, str, Any]] = []
        """Trainer, kind of message, and the round or what the file holds."""
        self.seen: dict[tuple[int, str], CentreSlot] = {}
        self.shown = Shown(self, rank, SIZE)
        self.mirrors = Mirrors(self, SIZE, self._give)

    def post(self, rank: int, message: Any) -> None:
        self.ranks[rank].letters.append((self.rank, dict(message)))

    def post_bytes(self, rank: int, buffer: np.ndarray) -> None:
        self.ranks[rank].letters.append((self.rank, buffer))

    def expect(self, num_bytes: int) -> None:
        self.limit = max(self.limit, num_bytes)

    def read(self) -> None:
        while self.letters:
            self.read_one()

    def read_one(self) -> None:
        rank, content = self.letters.popleft()
        if isinstance(content, np.ndarray):
            assert len(content) <= self.limit
            self.mirrors.fill(content)
            return
        number = content["slot"]
        {
            "follow": partial(self.shown.follow, number, rank),
            "unfollow": partial(self.shown.unfollow, number, rank),
            "holds": lambda: self.mirrors.hold(number, content["lengths"]),
            "filled": partial(self.mirrors.filled, number),
        }[content["is"]]()

    def _give(self, host: int, message: Any, files: tuple[int, ...]) -> None:
        key = host, message.cell
        if files:
            self.look_away(*key)
            self.seen[key] = CentreSlot.attach(files[0], lengths_of(centre(0)))
        wire = encode(message)
        self.told.append((host, wire["is"], wire.get("round")))

    def look_away(self, host: int, cell: str) -> None:
        if (host, cell) in self.seen:
            self.seen.pop((host, cell)).close()

    def at(self, host: int, round_: int) -> float:
        return float(self.seen[host, "a"].read(round_)[0][0])


class Cell:
    """A cell of the owner's trainer 1, standing at a round."""

    def __init__(self, owner: Rank, round_: int = 0) -> None:
        self.slot = CentreSlot.create(lengths_of(centre(0)))
        self.owner, self.round_ = owner, round_
        for one in range(max(0, round_ - 1), round_ + 1):
            self.slot.write(one, centre(one))
        self.number = owner.shown.add(1, "a", os.dup(self.slot.fileno()))

    def advance(self) -> None:
        self.round_ += 1
        self.slot.write(self.round_, centre(self.round_))
        self.owner.shown.shows(1, "a", self.round_)

    def close(self) -> None:
        self.slot.close()
        self.owner.shown.forget(self.number)


@pytest.fixture
def ranks() -> Iterator[dict[int, Rank]]:
    found: dict[int, Rank] = {}
    for rank in (OWNER, READER):
        found[rank] = Rank(found, rank)
    yield found
    for rank in found.values():
        for host in (2, 3):
            rank.mirrors.look_away(host)
            rank.look_away(host, "a")


def tell(ranks: dict[int, Rank], kind: str, host: int = 2, **fields: Any) -> None:
    number = fields.pop("number", None)
    ranks[READER].mirrors.tell(host, decode({"is": kind, "cell": "a", **fields}), number)


def test_a_trainer_is_told_of_a_slot_once_both_its_rounds_are_here(ranks):
    cell = Cell(ranks[OWNER], round_=4)
    tell(ranks, "slot", number=cell.number)
    tell(ranks, "centre", round=4)
    ranks[OWNER].read()
    for _ in range(3):  # What it holds, round 3, round 4.
        ranks[READER].read_one()
        assert ranks[READER].told == []
    ranks[READER].read_one()
    assert ranks[READER].told == [(2, "slot", None), (2, "centre", 4)]
    assert [ranks[READER].at(2, round_) for round_ in (3, 4)] == [3, 4]
    cell.close()


def test_a_centre_is_told_of_once_it_is_here_and_what_comes_after_it_waits(ranks):
    cell = Cell(ranks[OWNER])
    tell(ranks, "slot", number=cell.number)
    ranks[OWNER].read()
    ranks[READER].read()
    cell.advance()
    tell(ranks, "centre", round=1)
    tell(ranks, "frozen")
    assert ranks[READER].told == [(2, "slot", None)]
    ranks[READER].read()
    assert ranks[READER].told[1:] == [(2, "centre", 1), (2, "frozen", None)]
    assert ranks[READER].at(2, 1) == 1
    cell.close()


def test_every_round_is_sent_once_however_many_trainers_look(ranks):
    cell = Cell(ranks[OWNER])
    for host in (2, 3):
        tell(ranks, "slot", host=host, number=cell.number)
    ranks[OWNER].read()
    cell.advance()
    cell.owner.shown.shows(1, "a", 1)  # Told of twice.
    sent = [one for _, one in ranks[READER].letters if isinstance(one, np.ndarray)]
    assert len(sent) == 2
    ranks[READER].read()
    assert [ranks[READER].at(host, 1) for host in (2, 3)] == [1, 1]
    cell.close()


def test_a_cell_taken_up_again_is_looked_at_anew_and_the_old_mirror_goes(ranks):
    old = Cell(ranks[OWNER], round_=5)
    tell(ranks, "slot", number=old.number)
    tell(ranks, "centre", round=5)
    ranks[OWNER].read()
    ranks[READER].read()
    old.close()
    new = Cell(ranks[OWNER], round_=4)
    tell(ranks, "slot", number=new.number)
    tell(ranks, "centre", round=4)
    assert len(ranks[READER].told) == 2
    ranks[OWNER].read()
    ranks[READER].read()
    assert ranks[READER].told[2:] == [(2, "slot", None), (2, "centre", 4)]
    assert ranks[READER].at(2, 4) == 4
    new.close()


def test_a_slot_that_is_gone_when_it_is_asked_for_is_never_told_of(ranks):
    cell = Cell(ranks[OWNER])
    tell(ranks, "slot", number=cell.number)
    tell(ranks, "centre", round=0)
    cell.close()
    ranks[OWNER].read()
    assert not ranks[READER].letters
    assert ranks[READER].told == []


def test_what_comes_for_a_trainer_that_is_gone_is_dropped(ranks):
    cell = Cell(ranks[OWNER])
    tell(ranks, "slot", number=cell.number)
    ranks[OWNER].read()
    ranks[READER].mirrors.look_away(2)
    ranks[READER].read()
    ranks[OWNER].read()
    cell.advance()
    assert not ranks[READER].letters
    assert ranks[READER].told == []
    cell.close()


def test_a_round_overwritten_before_it_could_be_sent_is_left_out(ranks):
    """As cells that do not wait for each other do."""
    cell = Cell(ranks[OWNER])
    tell(ranks, "slot", number=cell.number)
    ranks[OWNER].read()
    for round_ in (1, 2, 3):
        cell.slot.write(round_, centre(round_))
    for round_ in (1, 2, 3):
        cell.owner.shown.shows(1, "a", round_)
    ranks[READER].read()
    assert ranks[READER].seen[2, "a"].read_newest()[0] == 3
    tell(ranks, "centre", round=1)
    assert ranks[READER].told[-1] == (2, "centre", 1)
    cell.close()


def test_a_centre_of_another_size_is_refused(ranks):
    cell = Cell(ranks[OWNER])
    tell(ranks, "slot", number=cell.number)
    ranks[OWNER].read()
    ranks[READER].read_one()
    _, packet = ranks[READER].letters[0]
    with pytest.raises(ValueError, match=r"^35 bytes; expected 36$"):
        ranks[READER].mirrors.fill(packet[:-1])
    cell.close()
