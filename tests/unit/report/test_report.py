"""Reports of runs of every kind and in every condition."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.synthetic_run import (
    evaluation,
    grid_events,
    make_run,
    measured,
    per_class_events,
    trial,
)

from manege.errors import CheckpointError, ConfigError
from manege.pictures import grid, save_png
from manege.report import comparing, single, writing
from manege.report.run import RunRecord, read_run, stability_rows

CLASSES = ["a", "b", "c"]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of classes and a grid; not to be changed."""
    folder = tmp_path_factory.mktemp("made")
    run = make_run(
        folder / "classes", per_class_events(CLASSES, 10), labels=CLASSES, method="per-class"
    )
    evaluation(run, labels=tuple(CLASSES))
    trial(run, tuple(CLASSES))
    make_run(folder / "grid", grid_events(2, 2, 10), labels=CLASSES, method="cellular")
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy of the run of classes, to damage at will."""
    return Path(shutil.copytree(made / "classes", tmp_path / "run"))


class _Checker(HTMLParser):
    """Every element that is opened is closed; what a browser would load is noted."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.names: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag not in ("meta", "img", "br", "link"):
            self.open.append(tag)
        if tag in ("img", "script", "iframe", "source") and found.get("src"):
            self.loads.append(str(found["src"]))
        if tag == "img":
            assert found.get("alt")
        if tag == "link":
            self.loads.append(str(found["href"]))
        if found.get("id"):
            self.names.append(str(found["id"]))
        if tag == "a":
            self.links.append(str(found["href"]))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _checked(text: str) -> _Checker:
    checker = _Checker()
    checker.feed(text)
    assert checker.open == []
    assert len(checker.names) == len(set(checker.names))
    assert all(load.startswith("data:") for load in checker.loads)
    assert all(link[1:] in checker.names for link in checker.links)
    assert not re.search(r"url\(|@import|<script", text)
    return checker


def test_a_run_of_classes_has_everything_it_can_have(made):
    page = single.report(made / "classes")
    text = page.html()
    _checked(text)
    names = [section.name for section in page.sections]
    assert names == [
        *("scores", "verdict", "samples", "nearest", "curves", "stability", "table"),
        *("profile", "faults", "again"),
    ]
    assert {"class-scores", "training-scores", "losses", "score", "each"} <= set(page.figures)
    assert "1,000 generated pictures (seed 0) against 179 held-out pictures of digits" in text
    assert "manege train digits --out run" in text
    assert "✓ healthy" in text


def test_a_grid_has_its_torus_tree_and_mixture(made):
    page = single.report(made / "grid")
    _checked(page.html())
    assert {"torus", "mixture", "family", "profile"} <= {one.name for one in page.sections}
    wanted = {"fitness-g", "rate-g", "losses-map", "weights", "weights-over-time", "family-tree"}
    assert wanted <= set(page.figures)
    assert "update_genomes" in page.html()
    assert "Not evaluated against held-out pictures yet" in page.html()


def test_figures_lie_beside_the_report_as_svg_and_png(made, tmp_path):
    written = writing.write(single.report(made / "grid"), tmp_path / "report.html")
    assert written.bytes < 10_000_000
    kinds = {path.suffix for path in written.plots}
    assert kinds == {".svg", ".png"}
    assert all(path.stat().st_size > 500 for path in written.plots)


def test_samples_of_each_class_stand_beside_real_ones(made):
    text = single.report(made / "classes").html()
    for label in CLASSES:
        assert f'alt="real pictures: {label}"' in text
        assert f'alt="generated pictures: {label}"' in text
    assert 'alt="a after round 5"' in text


