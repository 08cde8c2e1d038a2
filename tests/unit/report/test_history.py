"""What a run's events add up to."""

from __future__ import annotations

import pytest
from tests.helpers.synthetic_run import grid_events, measured, per_class_events

from manege.report.history import History


def _seen(events) -> History:
    history = History()
    history.see_all(events)
    return history


def test_a_finished_run_has_all_its_rounds_and_scores():
    history = _seen(per_class_events(["a", "b"], 10))
    assert [cell.state for cell in history.cells.values()] == ["finished", "finished"]
    assert history.done == 20
    assert history.measure == "score"
    assert sorted(history.cells["a"].scored) == [5, 10]
    assert history.best_cell("score")[0].key == "a"
    assert history.ended == "finished"
    assert history.unread == 0


def test_of_a_round_trained_twice_the_later_line_counts():
    events = list(per_class_events(["a"], 3))
    again = {**events[3], "losses": {"discriminator": 9.0, "generator": 9.5}, "incarnation": 2}
    history = _seen([*events[:4], again])
    assert history.done == 2
    assert history.cells["a"].rounds[again["round"]].generator == 9.5


def test_a_grid_knows_its_shape_and_its_mixture():
    history = _seen(grid_events(2, 3, 4))
    assert history.shape() == (2, 3)
    assert history.measure == "mixture"
    assert history.mixture["cell"] == "0-0"
    assert history.measure_name("fd") == "mixture score (fd)"


def test_a_line_of_descent_goes_back_to_a_first_generator():
    events = list(grid_events(2, 2, 5))
    for event in events:
        if event["event"] == "round":
            event["grid"]["generator"]["replaced"] = True
    history = _seen(events)
    line = history.lineage("0-0")
    # Each parent is the next cell's, a round before.
    assert line == [("0-0", 5), ("0-1", 4), ("1-0", 3), ("1-1", 2), ("0-0", 1), ("0-1", 0)]


def test_a_generator_that_was_not_replaced_was_born_before():
    events = list(grid_events(1, 2, 3))
    for event in events:
        if event["event"] == "round":
            event["grid"]["generator"]["replaced"] = event["round"] == 1
    assert _seen(events).lineage("0-0")[0] == ("0-0", 1)


def test_of_several_generators_the_best_has_the_line():
    """Not that which came last."""
    events = list(grid_events(1, 2, 3))
    for event in events:
        if event["event"] == "round":
            event["grid"]["generator"] |= {"replaced": True, "born": min(2, event["round"])}
    assert _seen(events).lineage("0-0")[0] == ("0-0", 2)


def test_a_damaged_line_of_descent_ends():
    events = list(grid_events(1, 2, 3))
    for event in events:
        if event["event"] == "round":
            told = event["grid"]["generator"]
            told["replaced"], told["parent"] = True, {"cell": "0-1", "round": 3}
    assert len(_seen(events).lineage("0-0")) <= 2


def test_events_without_their_fields_are_counted_and_harmless():
    good = list(per_class_events(["a"], 2))
    bad = [
        {"event": "round", "t": 1.0, "cell": "a"},
        {"event": "round", "t": "yesterday", "cell": "a", "round": 1},
        {"event": "score", "t": 1.0, "cell": "a", "round": 1, "metric": "kid", "scores": 3},
        {"event": "run_started", "t": 1.0},
        {"event": "nobody knows it", "t": 1.0},
    ]
    history = _seen([*good, *bad])
    assert history.unread == 4
    assert history.cells["a"].last == 2


def test_a_stopped_and_resumed_run_tells_of_both():
    events = list(per_class_events(["a"], 3))
    stop = {"t": events[3]["t"], "incarnation": 1, "event": "run_stopped", "reason": "SIGINT"}
    history = _seen([*events[:4], stop])
    assert history.ended == "stopped"
    assert history.cells["a"].state == "stopped"
    history.see({**events[0], "t": stop["t"] + 60, "incarnation": 2})
    assert history.ended is None
    assert [fault.kind for fault in history.faults] == ["stopped", "resumed"]


def test_routines_of_a_grid_are_the_papers():
    found = _seen(grid_events(2, 2, 3)).routines()
    assert list(found)[:4] == ["gather", "train", "update_genomes", "mutate"]
    assert found["train"] == pytest.approx(12 * 0.31)  # Reading the batches is part of it.


def test_an_index_settles_to_its_mean_over_the_last_half_of_a_cell_s_rounds():
    events = list(per_class_events(["a", "b"], 5))
    for event in events:
        if event["event"] == "round" and event["cell"] == "a":
            # Of rounds 3, 4 and 5 count; the last tells none, and round 4 was trained again.
            value = None if event["round"] == 5 else float(event["round"] ** 2)
            event["indices"] = {"collapse": value, "cycling": None, "space": "points"}
    again = {**next(one for one in events if one.get("round") == 4)}
    again["indices"] = {"collapse": 11.0, "cycling": None, "space": "points"}
    history = _seen([*events, again])
    assert history.settled(history.cells["a"], "collapse") == (9.0 + 11.0) / 2
    assert history.settled(history.cells["b"], "collapse") is None
    assert history.stability("collapse") == (10.0, 10.0, 10.0, "a", 1)
    assert history.stability("cycling") is None
    assert history.index_space == "points"


def test_what_is_left_of_a_half_that_was_forgotten_is_no_mean_of_it():
    history = _seen(measured(per_class_events(["a"], 10)))
    cell = history.cells["a"]
    wanted = history.settled(cell, "cycling")
    assert wanted == pytest.approx(0.1 * (6 + 7 + 8 + 9 + 10) / 5)
    cell.forget(5)
    assert min(cell.rounds) == 6
    assert history.settled(cell, "cycling") == wanted
    cell.forget(4)
    assert history.settled(cell, "cycling") is None
    assert history.latest(cell, "cycling") == 1.0


def test_indices_are_read_where_a_run_writes_them():
    events = list(per_class_events(["a"], 2))
    for event in events:
        if event["event"] == "round":
            event["indices"] = {"collapse": 0.25, "cycling": 0.5}
    history = _seen(events)
    assert history.series(history.cells["a"], "collapse") == [(1, 0.25), (2, 0.25)]
