"""A grid of cells from the command line: trained, drawn from, scored, and refused in one line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch
from PIL import Image

from manege import api
from manege.cell import GridState
from manege.config import ALL
from manege.methods import Cellular
from manege.models import ALIGN
from manege.runs import RunDir
from tests.helpers.command import Done, run_here

from .conftest import Command

ROOT = Path(__file__).resolve().parents[2]
ROUTINES = ("gather", "train", "update_genomes", "mutate", "overall")
SETTINGS = {
    "networks.hidden": 8,
    "training.batch": 50,
    "training.batches_per_round": 3,
    "training.attempts": 1,
    "cellular.fitness_samples": 32,
    "cellular.mixture.samples": 100,
    "cellular.mixture.steps": 5,
    "cellular.mixture.final_samples": 200,
    "cellular.mixture.final_steps": 5,
}
SMALL = tuple(word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}"))
TRAIN = ("train", "digits", "--method", "cellular", "--grid", "2x2", "--rounds", "2", *SMALL)


@dataclass(frozen=True)
class Trained:
    """A finished run, and what its command printed."""

    path: Path
    done: Done


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A finished grid on three digits; not to be changed."""
    folder = tmp_path_factory.mktemp("grid")
    done = run_here(*TRAIN, "--classes", "3,7,8", "--out", "run", cwd=folder)
    assert done.code == 0, done.err
    return Trained(folder / "run", done)


def told(run: Path, kind: str) -> list[dict]:
    return [event for event in RunDir.open(run).events() if event["event"] == kind]


def test_a_grid_trains_and_says_where_its_time_went(grid: Trained) -> None:
    lines = [line.split() for line in grid.done.out.splitlines()]
    assert lines[0][0] == "finished"
    heads = [words[0] for words in lines]
    begin = heads.index("routine")
    assert tuple(heads[begin + 1 : begin + 6]) == ROUTINES
    shares = {words[0]: float(words[-1].rstrip("%")) for words in lines[begin + 1 : begin + 6]}
    assert shares["overall"] == 100
    assert 50 < sum(shares[name] for name in ROUTINES[:-1]) <= 100.5
    assert all(share > 0 for name, share in shares.items() if name != "gather")
    assert heads[begin + 6 :] == ["model", "sheet", "draw"]