def test_an_empty_run_makes_a_report_with_a_note(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.yaml").write_text("method: per-class\n")
    text = single.report(path).html()
    _checked(text)
    assert "nothing has been trained" in text
    assert "status.json is missing" in text


def test_a_half_written_last_line_and_damage_are_noted(run):
    file = run / "events.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([lines[0], b"rubbish\n", *lines[1:], b'{"t": 1, "ev']))
    text = single.report(run).html()
    _checked(text)
    assert "1 damaged line(s) left out (line 2)" in text
    assert "half written" in text


def test_missing_and_broken_samples_are_no_failure(run):
    shutil.rmtree(run / "samples" / "a")
    (run / "samples" / "model.png").write_bytes(b"not a picture")
    for sheet in (run / "samples" / "b").iterdir():
        sheet.write_bytes(b"")
    text = single.report(run).html()
    _checked(text)
    assert 'alt="generated pictures: c"' in text
    shutil.rmtree(run / "samples")
    text = single.report(run).html()
    assert "No sample sheet has been drawn yet" in text


@pytest.mark.parametrize(
    "name",
    [
        "status.json",
        "data.json",
        "environment.json",
        "evaluations/0123456789ab.json",
        "verdict/0123456789ab/verdict-3-seeds.json",
    ],
)
@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xff", b'{"classes": 3, "scores": []}']
)
def test_other_damaged_files_are_no_failure(run, name, content):
    (run / name).write_bytes(content)
    _checked(single.report(run).html())


def test_the_verdict_stands_in_the_report_its_sentence_first(made):
    text = single.report(made / "classes").html()
    assert "Don&#x27;t: &lt;nothing&gt; gained." in text
    assert "150 training pictures, 50 to 50 a class; 3 seeds, 300 steps each" in text
    assert "1.4% of what it would add" in text
    assert text.index('id="scores"') < text.index('id="verdict"') < text.index('id="samples"')


@pytest.mark.parametrize(
    "harm",
    [
        lambda tree: tree.pop("sentence"),
        lambda tree: tree["arms"]["a"].pop("mean_recall"),
        lambda tree: tree["protocol"].pop("data"),
        lambda tree: tree["comparison"]["recall"].update(a={"value": "much"}),
        lambda tree: tree.update(memorisation=None),
    ],
)
def test_a_verdict_that_lacks_something_is_left_out_and_noted(run, harm):
    path = run / "verdict" / "0123456789ab" / "verdict-3-seeds.json"
    tree = json.loads(path.read_text())
    harm(tree)
    path.write_text(json.dumps(tree))
    text = single.report(run).html()
    assert "verdict/0123456789ab/verdict-3-seeds.json is damaged and was left out" in text
    assert 'id="verdict"' not in text


def test_fid_is_a_headline(run):
    path = run / "evaluations" / "0123456789ab.json"
    tree = json.loads(path.read_text())
    fid = {**tree["scores"][0], "name": "fid", "value": 5.27, "space": "inception-00000000"}
    path.write_text(json.dumps({**tree, "scores": [fid, *tree["scores"][1:]]}))
    text = single.report(run).html()
    assert '<div class="name">FID</div><div class="value">5.27</div>' in text


@pytest.mark.parametrize(
    "content",
    [
        b"{: nonsense",
        b"seed: !!int ''",
        b"seed: !!bool x",
        b"seed: !!timestamp x",
        b"seed: 1" + b":1" * 400 + b".5",
        b"[" * 5000,
        b"- a list",
        b"#" * 1_000_001,
    ],
)
def test_a_damaged_configuration_is_noted(run, content):
    (run / "config.yaml").write_bytes(content)
    assert "config.yaml cannot be read as YAML" in single.report(run).html()


@pytest.mark.parametrize("kind", ["classes", "grid"])
@pytest.mark.parametrize(
    "text",
    [
        *("cellular: 3", "cellular: {mixture: [1]}", "training: soon", "data: [1]", "data: 3"),
        *("stability: 1", "budget_s: much", "budget_s: .inf", "budget_s: [1]", "rounds: {a: 1}"),
        *("1: 2", "~: {~: 3}", "method: [1]", "preset: {}", "data: {source: [1]}"),
    ],
)
def test_a_configuration_with_other_things_in_it_is_no_failure(made, tmp_path, text, kind):
    run = shutil.copytree(made / kind, tmp_path / "run")
    (run / "config.yaml").write_text(text)
    _checked(single.report(run).html())
    _checked(comparing.compare([run, made / kind]).html())


def test_a_run_that_goes_on_failed_or_was_killed_says_so(run):
    status = {"incarnation": 1, "state": "running"}
    (run / "status.json").write_text(json.dumps(status))
    text = single.report(run).html()
    assert "manege resume" in text
    assert read_run(run).state == "interrupted"
    events = [{**json.loads(line)} for line in (run / "events.jsonl").read_text().splitlines()]
    failed = {
        **events[-1],
        "event": "cell_failed",
        "cell": "b",
        "round": 3,
        "reason": "<no> number",
    }
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps(failed) + "\n")
    (run / "status.json").write_text(json.dumps(status | {"state": "failed"}))
    text = single.report(run).html()
    assert "Failed: b; the model is that of the rest." in text
    assert "&lt;no&gt; number" in text


