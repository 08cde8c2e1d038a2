"""The documents say what is true of real runs: their events, and the example."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from manege.api import continue_run, start_run
from manege.config import resolve
from manege.runs import RunDir
from tests.helpers.observers import StopWhen

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.full
def test_events_of_real_runs_fit_the_schema_and_the_page(tmp_path, monkeypatch):
    schema = json.loads((ROOT / "docs/events.schema.json").read_text())
    page = (ROOT / "docs/run-directory.md").read_text()
    sets = ["networks.kind=mlp", "data.classes=[3, 7, 8]", "sheets.every_rounds=2"]
    sets += ["score.metric=kid", "score.every_rounds=2", "training.ema=0.9"]
    sets += ["training.attempts=2", "training.augment.kind=adaptive"]
    config = resolve(preset="paper", flags={"data.source": "digits", "rounds": 3}, sets=sets)
    # The second step breaks down.
    troubles = chain([None, "poisoned"], repeat(None))
    monkeypatch.setattr("manege.methods.base.step_trouble", lambda state: next(troubles))
    # No control is ever far enough off.
    monkeypatch.setattr("manege.metrics.controls.MARGIN", 1e9)
    written = tmp_path / "run" / "events.jsonl"

    def stop() -> str | None:
        """Ask for the end after the first round."""
        return "SIGTERM" if written.exists() and '"round","' in written.read_text() else None

    run = start_run(config, out=tmp_path / "run", observer=StopWhen(stop))
    assert run.outcome.state == "stopped"
    continue_run(tmp_path / "run")
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    seen = set()
    for event in (*RunDir.open(tmp_path / "run").events(), *_events_of_a_grid(tmp_path / "grid")):
        validator.validate(event)
        seen.add(event["event"])
    known = set(schema["properties"]["event"]["enum"])
    assert seen == known - {"warning", "cell_failed", "trainer_died"}  # Those: tests/recovery.
    for name in known:
        assert f"| `{name}` |" in page


def _events_of_a_grid(out: Path) -> list[dict[str, Any]]:
    small = ["networks.hidden=8", "cellular.fitness_samples=16", "cellular.mixture.steps=2"]
    small += ["cellular.mixture.samples=100", "cellular.mixture.final_samples=100"]
    flags = {"data.source": "digits", "method": "cellular", "rounds": 2}
    flags |= {"cellular.rows": 1, "cellular.columns": 2, "cellular.mixture.final_steps": 2}
    start_run(resolve(preset="cellular-mustangs", flags=flags, sets=small), out=out)
    return list(RunDir.open(out).events())


@pytest.mark.full
def test_the_example_is_at_most_ten_lines_and_runs(tmp_path):
    source = (ROOT / "examples/digits.py").read_text()
    code = [line for line in source.splitlines() if line.strip() and not line.startswith('"""')]
    assert len(code) <= 10
    ast.parse(source)
    shorter = source.replace('budget="1m"', 'budget="1s"')
    assert shorter != source
    done = subprocess.run(
        [sys.executable, "-c", shorter],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "eights.png").stat().st_size > 100
