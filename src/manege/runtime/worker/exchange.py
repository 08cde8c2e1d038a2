"""The centres that cells show each other: this worker's in their states, others' in slots.

No message is read or written here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from manege.cell import Centre, published
from manege.errors import CheckpointError
from manege.methods import Method, Step
from manege.runtime.slots import CentreSlot, lengths_of
from manege.runtime.worker.cell_run import CellRun


@dataclass
class Hosted:
    """A cell of this worker."""

    run: CellRun
    share_s: float | None
    cells: int
    until: int | None
    watched: bool
    frozen: bool
    slot: CentreSlot | None = None
    steps: Iterator[Step] | None = None
    """The steps of the round under way."""
    steps_here: int = 0
    began: float = 0.0
    busy_s: float = 0.0
    """Seconds that the round under way has taken, waiting not counted."""
    over: bool = False
    """Whether its time is up, so that it waits for its end."""
    leaving: bool = False
    """Whether another worker will have it after its round."""

    @property
    def round_(self) -> int:
        """How many rounds are done."""
        return self.run.state.round_

    def open_slot(self) -> int:
        """Make a slot that shows the cell's last two centres to other workers; return its file."""
        centres = self.run.state.centres()
        self.slot = CentreSlot.create(lengths_of(_arrays(centres[-1])))
        for centre in centres:
            self.slot.write(centre.round_, _arrays(centre))
        return self.slot.fileno()

    def show_centre(self) -> None:
        """Write the round's centre to the slot; nobody reads the replaced one (`are_there_for`)."""
        if self.slot is not None:
            self.slot.write(self.round_, _arrays(self.run.state.centres()[-1]))


@dataclass
class Elsewhere:
    """A cell that another worker has."""

    slot: CentreSlot | None = None
    round_: int = -1
    frozen: bool = False


class Centres:
    """Knows which cells have shown which centres, and hands each round those it needs."""

    def __init__(self, method: Method[Any], here: Mapping[str, Hosted]) -> None:
        """Begin without any centre.

        Args:
            method: says which cells are neighbours.
            here: this worker's cells; it changes.
        """
        self.elsewhere: dict[str, Elsewhere] = {}
        self._method = method
        self._here = here

    def look_at(self, cell: str, file: int) -> None:
        """Read a cell's centres from this file from now on."""
        known = self.known(cell)
        if known.slot is not None:
            known.slot.close()  # A round that reads it may still do so.
            known.slot = None
        # Every cell's centre has the lengths of any other's.
        mine = next((one.run.state.centres() for one in self._here.values()), ())
        if mine:  # Else nobody is left here to look at it.
            known.slot = CentreSlot.attach(file, lengths_of(_arrays(mine[-1])))
        os.close(file)

    def known(self, cell: str) -> Elsewhere:
        """Return what is known of a cell that another worker has."""
        return self.elsewhere.setdefault(cell, Elsewhere())

    def are_there_for(self, hosted: Hosted) -> bool:
        """Return whether the cell's neighbours have shown what its next round needs."""
        neighbours = self._method.neighbours(hosted.run.cell, hosted.round_ + 1)
        if not self._method.synchronous():
            return all(self._has_shown(cell, 0) for cell in neighbours)
        if hosted.round_ > 0:
            # Those of the last round too: they may be reading the centre before the last, which
            # the next one takes the place of; one that is taken up again may need it.
            neighbours += self._method.neighbours(hosted.run.cell, hosted.round_)
        return all(self._has_shown(cell, hosted.round_) for cell in neighbours)

    def inbox(self, hosted: Hosted) -> dict[str, Centre]:
        """Return the neighbours' centres of the round before; of a frozen one its last."""
        round_ = hosted.round_
        if not self._method.synchronous():
            return self._newest(hosted)
        inbox = {}
        for cell in self._method.neighbours(hosted.run.cell, round_ + 1):
            here = self._here.get(cell)
            centre = (
                published(here.run.state.centres(), round_) if here else self._shown(cell, round_)
            )
            if centre is None or centre.round_ > round_:
                # Only when its newest commit was damaged, and the one before it was taken.
                raise CheckpointError(
                    f"cell {hosted.run.cell!r}: its last sound commit is of round {round_}, and "
                    f"its neighbour {cell!r} has only those of later rounds left; restore "
                    f"checkpoints/ from a copy of the run, or start a new one"
                )
            inbox[cell] = centre
        return inbox

    def _has_shown(self, cell: str, round_: int) -> bool:
        """Return whether a cell has shown its centre of a round, or will show no other."""
        one = self._here.get(cell) or self.elsewhere.get(cell)
        if one is None or (isinstance(one, Elsewhere) and one.slot is None):
            return False  # Its slot came when nobody was here, and comes again.
        return one.frozen or one.round_ >= round_

    def _newest(self, hosted: Hosted) -> dict[str, Centre]:
        """Return copies of the neighbours' newest centres, which may be overwritten at any time."""
        inbox = {}
        for cell in self._method.neighbours(hosted.run.cell, hosted.round_ + 1):
            here = self._here.get(cell)
            if here is not None:
                inbox[cell] = here.run.state.centres()[-1]
            else:
                slot = self.elsewhere[cell].slot
                assert slot is not None
                round_, arrays = slot.read_newest()
                inbox[cell] = Centre(round_, *arrays)
        return inbox

    def _shown(self, cell: str, round_: int) -> Centre | None:
        """Return a centre that another worker shows, in place; None if it is there no more."""
        known = self.elsewhere[cell]
        assert known.slot is not None
        wanted = min(round_, known.round_) if known.frozen else round_
        try:
            return Centre(wanted, *known.slot.read(wanted))
        except LookupError:
            return None


def _arrays(centre: Centre) -> list[np.ndarray]:
    return list(centre.to_arrays().values())