def test_faults_and_recoveries_are_listed_and_drawn(run):
    last = json.loads((run / "events.jsonl").read_text().splitlines()[-1])
    faults = [
        {"event": "rollback", "cell": "a", "round": 3, "step": 2, "attempt": 1, "reason": "a NaN"},
        {"event": "trainer_died", "trainer": 2, "how": "killed by SIGKILL", "cells": ["a"]},
        {"event": "warning", "cell": "a", "message": "the newest commit was damaged"},
    ]
    with (run / "events.jsonl").open("a") as file:
        for fault in faults:
            file.write(json.dumps({"t": last["t"], "incarnation": 1, **fault}) + "\n")
    page = single.report(run)
    assert "timeline" in page.figures
    assert "trainer 2 killed by SIGKILL" in page.html()


def test_names_of_classes_are_text_not_markup(tmp_path):
    odd = ["<b>", "a&b", 'quote"s', "\x1b[31m", "日本"]
    run = make_run(
        tmp_path / "run", per_class_events(odd, 5), labels=odd, method="per-class", sheets_every=0
    )
    text = single.report(run).html()
    _checked(text)
    assert "\x1b" not in text
    assert "&lt;b&gt;" in text


def test_sheets_outside_the_run_are_not_read(run, tmp_path):
    shutil.copy(run / "samples" / "a" / "round-000010.png", tmp_path / "secret.png")
    for path in (run / "samples").glob("*.png"):
        path.unlink()
    text = (run / "events.jsonl").read_text()
    away = text.replace("samples/a/round-000010.png", "../secret.png")
    away = away.replace("samples/a/round-000005.png", str(tmp_path / "secret.png"))
    (run / "events.jsonl").write_text(away)
    assert 'alt="generated pictures: a"' not in single.report(run).html()


def test_runs_side_by_side_show_differences_scores_curves_and_pictures(run, made, tmp_path):
    other = Path(shutil.copytree(made / "classes", tmp_path / "other"))
    evaluation(other, value=0.3)
    config = (other / "config.yaml").read_text().replace("loss: bce", "loss: hinge")
    (other / "config.yaml").write_text(config)
    for path in (run, other):
        shutil.copy(path / "samples" / "model.png", path / "samples" / "seed-0.png")
    page = comparing.compare([run, other])
    text = page.html()
    _checked(text)
    assert {"score-kid", "compare-score", "compare-generator"} <= set(page.figures)
    assert "<code>training.loss</code>" in text
    assert "Keys that differ: 1." in text
    assert "All drawn at seed 0" in text
    assert 'alt="samples of other"' in text


def test_runs_of_other_methods_and_without_scores_can_be_compared(made):
    page = comparing.compare([made / "classes", made / "grid"])
    _checked(page.html())
    assert "Not evaluated: grid" in page.html()


@pytest.fixture
def stable(tmp_path: Path) -> Path:
    """A folder of runs that told collapse and cycling, in one way or another."""
    ways = {"one": {}, "two": {}, "more": {"samples": 512}, "elsewhere": {"space": "points"}}
    for name, way in ways.items():
        events = measured(per_class_events(CLASSES, 10), **way)
        make_run(tmp_path / name, events, labels=CLASSES, method="per-class", sheets_every=0)
    events = measured(grid_events(2, 2, 10))
    make_run(tmp_path / "grid", events, labels=CLASSES, method="cellular", sheets_every=0)
    return tmp_path


def test_collapse_and_cycling_are_drawn_and_their_means_told(stable):
    page = single.report(stable / "one")
    text = page.html()
    _checked(text)
    assert {"collapse", "cycling"} <= set(page.figures)
    assert "features random-00000000, 64 pictures a round" in text
    # Of rounds 6 to 10: the mean of 1 / r, and of r / 10.
    assert re.search(r"collapse</th><td class=\"number\">0.129</td>", text)
    assert re.search(r"cycling</th><td class=\"number\">0.800</td>", text)


