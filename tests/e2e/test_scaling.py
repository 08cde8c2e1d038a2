"""`manege bench scaling`: real runs measured, stopped, gone on with, and told in tables."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from manege.experiments.scaling import MeasuredRun, Settings, measure_all, plan_of
from manege.experiments.scaling import runs as measuring
from manege.experiments.scaling.plan import MeasuredUnit
from tests.helpers.command import run_here

from .conftest import Command

CLASSES = (
    *("bench", "scaling", "--method", "per-class", "--workers", "2", "--preset", "paper-dc"),
    *("--rounds", "200", "--repeats", "1", "--set", "data.classes=[3, 8]", "-o", "out"),
    *("--set", "data.limit_per_class=40", "--set", "networks={kind: mlp, hidden: 16}"),
)
SMALL = (
    *("networks.hidden=8", "networks.latent=4", "training.batches_per_round=2"),
    *("cellular.fitness_samples=16", "cellular.mixture.samples=100", "cellular.mixture.steps=2"),
    *("cellular.mixture.final_samples=100", "cellular.mixture.final_steps=2"),
)
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def test_a_bench_ends_in_tables_and_a_plot(manege: Command, tmp_path: Path, monkeypatch):
    """Two of its runs are trained; the others are said to have gone as the latter of them."""
    measure, found = measuring._measure, []

    def one_of_each(unit: MeasuredUnit, *more: Any) -> MeasuredRun:
        if unit.kind in ("warm-up", "weak") and len(found) < 2:
            found.append(measure(unit, *more))
            return found[-1]
        own = {key: getattr(unit, key) for key in ("name", "kind", "shape", "cells", "workers")}
        return replace(found[-1], **own)

    monkeypatch.setattr(measuring, "_measure", one_of_each)
    done = manege(*CLASSES, "--json")
    assert done.code == 0, done.err
    assert [unit.name for unit in found] == ["warm-up", "weak-1-class-1-1"]
    assert "5 of 5 runs" in done.err
    # The command, its server and its trainer; torch alone takes more than that.
    assert found[-1].processes == 3
    assert found[-1].peak_bytes is not None
    assert found[-1].peak_bytes > 50e6
    assert 0 < found[-1].training_cpu_s < found[-1].cpu_s
    tables = (tmp_path / "out/tables.md").read_text()
    assert all(f"Table {number})" in tables for number in ("II", "III", "IV"))
    assert (tmp_path / "out/plot.png").read_bytes().startswith(b"\x89PNG")
    written = json.loads((tmp_path / "out/results.json").read_text())
    assert written == {name: done.json[name] for name in written}


@pytest.mark.soak
def test_a_bench_that_was_interrupted_goes_on_and_ends_in_tables_and_a_plot(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-m", "manege", *CLASSES],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job ignores SIGINT and hands that on; a user's command does not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        try:
            begun = tmp_path / "out/runs/weak-1-class-1-1"
            deadline = time.monotonic() + 60
            while not begun.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            assert begun.exists(), process.communicate(timeout=1)[1]
            process.send_signal(signal.SIGINT)
            told, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 75, err
    assert "go on with the same command" in told
    assert "Traceback" not in err
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/measured").iterdir()}
    assert [path.name for path in kept] == ["warm-up.json"]

    done = run_here(*CLASSES, "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    assert all(path.stat().st_mtime_ns == at for path, at in kept.items())
    assert "5 of 5 runs, 0s left: strong-2-classes-2-1" in done.err
    results = done.json
    assert [(row["workers"], row["shape"]) for row in results["weak"]] == [
        (1, "1 class"),
        (2, "2 classes"),
    ]
    (strong,) = results["strong"]
    assert strong["speedup"] == pytest.approx(strong["one_worker_s"] / strong["workers_s"])
    for run in results["runs"]:
        assert 0 < run["slowest_s"] <= run["span_s"] < run["wall_s"]
        assert 0 < run["training_cpu_s"] < run["cpu_s"]
        # The command, its server and its trainers; torch alone takes more than that.
        assert run["processes"] == 2 + run["workers"]
        assert run["peak_bytes"] > 50e6
        assert {"train", "overall"} <= run["routines"].keys()
    assert all(0 < row["utilisation"] <= 1.01 for row in results["resources"])
    assert results["machine"].keys() >= {"cpu", "cores", "memory_bytes", "torch", "python"}
    assert results["traffic"] == []
    tables = (tmp_path / "out/tables.md").read_text()
    assert all(f"Table {number})" in tables for number in ("II", "III", "IV"))
    assert (tmp_path / "out/plot.png").read_bytes().startswith(b"\x89PNG")
    written = json.loads((tmp_path / "out/results.json").read_text())
    assert written == {name: results[name] for name in written}
    assert list((tmp_path / "out/runs").iterdir()) == []

    # Asked again, it tells what it knows; asked something else, it refuses.
    again = run_here(*CLASSES, cwd=tmp_path)
    assert (again.code, again.err) == (0, "")
    assert again.out.startswith(tables.rstrip())
    other = run_here(*CLASSES, "--rounds", "300", cwd=tmp_path)
    assert (other.code, other.err.count("\n")) == (2, 1)
    assert "other options" in other.err


@pytest.mark.soak
@pytest.mark.skipif(
    MPIEXEC is None or importlib.util.find_spec("mpi4py") is None,
    reason="mpi4py or mpiexec is missing: pip install 'manege[mpi]'",
)
def test_ranks_are_measured_with_all_below_them_and_a_grids_own_centres_travel(tmp_path):
    settings = Settings(
        *("cellular", "mpi", 2, ((1, 2),), 30, 1),
        *("ring8", None, None, SMALL),
    )
    warm_up, *units = plan_of(settings)
    (both,) = (unit for unit in units if unit.kind == "strong" and unit.workers == 2)
    runs, sent = measure_all(
        (warm_up, both), tmp_path, runtime="mpi", tell=lambda progress: None, stop=lambda: None
    )
    (run,) = runs
    # The command, mpiexec, three ranks, their server and two trainers at least.
    assert run.processes >= 8
    assert run.peak_bytes is not None
    assert run.peak_bytes > 100e6
    assert run.cpu_s > run.training_cpu_s > 0
    assert list(run.routines) == ["gather", "train", "update_genomes", "mutate", "overall"]
    warmed = json.loads((tmp_path / "measured/warm-up.json").read_text())
    assert len(warmed["centre"]) == 3
    assert [one.grid for one in sent] == ["3x3", "4x4", "8x8", "16x16"]
    assert {(one.letters, one.sent_bytes) for one in sent} == {(4, 4 * (sent[0].centre_bytes + 16))}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--grids", "2by2"), "--grids '2by2': expected rows x columns"),
        (("--grids", "1x1"), "--grids '1x1': expected at least two cells"),
        (("--grids", "2x2,2x2"), "a grid stands twice"),
        (("--method", "per-class", "--grids", "2x2"), "--grids: only with --method cellular"),
        (("--method", "per-class", "--workers", "11"), "--workers 11: "),
        (("--method", "single"), "--method"),
        (("--workers", "1"), "--workers"),
        (("--repeats", "0"), "--repeats"),
        (("--set", "rounds=3"), "--set rounds=3: "),
        (("--set", "training.nonsense=3"), "training.nonsense"),
        (("--preset", "nonsense"), "preset"),
        (("--method", "per-class", "--data", "nowhere"), "nowhere"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(args, says, manege: Command, tmp_path: Path):
    done = manege("bench", "scaling", "-o", "out", *args)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
    assert says in done.err
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_left_alone(manege: Command, tmp_path: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    done = manege("bench", "scaling", "-o", "out")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "not a bench" in done.err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]


@pytest.mark.full
def test_a_run_that_cannot_begin_ends_the_bench_with_its_own_words(manege: Command, tmp_path: Path):
    done = manege("bench", "scaling", "-o", "out", "--data", "nowhere")
    assert (done.code, done.err.count("\n")) == (2, 1), done.err
    assert done.err.startswith("manege: warm-up: ")
    assert "nowhere" in done.err
