"""The documents say what is true; of real runs: tests/e2e/test_documents.py."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import jsonschema
import pytest
from tests.helpers.command import run_here

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


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


def test_the_readme_shows_the_example(tmp_path):
    example = (ROOT / "examples/digits.py").read_text().split('"""\n', 1)[1].strip()
    assert example in (ROOT / "README.md").read_text()


def test_the_readme_is_read_in_minutes():
    assert len((ROOT / "README.md").read_text().split()) <= 700