def test_collapse_and_cycling_of_two_runs_stand_in_one_row_and_figure(stable):
    page = comparing.compare([stable / "one", stable / "two"])
    text = page.html()
    _checked(text)
    assert {"compare-collapse", "compare-cycling"} <= set(page.figures)
    assert text.count("0.129<br><span class=muted>0.129 to 0.129, 3 cells</span>") == 2
    assert list(stability_rows([read_run(stable / name) for name in ("one", "two")])) == [
        "collapse@random-00000000",
        "cycling@random-00000000",
    ]


@pytest.mark.parametrize("other", ["more", "elsewhere", "grid"])
def test_collapse_and_cycling_that_were_told_otherwise_share_no_row(stable, other):
    runs = [read_run(stable / name) for name in ("one", other)]
    rows = stability_rows(runs)
    assert len(rows) == 4
    assert all([one is None for one in row].count(True) == 1 for row in rows.values())
    page = comparing.page_of(runs)
    _checked(page.html())
    assert not {"compare-collapse", "compare-cycling"} & set(page.figures)
    assert "Collapse and cycling" in page.html()


def stability_run(path: Path, settings: dict[str, Any] | None = None, **more: int) -> RunRecord:
    """A run that told collapse and cycling under these settings, read."""
    events = measured(per_class_events(CLASSES, 10), **more)
    make_run(
        path, events, labels=CLASSES, method="per-class", sheets_every=0, settings=settings or {}
    )
    return read_run(path)


WAYS = {
    "2 rounds back": {"stability": {"every_rounds": 1, "window": 2}},
    "every 3 rounds": {"stability": {"every_rounds": 3, "window": 10}},
    "rounds of 800 pictures": {"training": {"batch": 32, "batches_per_round": 25}},
    "rounds of a pass over 0.5 of the data": {"cellular": {"data_fraction": 0.5}},
}


@pytest.mark.parametrize(("why", "settings"), WAYS.items(), ids=list(WAYS))
def test_cycling_over_other_rounds_shares_no_row_or_figure_and_collapse_does(
    tmp_path, why, settings
):
    runs = [stability_run(tmp_path / "one"), stability_run(tmp_path / "other", settings)]
    rows = stability_rows(runs)
    assert None not in rows.pop("collapse@random-00000000")
    one, other = rows
    assert other == f"cycling@random-00000000, {why}"
    assert [[value is None for value in row] for row in rows.values()] == [
        [False, True],
        [True, False],
    ]
    assert one != other
    page = comparing.page_of(runs)
    _checked(page.html())
    assert why in page.html()
    assert "compare-collapse" in page.figures
    assert "compare-cycling" not in page.figures


def test_three_ways_to_tell_cycling_are_three_rows(tmp_path):
    settings = [None, *list(WAYS.values())[:2]]
    runs = [stability_run(tmp_path / str(n), one) for n, one in enumerate(settings)]
    assert list(stability_rows(runs)) == [
        "collapse@random-00000000",
        "cycling@random-00000000, every round, 10 rounds back",
        "cycling@random-00000000, every round, 2 rounds back",
        "cycling@random-00000000, every 3 rounds, 10 rounds back",
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"batch": 32, "batches_per_round": 25}, {"batch": 100, "batches_per_round": 8}),
        ({"batch": 32, "batches_per_round": None}, {"batch": 100, "batches_per_round": None}),
    ],
)
def test_rounds_are_as_long_when_they_train_on_as_many_pictures(tmp_path, one, other):
    runs = [
        stability_run(tmp_path / str(n), {"training": training})
        for n, training in enumerate((one, other))
    ]
    assert list(stability_rows(runs)) == ["collapse@random-00000000", "cycling@random-00000000"]


def test_collapse_by_fewer_pictures_than_drawn_says_by_how_many(tmp_path):
    run = stability_run(tmp_path / "one", compared=18, references=64)
    alike = stability_run(tmp_path / "alike", compared=18, references=64)
    assert list(stability_rows([run, alike])) == [
        "collapse@random-00000000, 18 compared",
        "cycling@random-00000000",
    ]
    # As told before references were as many as are drawn.
    older = stability_run(tmp_path / "older", compared=18)
    assert list(stability_rows([run, older])) == [
        "collapse@random-00000000, 18 compared, 64 to be covered",
        "collapse@random-00000000, 18 compared, 18 to be covered",
        "cycling@random-00000000",
    ]
    text = single.report(tmp_path / "one").html()
    _checked(text)
    assert "collapse by 18 of them and as many held-out ones, covering 64 training" in text


