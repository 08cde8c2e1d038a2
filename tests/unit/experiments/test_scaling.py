"""The arithmetic of `manege bench scaling`, and its plan."""

from __future__ import annotations

import os
from typing import Any

import pytest

from manege.config.schema import MethodName
from manege.errors import CheckpointError, ConfigError
from manege.experiments.scaling import MeasuredRun, Settings, plan_of, results_of
from manege.experiments.scaling.plan import worker_counts
from manege.experiments.scaling.reading import times_of
from manege.experiments.scaling.tables import MeanAndDeviation, ratio, spread
from manege.experiments.scaling.usage import family, parse_busy, parse_pss, parse_ticks
from manege.experiments.scaling.writing import markdown, plot

MACHINE = {"cpu": "a processor", "cores": 2, "memory_bytes": 1 << 33, "system": "Linux"}


def settings(**changes: Any) -> Settings:
    given = {
        "method": "cellular",
        "runtime": "local",
        "workers": 2,
        "grids": ((2, 2), (4, 4)),
        "rounds": 5,
        "repeats": 2,
        "data": "digits",
        "data_root": None,
        "preset": None,
        "sets": (),
    }
    return Settings(**given | changes)


def measured(kind: str, shape: str, workers: int, span_s: float, **changes: Any) -> MeasuredRun:
    given = {
        "name": f"{kind}-{shape}-{workers}",
        "kind": kind,
        "shape": shape,
        "cells": 4,
        "workers": workers,
        "repeat": 1,
        "wall_s": span_s + 2,
        "span_s": span_s,
        "slowest_s": span_s,
        "training_cpu_s": 0.9 * span_s * workers,
        "cpu_s": span_s * workers + 1,
        "others_cores": 0.1,
        "peak_bytes": 10**8 * workers,
        "processes": 2 + workers,
        "routines": {"gather": 0.0, "train": 6.0, "overall": 8.0},
        "deaths": 0,
        "moves": 0,
        "centre": None,
    }
    return MeasuredRun(**given | changes)


def test_the_deviation_is_that_of_a_sample_and_one_value_has_none():
    assert spread([2.0, 4.0]) == MeanAndDeviation(3.0, pytest.approx(2**0.5))
    assert spread([2.0]) == MeanAndDeviation(2.0, None)
    assert spread([2.0]).told() == "2.00"
    assert spread([2.0, 4.0]).told() == "3.00 ± 1.41"


def test_a_ratio_has_the_deviations_of_both():
    found = ratio(MeanAndDeviation(10.0, 1.0), MeanAndDeviation(5.0, 0.5))
    assert found == (2.0, pytest.approx(2 * (0.1**2 + 0.1**2) ** 0.5))
    assert ratio(MeanAndDeviation(10.0, None), MeanAndDeviation(5.0, 0.5)) == (2.0, None)


def test_speed_up_and_efficiency_come_from_means():
    runs = [measured("weak", "3x3", 1, 8.0), measured("weak", "3x6", 2, 10.0)]
    runs += [measured("strong", "2x2", 1, span_s) for span_s in (9.0, 11.0)]
    runs += [measured("strong", "2x2", 2, span_s) for span_s in (6.0, 6.5)]
    results = results_of(settings(), MACHINE, runs, [])
    assert [row["efficiency"] for row in results["weak"]] == [1.0, 0.8]
    (row,) = results["strong"]
    assert (row["one_worker_s"], row["workers_s"]) == (10.0, 6.25)
    assert (row["speedup"], row["efficiency"]) == (1.6, 0.8)
    assert row["workers_s_sd"] == pytest.approx(0.25 * 2**0.5)
    assert row["repeats"] == 2
    resources = results["resources"][-1]
    assert resources["peak_bytes"] == 2 * 10**8
    assert resources["utilisation"] == pytest.approx(0.9)
    assert resources["cores"] == pytest.approx((13 / 8 + 14 / 8.5) / 2)
    gather, train, _ = results["profile"]
    assert (train["one_worker_s"], train["a_worker_s"], train["speedup"]) == (6.0, 3.0, 2.0)
    assert train["acceleration"] == 0.5
    assert (gather["acceleration"], gather["speedup"]) == (None, None)
    text = markdown(results)
    assert "| 2x2   | 10.00 ± 1.41  | 6.25 ± 0.35  | 1.60 ± 0.24 | 0.80       |" in text
    assert "up to 0.10 cores" in text
    assert "died" not in text
    assert plot(results).startswith(b"\x89PNG")


def test_a_run_in_which_a_trainer_died_is_named():
    runs = [measured("weak", "3x3", 1, 8.0, deaths=1), measured("strong", "2x2", 1, 9.0)]
    runs += [measured("strong", "2x2", 2, 5.0)]
    assert "replaced in weak-3x3-1." in markdown(results_of(settings(), MACHINE, runs, []))


