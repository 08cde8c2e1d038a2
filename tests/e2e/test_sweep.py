"""`manege sweep`: every run a process, a table at the end, and nothing lost in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import Command

PLAN = """
data: digits
classes: [3, 8]
seeds: [5]
budget_s: {budget}
samples: 60
base:
  networks: {{kind: mlp, hidden: 16}}
  training.batch: 32
recipes:
  bce: {{preset: paper-dc}}
  one: {{preset: paper-dc, method: single}}
  told: {{preset: paper-dc, method: conditional, training.loss: hinge}}
"""


def write_plan(folder: Path, budget: str = "0.3") -> Path:
    path = folder / "plan.yaml"
    path.write_text(PLAN.format(budget=budget))
    return path


def test_recipes_of_all_methods_are_trained_and_measured_alike(
    manege: Command, tmp_path: Path
) -> None:
    write_plan(tmp_path)
    done = manege("sweep", "plan.yaml", "-o", "out", "--jobs", "2", "--json")
    assert done.code == 0, done.err
    rows = {row["recipe"]: row for row in done.json["rows"]}
    assert rows.keys() == {"bce", "one", "told"}
    for row in rows.values():
        assert (row["seeds"], row["failed"]) == ([5], [])
        assert len(row["values"]["kid"]) == len(row["values"]["coverage"]) == 1
    assert {"kid [3]", "kid [8]"} <= rows["bce"]["values"].keys() & rows["told"]["values"].keys()
    assert "kid [3]" not in rows["one"]["values"]
    table = (tmp_path / "out" / "table.md").read_text()
    assert all(f"| `{name}` |" in table for name in rows)
    assert "| real pictures |" in table
    assert (tmp_path / "out" / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert len(list((tmp_path / "out" / "sheets").glob("*.png"))) == 3
    runs = sorted(
        p.parent.relative_to(tmp_path / "out/runs").as_posix()
        for p in (tmp_path / "out" / "runs").glob("*/*/*/config.yaml")
    )
    assert runs == ["bce/seed-5/3", "bce/seed-5/8", "one/seed-5/all", "told/seed-5/all"]
    # One model for both classes has the time of both.
    config = (tmp_path / "out/runs/one/seed-5/all/config.yaml").read_text()
    assert "budget_s: 0.6" in config
    assert "budget_clock: cpu" in config

    again = manege("sweep", "plan.yaml", "-o", "out", "--json")
    assert (again.code, again.err) == (0, "")
    assert again.json["rows"] == done.json["rows"]


def test_a_sweep_that_is_stopped_has_its_runs_saved(manege: Command, tmp_path: Path) -> None:
    write_plan(tmp_path, budget="4")
    command = [sys.executable, "-m", "manege", "sweep", "plan.yaml", "-o", "out"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    first = tmp_path / "out/runs/bce/seed-5/3/events.jsonl"
    deadline = time.monotonic() + 60
    while not (first.exists() and '"round"' in first.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 75
    assert b"go on with the same command" in out
    status = json.loads((first.parent / "status.json").read_text())
    assert status["state"] == "stopped"
    assert list(first.parent.glob("checkpoints/3/*.safetensors"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("classes: [3, 8]", "classes: []"), "classes"),
        (("seeds: [5]", "seeds: [5, 5]"), "twice"),
        (("hinge", "hing"), "recipe told: configuration: training.loss"),
        (("bce:", "../bce:"), "recipes: found '../bce'"),
        (("budget_s: 0.3", "budget_s: soon"), "budget_s"),
        (("seeds:", "sedes:"), "sedes"),
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


def test_data_that_are_not_there_end_the_sweep_in_one_line(manege: Command, tmp_path: Path) -> None:
    path = write_plan(tmp_path)
    path.write_text(path.read_text().replace("data: digits", "data: nowhere"))
    done = manege("sweep", "plan.yaml", "-o", "out")
    assert (done.code, done.err.count("\n")) == (2, 1), done.err
    assert "nowhere" in done.err