def test_every_event_of_a_grid_fits_the_schema(grid: Trained) -> None:
    schema = json.loads((ROOT / "docs" / "events.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    events = list(RunDir.open(grid.path).events())
    for event in events:
        validator.validate(event)
    kinds = [event["event"] for event in events]
    assert kinds.count("round") == 8
    assert kinds.count("mixture") == kinds.count("model") == 1
    # A grid's account of a round is required of it, not only let pass.
    account = next(event for event in events if event["event"] == "round")
    del account["grid"]["generator"]["parent"]
    assert not validator.is_valid(account)


def test_the_model_of_a_grid_is_the_mixture_that_scored_best(grid: Trained) -> None:
    (mixture,) = told(grid.path, "mixture")
    scores = mixture["scores"]
    assert set(scores) == {"0-0", "0-1", "1-0", "1-1"}
    assert mixture["cell"] == min(scores, key=lambda cell: scores[cell]["value"])
    model = api.load_model(grid.path)
    assert model.labels == (ALL,)
    total = sum(one.weight for one in model.components)
    assert {one.cell: one.weight / total for one in model.components} == pytest.approx(
        mixture["weights"]
    )


def test_a_grid_can_be_drawn_from(grid: Trained, manege: Command, tmp_path: Path) -> None:
    done = manege("sample", grid.path, "-n", "8", "-o", "x.png", "--json")
    assert done.code == 0, done.err
    assert (done.json["count"], done.json["labels"]) == (8, {ALL: 8})
    with Image.open(tmp_path / "x.png") as sheet:
        assert min(sheet.size) >= 2 * 8  # Eight digits of 8x8, in rows.
    assert manege("sample", grid.path, "-n", "8", "-o", "again.png").code == 0
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "x.png").read_bytes()
    assert manege("export", grid.path, "-o", "model").code == 0
    assert manege("sample", "model", "-n", "8", "-o", "exported.png").code == 0
    assert (tmp_path / "exported.png").read_bytes() == (tmp_path / "x.png").read_bytes()


@pytest.mark.full
def test_a_grid_can_be_scored(grid: Trained, manege: Command) -> None:
    done = manege("evaluate", grid.path, "--json", "--samples", "64", "--metrics", "kid")
    assert done.code == 0, done.err
    assert "kid" in done.out


@pytest.mark.full
def test_a_finished_grid_resumed_is_finished(grid: Trained, manege: Command) -> None:
    before = api.load_model(grid.path).digest
    done = manege("resume", grid.path, "--json")
    assert (done.code, done.json["state"]) == (0, "finished"), done
    assert done.json["rounds"] == dict.fromkeys(("0-0", "0-1", "1-0", "1-1"), 2)
    assert api.load_model(grid.path).digest == before


@pytest.mark.full
def test_a_grid_of_one_cell_draws_what_a_single_gan_draws(tmp_path: Path) -> None:
    shared = {"rounds": 2, "data.classes": ["3"], "preset": "cellular-paper"}
    options = {key.replace(".", "__"): value for key, value in (SETTINGS | shared).items()}
    alone = {key: value for key, value in options.items() if not key.startswith("cellular")}
    grid = api.train(
        "digits",
        out=tmp_path / "grid",
        method="cellular",
        cellular__rows=1,
        cellular__columns=1,
        cellular__skip=0,
        cellular__mutation__kind="none",
        **options,
    )
    single = api.train("digits", out=tmp_path / "single", method="single", **alone)
    one, other = (run.model.sample(40, seed=7).pictures for run in (grid, single))
    assert np.array_equal(one, other)
    commits = [
        RunDir.open(run.path).load(ALL, identity=run.config.identity()).tensors
        for run in (grid, single)
    ]
    for kind in ("generator", "discriminator"):
        trained, expected = commits[0][f"{kind} 0"], commits[1][kind]
        assert np.array_equal(trained[:-ALIGN], expected[:-ALIGN])
        assert trained[-ALIGN:][:2].tolist() == expected[-ALIGN:][:2].tolist()  # Steps and rate.


def test_grids_of_one_class_keep_its_label_and_merge(tmp_path: Path) -> None:
    options = {key.replace(".", "__"): value for key, value in SETTINGS.items()}
    size = {"cellular__rows": 1, "cellular__columns": 2}
    three, eight = (
        api.train(
            "digits",
            out=tmp_path / label,
            method="cellular",
            rounds=1,
            data__classes=[label],
            **size,
            **options,
        )
        for label in ("3", "8")
    )
    assert three.model.labels == ("3",)
    assert not three.model.unlabelled
    assert {one.cell for one in three.model.components} == {"0-0", "0-1"}
    both = three.model.merged(eight.model)
    assert set(both.sample(30, balanced=True).labels) == {"3", "8"}
    for run, label in ((three, "3"), (eight, "8")):
        drawn = both.pictures_of(label, 6, seed=4)
        assert np.array_equal(drawn, run.model.pictures_of(label, 6, seed=4))
    api.save_model(both, tmp_path / "both")
    assert api.load_model(tmp_path / "both").digest == both.digest


@pytest.mark.full
def test_a_cell_that_fails_leaves_the_grid_its_model_and_the_exit_code_4(
    manege: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = Cellular._train

    def broken(method: Cellular, cell: str, state: GridState, opponents: list) -> int:
        images = train(method, cell, state, opponents)
        if cell == "0-1" and state.round_ == 1:
            with torch.no_grad():
                state.offspring.pair.generator.weights.fill_(float("nan"))
        return images

    monkeypatch.setattr(Cellular, "_train", broken)
    done = manege(*TRAIN, "--classes", "3", "--out", "run", "--json")
    reason = "the generator's loss is not finite in round 2"
    assert done.code == 4, done.err
    assert (done.json["state"], done.json["failed"]) == ("failed", {"0-1": reason})
    assert done.json["rounds"] == {"0-0": 2, "0-1": 1, "1-0": 2, "1-1": 2}
    assert f"cell '0-1' failed and stays as it was: {reason}" in done.err
    assert manege("sample", "run", "-n", "4", "-o", "a.png").code == 0


# Bad input.

METRIC = "cellular.mixture.metric=is"
CUSTOM = "cellular.neighbourhood={{kind: custom, offsets: {}}}"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--grid", "3"], ("--grid '3'", "expected rows x columns", "--grid 3x3")),
        (["--grid", "x3"], ("--grid 'x3'", "expected rows x columns")),
        (["--grid", "2x2x2"], ("--grid '2x2x2'", "expected rows x columns")),
        (["--grid", "-1x2"], ("--grid '-1x2'", "expected rows x columns")),
        (["--grid", "²x2"], ("--grid '²x2'", "expected rows x columns")),
        (["--grid", "0x2"], ("cellular.rows: found 0", "equal to 1")),
        (["--grid", "101x100"], ("101x100 cells", "at most 10,000")),
        (["--ema", "0.9"], ("ema", "set ema=0")),
        (["--augment", "adaptive"], ("augment", "augment none")),
        (["--score", "kid"], ("score.metric", "cellular.mixture.metric")),
        (["--neighbourhood", "star"], ("cellular.neighbourhood.kind: found 'star'", "nine")),
        (["--neighbourhood", "custom"], ("cellular.neighbourhood.offsets: missing",)),
        (["--set", CUSTOM.format("[[0, 1]]")], ("[0, 1] without its opposite [0, -1]",)),
        (["--set", CUSTOM.format("[[0, 0]]")], ("found [0, 0], the cell itself",)),
        (["--data-fraction", "0"], ("cellular.data_fraction: found 0",)),
        (["--data-fraction", "2"], ("cellular.data_fraction: found 2",)),
        (["--set", "cellular.nonsense=1"], ("cellular.nonsense: unknown key",)),
        (["--set", "cellular.mixture.nonsense=1"], ("cellular.mixture.nonsense: unknown key",)),
        (["--set", "cellular.objectives=[nonsense]"], ("cellular.objectives", "'nonsense'")),
        (
            ["--loss", "hinge", "--set", "cellular.objectives=[minimax]"],
            ("cellular.objectives", "the loss is hinge", "training.loss=bce"),
        ),
        (["--set", "data.source=ring8", "--set", METRIC], ("score needs a classifier",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_for_a_grid_is_refused_in_one_line(
    manege: Command, tmp_path: Path, words: list[str], says: tuple[str, ...]
) -> None:
    method = [] if "--method" in words else ["--method", "cellular"]
    done = manege("train", "digits", *method, *SMALL, "--rounds", "1", *words)
    assert (done.code, done.out) == (2, ""), done
    (line,) = done.err.splitlines()
    assert line.startswith("manege")
    for fragment in says:
        assert fragment in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--method", "single", "--grid", "2x2"], ("cellular", "the method is single")),
        (["--method", "per-class", "--grid", "2x2"], ("cellular", "the method is per-class")),
        (["--method", "single", "--data-fraction", "0.5"], ("cellular", "the method is single")),
        (["--method", "cellular", "--preset", "paper"], ("cellular: null", "cellular-paper")),
        (["--method", "cellula"], ("method: found 'cellula'", "did you mean cellular?")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_grid_where_there_is_none_is_refused_in_one_line(
    manege: Command, tmp_path: Path, words: list[str], says: tuple[str, ...]
) -> None:
    done = manege("train", "digits", "--rounds", "1", *words)
    assert (done.code, done.out) == (2, ""), done
    (line,) = done.err.splitlines()
    for fragment in says:
        assert fragment in line
    assert list(tmp_path.iterdir()) == []
