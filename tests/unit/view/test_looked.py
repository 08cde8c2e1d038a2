"""What a view remembers of a run."""

from __future__ import annotations

import pytest
from tests.synthetic_run import grid_events

from manege.view.state import Looked


@pytest.mark.parametrize(("rows", "columns", "rounds", "kept"), [(1, 2, 12, 12), (20, 50, 30, 20)])
def test_a_long_run_does_not_fill_the_memory(rows, columns, rounds, kept):
    looked = Looked()
    for event in grid_events(rows, columns, rounds):
        looked.event(event)
    cells = looked.history.cells.values()
    assert {len(cell.rounds) for cell in cells} == {kept}
    assert {max(cell.rounds) for cell in cells} == {rounds}
    assert looked.history.done == rows * columns * rounds