def test_other_pictures_held_out_share_no_row(tmp_path):
    runs = []
    for digest in ("aa", "aa", "bb", None):
        path = tmp_path / str(len(runs))
        stability_run(path)
        told = json.loads((path / "data.json").read_text())
        for entry in told["classes"].values():
            entry |= {} if digest is None else {"held_out_sha256": digest}
        (path / "data.json").write_text(json.dumps(told))
        runs.append(read_run(path))
    assert len(stability_rows(runs[:2])) == 2
    assert len(stability_rows(runs[1:3])) == 4
    assert len(stability_rows(runs)) == 6  # What is not known is not the same.


def test_runs_whose_numbers_of_pictures_span_the_same_lose_no_row(tmp_path):
    runs = []
    for middle in (100, 200):
        events = list(per_class_events(CLASSES, 10))
        counts = dict(zip(CLASSES, (64, middle, 512), strict=True))
        told = [
            one
            for event in events
            for one in measured(iter([event]), samples=counts.get(event.get("cell"), 64))
        ]
        path = tmp_path / str(middle)
        make_run(path, iter(told), labels=CLASSES, method="per-class", sheets_every=0)
        runs.append(read_run(path))
    rows = stability_rows(runs)
    assert len(rows) == 4
    assert all([one is None for one in row].count(True) == 1 for row in rows.values())


def test_runs_without_collapse_and_cycling_have_no_such_section(made):
    page = comparing.compare([made / "classes", made / "grid"])
    assert "stability" not in {section.name for section in page.sections}


def test_runs_with_the_same_name_are_told_apart(made, tmp_path):
    paths = [tmp_path / name / "all" for name in ("x", "y")]
    for path in paths:
        shutil.copytree(made / "grid", path)
    assert comparing.names_of([read_run(path) for path in paths]) == ["x", "y"]


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no such folder"):
        single.report(tmp_path / "none")


def test_somebody_elses_file_is_not_written_over(tmp_path, made):
    out = tmp_path / "page.html"
    out.write_text("<p>mine</p>")
    with pytest.raises(ConfigError, match="no report of ours"):
        writing.check_free(out, force=False)
    writing.check_free(out, force=True)
    writing.write(single.report(made / "classes"), out)
    writing.check_free(out, force=False)
    with pytest.raises(ConfigError, match="ends in"):
        writing.check_free(tmp_path / "page.pdf", force=False)


def test_nothing_of_report_and_view_imports_torch_or_matplotlib():
    code = (
        "import sys; import manege.cli.report, manege.cli.watch, manege.report.single, "
        "manege.report.comparing, manege.report.writing, manege.view.following, manege.view.live, "
        "manege.view.tensorboard; "
        "print(*(name for name in ('torch', 'matplotlib') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_absurd_numbers_in_events_are_no_failure(run):
    absurd = [
        {"event": "warning", "t": 1e300, "message": "from the far future"},
        {"event": "cell_started", "t": 1.8e9, "cell": "999999-999999", "round": 10**18, "step": 0},
        {"event": "sheet", "t": 1.8e9, "cell": "a", "round": -5, "file": "/etc/hostname"},
    ]
    with (run / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in absurd)
    (run / "status.json").write_text('{"state": "banana"}')
    text = single.report(run).html()
    _checked(text)
    assert "state unknown" in text
    assert "1 event(s) without the fields they should have" in text


@pytest.mark.full
def test_large_pictures_of_many_classes_stay_below_the_limit(tmp_path):
    labels = [f"class {number}" for number in range(60)]
    path = make_run(
        tmp_path / "run",
        per_class_events(labels, 5),
        labels=labels,
        method="per-class",
        sheets_every=0,
    )
    data = json.loads((path / "data.json").read_text())
    (path / "data.json").write_text(json.dumps(data | {"size": 64, "channels": 3}))
    noise = np.random.default_rng(0).integers(0, 256, (480, 64, 64, 3), dtype=np.uint8)
    for name in ("real.png", "model.png"):
        save_png(path / "samples" / name, grid(noise, columns=8), {})
    page = single.report(path)
    text = page.html()
    _checked(text)
    assert 2_000_000 < len(text) < 10_000_000
    assert "left out to keep the file small" in text
