"""What a view remembers of a run."""

from __future__ import annotations

import pytest
from tests.helpers.synthetic_run import grid_events

from manege.view.state import Looked
from manege.view.words import important


@pytest.mark.full
@pytest.mark.parametrize(("rows", "columns", "rounds", "kept"), [(1, 2, 12, 12), (20, 50, 30, 20)])
def test_a_long_run_does_not_fill_the_memory(rows, columns, rounds, kept):
    looked = Looked()
    for event in grid_events(rows, columns, rounds):
        looked.event(event)
    cells = looked.history.cells.values()
    assert {len(cell.rounds) for cell in cells} == {kept}
    assert {max(cell.rounds) for cell in cells} == {rounds}
    assert looked.history.done == rows * columns * rounds


def test_a_score_that_is_blind_is_marked_wherever_it_is_shown():
    looked = Looked()
    score = {"cell": "a", "round": 1, "metric": "kid", "space": "random-1"}
    looked.event(
        {"event": "score", "t": 1.0, **score, "scores": {"raw": {"value": 1, "low": 0, "high": 2}}}
    )
    assert looked.metric == "kid"
    blind = {"event": "blind", "t": 2.0, "cell": "a", "space": "random-1", "message": "is blind"}
    assert looked.event(blind) == important(blind) == "warning: is blind"
    assert looked.metric == "kid (blind)"
    assert list(looked.messages) == ["warning: is blind"]
