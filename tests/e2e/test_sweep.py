"""`manege sweep`: every run a process, a table at the end, and nothing lost in between."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.command import Done, run_here

from .conftest import Command

PLAN = """
data: digits
classes: [3, 8]
seeds: [5]
budget_s: {budget}
samples: 60
features: [auto, random]
base:
  networks: {{kind: mlp, hidden: 16}}
  training.batch: 32
  sheets.every_rounds: 1000
recipes:
  one: {{preset: paper-dc, method: single, rounds: 5}}
  told: {{preset: paper-dc, method: conditional, training.loss: hinge, rounds: 60}}
"""
PER_CLASS = "  bce: {preset: paper-dc, rounds: 5}\n"
TOLD = "runs/told/seed-5/all"


def write_plan(folder: Path, more: str = PER_CLASS, budget: str = "60") -> Path:
    """Rounds end its runs, long before their time is up, so that they end alike every time."""
    path = folder / "plan.yaml"
    path.write_text(PLAN.format(budget=budget) + more)
    return path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """A finished sweep and what it told; not to be changed."""
    folder = tmp_path_factory.mktemp("sweep")
    write_plan(folder)
    done = run_here("sweep", "plan.yaml", "-o", "out", "--jobs", "2", "--json", cwd=folder)
    assert done.code == 0, done.err
    return folder, done


@pytest.mark.full
def test_recipes_of_all_methods_are_trained_and_measured_alike(
    undisturbed: tuple[Path, Done],
) -> None:
    folder, done = undisturbed
    rows = {row["recipe"]: row for row in done.json["rows"]}
    assert rows.keys() == {"bce", "one", "told"}
    for row in rows.values():
        assert (row["seeds"], row["failed"]) == ([5], [])
        values = row["values"]
        assert len(values["kid"]) == len(values["coverage"]) == 1
        assert len(values["fd"]) == len(values["fd in random"]) == 1
        assert values["fd"] != values["fd in random"]
    assert {"kid [3]", "kid [8]"} <= rows["bce"]["values"].keys() & rows["told"]["values"].keys()
    assert "kid [3]" not in rows["one"]["values"]
    table = (folder / "out" / "table.md").read_text()
    assert all(f"| `{name}` |" in table for name in rows)
    assert "| real pictures |" in table
    assert "| fd in random |" in table
    assert (folder / "out" / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert len(list((folder / "out" / "sheets").glob("*.png"))) == 3
    runs = sorted(
        p.parent.relative_to(folder / "out/runs").as_posix()
        for p in (folder / "out" / "runs").glob("*/*/*/config.yaml")
    )
    assert runs == ["bce/seed-5/3", "bce/seed-5/8", "one/seed-5/all", "told/seed-5/all"]
    # One model for both classes has the time of both.
    config = (folder / "out/runs/one/seed-5/all/config.yaml").read_text()
    assert "budget_s: 120.0" in config
    assert "budget_clock: cpu" in config

    # A sweep that is finished is told again, and nothing is trained.
    before = files(folder / "out" / "runs")
    again = run_here("sweep", "plan.yaml", "-o", "out", "--json", cwd=folder)
    assert (again.code, again.err) == (0, "")
    assert again.json["rows"] == done.json["rows"]
    assert files(folder / "out" / "runs") == before


def test_the_time_of_a_plan_ends_its_runs(manege: Command, tmp_path: Path) -> None:
    plan = write_plan(tmp_path, more="", budget="0.2").read_text()
    told = next(line for line in plan.splitlines(keepends=True) if line.startswith("  told"))
    (tmp_path / "plan.yaml").write_text(plan.replace(told, "").replace(", rounds: 5", ""))
    done = manege("sweep", "plan.yaml", "-o", "out", "--json")
    assert done.code == 0, done.err
    (finished,) = events(tmp_path / "out/runs/one/seed-5/all", "cell_finished")
    assert finished["reason"] == "budget"
    assert finished["spent_s"] >= 0.4  # Of both classes.
    assert finished["round"] < 1000


@pytest.mark.full
def test_scores_are_taken_at_every_time_on_the_way(manege: Command, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(
        "data: digits\nclasses: [3, 8]\nseeds: [5]\nbudget_s: [0.3, 0.9]\nsamples: 60\n"
        "features: [random]\nrecipes:\n"
        "  pairs: {preset: paper, networks: {kind: mlp, hidden: 16}, training.batch: 32}\n"
        "  told: {preset: paper, method: conditional, networks: {kind: mlp, hidden: 16}}\n"
    )
    done = manege("sweep", "plan.yaml", "-o", "out", "--json")
    assert done.code == 0, done.err
    out = tmp_path / "out"
    tree = json.loads((out / "table.json").read_text())
    early, late = tree["on_the_way"]
    assert (early["each_s"], late["each_s"]) == (0.3, 0.9)
    assert tree["rows"] == late["rows"] == done.json["rows"]
    for before, after in zip(early["rows"], late["rows"], strict=True):
        assert after["rounds"][0] > before["rounds"][0]
        assert after["values"]["kid"] != before["values"]["kid"]
    for run, least_s in (("pairs/seed-5/3", 0.9), ("told/seed-5/all", 1.8)):
        first, last = events(out / "runs" / run, "cell_finished")
        assert least_s / 3 <= first["spent_s"] < last["spent_s"]
        assert last["spent_s"] >= least_s  # Of all its classes, and one run went on.
    table = (out / "table.md").read_text()
    assert "0.3 s of CPU time a class" in table
    assert "0.9 s of CPU time a class" in table
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")

    # What was measured on the way is kept: the models of then are gone.
    before = files(out / "runs")
    again = manege("sweep", "plan.yaml", "-o", "out", "--json")
    assert again.json == done.json
    assert json.loads((out / "table.json").read_text()) == tree
    assert files(out / "runs") == before


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    whole = [json.loads(line) for line in lines if line.endswith("\n")]  # It may be written to.
    return [event for event in whole if event["event"] == kind]


@contextlib.contextmanager
def sweeping(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The sweep in a process of its own, which does not outlive the test."""
    with subprocess.Popen(
        [sys.executable, "-m", "manege", "sweep", "plan.yaml", "-o", "out"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job ignores SIGINT and hands that on; a user's command does not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        try:
            yield process
        finally:
            process.terminate()  # It takes its runs along.


def interrupted(folder: Path, number: signal.Signals) -> str:
    """What a sweep says that is sent a signal once its second run has gone on for a round."""
    run = folder / "out" / TOLD
    before = len(events(run, "round")) if run.exists() else 0
    with sweeping(folder) as process:
        deadline = time.monotonic() + 300
        while not ((run / "events.jsonl").exists() and len(events(run, "round")) > before):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 75, err
    return out


@pytest.mark.soak
def test_a_sweep_interrupted_and_started_again_gives_the_same_table(
    undisturbed: tuple[Path, Done], manege: Command, tmp_path: Path
) -> None:
    write_plan(tmp_path, more="")
    told, one = tmp_path / "out" / TOLD, tmp_path / "out" / "runs/one/seed-5/all"
    finished = None
    for times, number in enumerate((signal.SIGINT, signal.SIGTERM), start=1):
        assert "go on with the same command" in interrupted(tmp_path, number)
        assert not (tmp_path / "out" / "table.md").exists()
        # The run under way is saved, the one before it is finished and not touched again.
        assert json.loads((told / "status.json").read_text())["state"] == "stopped"
        assert list(told.glob("checkpoints/all/*.safetensors"))
        assert len(events(told, "run_stopped")) == times
        finished = finished or files(one)
        assert json.loads((one / "status.json").read_text())["state"] == "finished"
        assert files(one) == finished
    done = manege("sweep", "plan.yaml", "-o", "out", "--json")
    assert done.code == 0, done.err
    assert files(one) == finished
    saved = [(event["round"], event["step"]) for event in events(told, "commit")]
    begun = [(event["round"], event["step"]) for event in events(told, "cell_started")]
    assert begun == [(0, 0), *saved[:2]]  # Each time from where it was stopped.
    assert (0, 0) < saved[0] < saved[1] < saved[2] == (60, 0)

    folder, whole = undisturbed
    assert done.json["rows"] == [row for row in whole.json["rows"] if row["recipe"] != "bce"]
    tables = [(root / "out" / "table.md").read_text() for root in (folder, tmp_path)]
    lines = [[row for row in table.splitlines() if "`bce`" not in row] for table in tables]
    assert lines[0] == lines[1]
    for sheet in ("one-seed-5.png", "told-seed-5.png"):
        drawn = [(root / "out" / "sheets" / sheet).read_bytes() for root in (folder, tmp_path)]
        assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("classes: [3, 8]", "classes: []"), "classes"),
        (("seeds: [5]", "seeds: [5, 5]"), "twice"),
        (("hinge", "hing"), "recipe told: configuration: training.loss"),
        (("bce:", "../bce:"), "recipes: found '../bce'"),
        (("budget_s: 60", "budget_s: soon"), "budget_s"),
        (("budget_s: 60", "budget_s: [60, 30]"), "some that rise"),
        (("seeds:", "sedes:"), "sedes"),
        (("[auto, random]", "[pixels]"), "features.0"),
        (("data: digits", "data: [digits"), "plan.yaml"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_before_anything_is_made(
    change: tuple[str, str], says: str, manege: Command, tmp_path: Path
) -> None:
    path = write_plan(tmp_path)
    path.write_text(path.read_text().replace(*change))
    done = manege("sweep", "plan.yaml", "-o", "out")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
    assert says in done.err
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_left_alone(manege: Command, tmp_path: Path) -> None:
    write_plan(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    done = manege("sweep", "plan.yaml", "-o", "out")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "not a sweep" in done.err
    done = manege("sweep", "nowhere.yaml", "-o", "other")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "nowhere.yaml" in done.err
    done = manege("sweep", "plan.yaml", "-o", "other", "--jobs", "0")
    assert (done.code, done.err.count("\n")) == (2, 1)


@pytest.mark.full
def test_classes_that_differ_behind_a_point_have_configurations_of_their_own(
    manege: Command, tmp_path: Path
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (80, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=np.repeat(["v1.5", "v1.7"], 40))
    path = tmp_path / "plan.yaml"
    path.write_text(
        "data: a.npz\nclasses: [v1.5, v1.7]\nseeds: [5]\nbudget_s: 60\nsamples: 8\n"
        "features: [random]\nrecipes:\n"
        "  r: {preset: paper, rounds: 1, networks: {kind: mlp, hidden: 16}, training.batch: 32}\n"
    )
    done = manege("sweep", "plan.yaml", "-o", "out", "--jobs", "2")
    assert done.code == 0, done.err
    for label in ("v1.5", "v1.7"):
        run = tmp_path / "out" / "runs" / "r" / "seed-5" / label
        assert json.loads((run / "data.json").read_text())["classes"].keys() == {label}


@pytest.mark.full
def test_another_preset_than_a_recipe_names_is_told(manege: Command, tmp_path: Path) -> None:
    """Points are no pictures: the default preset's critic would see features."""
    (tmp_path / "plan.yaml").write_text(
        "data: ring8\nclasses: ['0']\nseeds: [5]\nbudget_s: 0.3\nsamples: 20\n"
        "base: {networks: {kind: mlp, hidden: 16}}\nrecipes: {a: {preset: modern}}\n"
    )
    done = manege("sweep", "plan.yaml", "-o", "out")
    assert done.code == 0, done.err
    said = "a: preset modern-pixels is trained, not modern, as always on ring8; name critic.kind"
    assert done.err.startswith(said)


@pytest.mark.full
def test_data_that_are_not_there_end_the_sweep_in_one_line(manege: Command, tmp_path: Path) -> None:
    path = write_plan(tmp_path)
    path.write_text(path.read_text().replace("data: digits", "data: nowhere"))
    done = manege("sweep", "plan.yaml", "-o", "out")
    assert (done.code, done.err.count("\n")) == (2, 1), done.err
    assert "nowhere" in done.err
