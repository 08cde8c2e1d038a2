"""The documents say what is true."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.helpers.command import run_here
from tests.helpers.observers import StopWhen

from manege.api import start_run
from manege.config import resolve
from manege.rundir import RunDir

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def test_events_of_real_runs_fit_the_schema_and_the_page(tmp_path, score_cache, monkeypatch):
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
    from manege.api import continue_run

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


def test_the_schema_refuses_what_no_run_writes():
    schema = json.loads((ROOT / "docs/events.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    head = {"t": 1.0, "incarnation": 1}
    for bad in (
        {"event": "nonsense"},
        {"event": "sheet", "cell": "a", "round": 1},
        {"event": "sheet", "cell": "a", "round": 1, "file": "samples/a.png", "more": 1},
    ):
        assert not validator.is_valid(head | bad)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    text = page.read_text()
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", text) + re.findall(r'src="([^"]+)"', text)
    for target in links:
        assert (page.parent / target).exists(), f"{page}: {target}"


def test_the_reference_of_the_command_line_is_fresh(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("docs", ROOT / "scripts/write_cli_docs.py")
    assert spec is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    def help_here(command: tuple[str, ...]) -> str:
        plain = {"COLUMNS": "96", "TERMINAL_WIDTH": "96", "NO_COLOR": "1"}
        return run_here(*command, "--help", cwd=tmp_path, env=plain).out

    # A process for each of the commands takes its time; one shows that they say the same.
    assert script._help(("train",)) == help_here(("train",))
    monkeypatch.setattr(script, "_help", help_here)
    assert script.page() == (ROOT / "docs/cli.md").read_text(), "run `make docs`"


def test_the_example_is_at_most_ten_lines_and_runs(tmp_path, score_cache):
    source = (ROOT / "examples/digits.py").read_text()
    code = [line for line in source.splitlines() if line.strip() and not line.startswith('"""')]
    assert len(code) <= 10
    ast.parse(source)
    shorter = source.replace("budget_s=60", "budget_s=1")
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


def test_the_readme_shows_the_example(tmp_path):
    example = (ROOT / "examples/digits.py").read_text().split('"""\n', 1)[1].strip()
    assert example in (ROOT / "README.md").read_text()


def test_the_readme_is_read_in_minutes():
    assert len((ROOT / "README.md").read_text().split()) <= 700