def test_weak_scaling_gives_each_worker_nine_cells_that_all_hear_four():
    warm_up, *units = plan_of(settings(workers=3))
    assert (warm_up.name, warm_up.config.rounds) == ("warm-up", 1)
    weak = [unit for unit in units if unit.kind == "weak" and unit.repeat == 1]
    assert [(unit.shape, unit.workers) for unit in weak] == [("3x3", 1), ("3x6", 2), ("3x9", 3)]
    strong = [unit for unit in units if unit.kind == "strong" and unit.repeat == 2]
    shapes = [(unit.shape, unit.workers) for unit in strong]
    assert shapes == [("2x2", 1), ("2x2", 3), ("4x4", 1), ("4x4", 3)]
    assert len({unit.name for unit in units}) == len(units) == 2 * 7
    assert {unit.config.rounds for unit in units} == {5}
    assert {unit.config.budget_clock for unit in units} == {"cpu"}


def test_classes_have_equally_many_pictures_and_a_worker_each(tmp_path, monkeypatch):
    monkeypatch.setenv("MANEGE_CACHE", str(tmp_path))
    asked = settings(method="per-class", grids=(), sets=("data.classes=[3, 7, 8]",))
    _, *units = plan_of(asked)
    assert {unit.config.method for unit in units} == {MethodName.PER_CLASS}
    assert {len(unit.config.data.classes or ()) for unit in units[:2]} == {1, 2}
    assert [unit.shape for unit in units[:4]] == ["1 class", "2 classes", "3 classes", "3 classes"]
    (limit,) = {unit.config.data.limit_per_class for unit in units}
    assert limit is not None
    smaller = settings(method="per-class", grids=(), sets=(*asked.sets, "data.limit_per_class=40"))
    assert {unit.config.data.limit_per_class for unit in plan_of(smaller)} == {40} != {limit}
    with pytest.raises(ConfigError, match=r"^workers 4: .* has 3; ask for at most 3$"):
        plan_of(settings(method="per-class", grids=(), workers=4, sets=asked.sets))


@pytest.mark.parametrize("text", ["rounds=7", "cellular.rows=2", "data.source=mnist", "method=x"])
def test_what_the_bench_varies_cannot_be_set(text):
    with pytest.raises(ConfigError, match=f"^sets {text}: "):
        settings(sets=(text,))


def test_workers_are_counted_one_by_one_and_then_doubled():
    assert worker_counts(4) == (1, 2, 3, 4)
    assert worker_counts(10) == tuple(range(1, 11))
    assert worker_counts(24) == (1, 2, 4, 8, 16, 24)
    assert worker_counts(32) == (1, 2, 4, 8, 16, 32)


def test_memory_is_the_proportional_one():
    text = "55c0-7ffd ---p 00000000 00:00 0 [rollup]\nRss:  9000 kB\nPss:  1024 kB\nPss_Dirty: 8 kB"
    assert parse_pss(text) == 1 << 20
    assert parse_pss("") is None
    assert parse_pss("Pss: many kB") is None


def test_computing_time_is_found_behind_any_name():
    fields = ["S", "1", *["0"] * 9, "70", "30", *["0"] * 5, "20", "0", "1", "555", "9"]
    fields[11:13] = ["70", "30"]
    fields[19] = "555"
    assert parse_ticks(f"17 (a) b (c) {' '.join(fields)}") == (555, 100)
    assert parse_ticks("17 (a) S 1") is None
    assert parse_ticks("") is None


def test_a_machine_is_busy_but_for_idling_and_waiting():
    assert parse_busy("cpu  1 2 4 1000 2000 8 16 32 0 0\ncpu0 1 1 1 1") == 63


def test_a_family_holds_its_head():
    assert os.getpid() in family(os.getpid())
    assert family(2**22 + 1) == [2**22 + 1]


def event(kind: str, t: float, **fields: Any) -> dict[str, Any]:
    return {"event": kind, "t": t, **fields}


EVENTS = [
    event("cell_started", 10.0, cell="a"),
    event("cell_started", 11.0, cell="b"),
    event("trainer_died", 11.5, cells=["b"]),
    event("cell_started", 12.0, cell="b"),
    event("round", 13.0, cell="a", grid=None, phases_s={"gather": 0.1, "train": 2, "overall": 3}),
    event("round", 14.0, cell="b", grid=None, phases_s={"gather": 0.1, "train": 1, "overall": 2}),
    event("cell_finished", 15.0, cell="a", spent_s=2.5),
    event("cell_finished", 18.0, cell="b", spent_s=3.5),
]


def test_times_go_from_each_cells_first_start_to_its_end():
    times = times_of(EVENTS, 2, "run")
    assert (times.span_s, times.slowest_s, times.training_cpu_s) == (8.0, 7.0, 6.0)
    assert times.routines == {"gather": 0.2, "train": 3.0, "overall": 5.0}
    assert (times.deaths, times.moves) == (1, 0)


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([], "0 cells were started and 0 finished, expected 2"),
        (EVENTS[:-1], "2 cells were started and 1 finished, expected 2"),
        ([*EVENTS[:-1], event("cell_finished", 18.0, cell="b")], "not a run's"),
        ([*EVENTS[:4], event("round", 1.0, grid=None, phases_s=None)], "not a run's"),
    ],
)
def test_events_of_no_whole_run_are_refused(events, says):
    with pytest.raises(CheckpointError, match=says):
        times_of(events, 2, "run")
