"""Points in the plane from the command line: trained, resumed, drawn, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from manege.config import DataConfig
from manege.data import Split, open_dataset, read_set, set_of
from manege.pictures import read_text, scatter
from tests.helpers.command import TINY, run_here
from tests.helpers.material import write_class

from .conftest import Command


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two rounds on two of the eight modes; not to be changed."""
    folder = tmp_path_factory.mktemp("ring")
    done = run_here(
        *("train", "ring8", "--classes", "0,2", "--rounds", "2", *TINY, "--out", "run"),
        cwd=folder,
    )
    assert done.code == 0, done.err
    return folder / "run"


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def test_a_run_on_points_settles_their_form_and_draws_them(ring: Path) -> None:
    config = (ring / "config.yaml").read_text()
    assert "source: ring8\n" in config
    assert "size: 1\n" in config
    assert "channels: 2\n" in config
    told = json.loads((ring / "data.json").read_text())
    assert (told["name"], told["size"], told["channels"]) == ("ring8", 1, 2)
    for sheet in (ring / "samples").rglob("*.png"):
        assert pixels(sheet).shape == (160, 160)
        assert 0 < (pixels(sheet) < 255).mean() < 0.5


def test_a_resumed_run_is_the_run_that_was_not_interrupted(
    ring: Path, manege: Command, tmp_path: Path
) -> None:
    shutil.copytree(ring, tmp_path / "run")
    done = manege("resume", "run", "--rounds", "3", "--json")
    assert done.code == 0, done.err
    assert done.json["rounds"] == {"0": 3, "2": 3}
    at_once = ("train", "ring8", "--classes", "0,2", "--rounds", "3", *TINY, "--out", "whole")
    assert manege(*at_once).code == 0
    for name in ("run", "whole"):
        assert manege("sample", name, "-o", f"{name}.npz").code == 0
    with np.load(tmp_path / "run.npz") as one, np.load(tmp_path / "whole.npz") as other:
        np.testing.assert_array_equal(one["images"], other["images"])


def test_points_are_drawn_as_a_scatter_and_kept_in_an_npz(
    ring: Path, manege: Command, tmp_path: Path
) -> None:
    for out in ("a.png", "a.npz"):
        done = manege("sample", ring, "-o", out, "-n", "30", "--seed", "4")
        assert (done.code, done.err) == (0, "")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as archive:
        images, labels = archive["images"], archive["labels"].tolist()
    assert (images.shape, images.dtype) == ((30, 1, 1, 2), np.uint8)
    assert set(labels) == {"0", "2"}
    np.testing.assert_array_equal(pixels(tmp_path / "a.png"), scatter(images)[:, :, 0])
    assert json.loads(read_text(tmp_path / "a.png")["labels"]) == labels
    read = read_set(tmp_path / "a.npz")
    assert (len(read), read.size, read.channels) == (30, 1, 2)


def test_points_are_no_picture_files(ring: Path, manege: Command, tmp_path: Path) -> None:
    done = manege("sample", ring, "-o", "deep/folder")
    assert done.code == 2
    assert done.err == "manege: deep/folder: points have no picture files; write .npz or .png\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("--networks", "dcgan"),
            "networks: found dcgan for ring8, but points need --networks mlp",
        ),
        ((), "networks: found dcgan for ring8, but points need --networks mlp"),
        (("--networks", "mlp", "--size", "8"), "data.size: found 8, expected 1, for ring8 are"),
        (("--networks", "mlp", "--channels", "1"), "data.channels: found 1, expected 2, for ring8"),
    ],
)
def test_what_points_cannot_be_is_refused_in_one_line(
    args: tuple[str, ...], message: str, manege: Command, tmp_path: Path
) -> None:
    done = manege("train", "ring8", *args, "--rounds", "1")
    assert done.code == 2
    assert done.err.startswith(f"manege: configuration: {message}")
    assert done.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_drawn_points_cannot_be_trained_on_as_pictures(
    ring: Path, manege: Command, tmp_path: Path
) -> None:
    assert manege("sample", ring, "-o", "a.npz", "-n", "40", "--balanced").code == 0
    done = manege("train", "a.npz", "--rounds", "1", *TINY)
    assert done.code == 2
    assert "a.npz: images are points, (N, 1, 1, 2), expected (N, H, W)" in done.err
    assert done.err.count("\n") == 1


def test_a_check_tells_the_modes_of_a_toy(manege: Command, tmp_path: Path) -> None:
    done = manege("data", "check", "ring8", "--sheet", "ring.png")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("ring8: 8 classes, trained as points in the plane\n")
    assert re.search(r"^  7 +1,000 to train on +250 held out$", done.out, re.MULTILINE)
    assert "fine to train on" in done.out
    assert pixels(tmp_path / "ring.png").ndim == 2
    told = manege("data", "check", "ring8", "--json")
    assert told.out.count("\n") == 1
    assert [entry["label"] for entry in told.json["classes"]] == list("01234567")


def test_the_list_of_datasets_has_the_toys(manege: Command) -> None:
    lines = manege("data", "list").out.splitlines()
    assert any(re.match("ring8 +8 Gaussians on a circle: points", line) for line in lines)
    assert any(re.match("grid25 +5x5 Gaussians: points", line) for line in lines)
    rows = {row["name"]: row for row in manege("data", "list", "--json").json["datasets"]}
    assert (rows["ring8"]["where"], rows["grid25"]["where"]) == ("computed", "computed")


@pytest.mark.parametrize(
    ("size", "channels", "accepted"),
    [
        (1, 2, True),
        (1, 1, False),
        (1, 3, False),
        (32, 2, False),
        (1.0, 2, False),
        (True, 2, False),
    ],
)
def test_a_model_is_of_pictures_or_of_points_and_of_nothing_between(
    ring: Path, manege: Command, tmp_path: Path, size: float, channels: int, accepted: bool
) -> None:
    model = Path(shutil.copytree(ring / "model", tmp_path / "model"))
    tree = json.loads((model / "model.json").read_text())
    tree["picture"] = {"size": size, "channels": channels}
    (model / "model.json").write_text(json.dumps(tree))
    done = manege("model", "show", model)
    assert done.code == (0 if accepted else 2)
    assert ("damaged, or not a manege model" in done.err) == (not accepted)


# Scores.


@pytest.fixture(scope="module")
def scored_ring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on all eight modes that kept its best generators; not to be changed."""
    folder = tmp_path_factory.mktemp("scored-ring")
    words = ("--networks", "mlp", "--set", "networks.hidden=16", "--rounds", "2")
    done = run_here("train", "ring8", *words, "--score", "kid", "--out", "run", cwd=folder)
    assert done.code == 0, done.err
    return folder / "run"


@pytest.fixture
def own_ring(scored_ring: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(scored_ring, tmp_path / "run"))


def test_a_toy_is_scored_in_the_plane_itself(scored_ring: Path) -> None:
    lines = (scored_ring / "events.jsonl").read_text().splitlines()
    told = [event for event in map(json.loads, lines) if event["event"] == "score"]
    assert [event["cell"] for event in told] == list("01234567")
    assert {(event["metric"], event["space"]) for event in told} == {("kid", "points")}
    assert json.loads((scored_ring / "scorer" / "scorer.json").read_text())["kind"] == "points"


def test_a_toy_may_be_scored_by_frechet_distance(manege: Command, tmp_path: Path) -> None:
    words = ("--classes", "0,2", "--rounds", "1", *TINY, "--score", "fd", "--out", "run")
    done = manege("train", "ring8", *words)
    assert done.code == 0, done.err
    for component in json.loads((tmp_path / "run/model/model.json").read_text())["components"]:
        assert component["trained"]["score"]["metric"] == "fd"


def test_a_run_on_a_toy_is_told_its_modes(manege: Command, own_ring: Path) -> None:
    done = manege("evaluate", "run", "--json")
    assert (done.code, done.err) == (0, "")
    scores = {score["name"]: score for score in done.json["scores"]}
    assert {"kid", "fd", "modes", "high-quality"} <= scores.keys()
    assert {score["space"] for score in scores.values()} == {"points"}
    assert scores["modes"]["reference"] == 8
    assert 0 <= scores["modes"]["low"] <= scores["modes"]["value"] <= 8
    assert done.json["left_out"].keys() == {"labels", "nearest"}
    table = manege("evaluate", "run").out
    assert "features: points, 2 dimensions\n" in table
    assert re.search(r"^  modes@points +\d ", table, re.MULTILINE)
    assert re.search(r"^  high-quality@points +[\d.]+ ", table, re.MULTILINE)


@pytest.mark.full
def test_points_of_the_toy_itself_reach_every_mode(manege: Command, tmp_path: Path) -> None:
    points = set_of(open_dataset(DataConfig(source="ring8")), Split.TRAIN)
    np.savez(tmp_path / "true.npz", images=points.pictures)
    np.savez(tmp_path / "half.npz", images=points.pictures[: len(points) // 2])
    for name, modes in (("true.npz", 8), ("half.npz", 4)):
        done = manege("evaluate", name, "--data", "ring8", "--metrics", "modes,kid", "--json")
        assert (done.code, done.err) == (0, "")
        scores = {score["name"]: score for score in done.json["scores"]}
        assert scores["modes"]["value"] == modes
        assert scores["high-quality"]["value"] > 0.97
        assert (scores["kid"]["value"] < 0.01) == (modes == 8)


def test_drawn_points_score_as_their_model(manege: Command, own_ring: Path) -> None:
    assert manege("sample", "run", "-n", "2000", "-o", "drawn.npz").code == 0
    values = []
    for words in (("run",), ("drawn.npz", "--data", "ring8")):
        done = manege("evaluate", *words, "--metrics", "kid,modes", "--json")
        assert done.code == 0, done.err
        values.append([score["value"] for score in done.json["scores"]])
    assert values[0] == pytest.approx(values[1], rel=1e-4)


@pytest.mark.full
def test_a_toy_and_pictures_are_compared_in_separate_rows(
    manege: Command, own_ring: Path, trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained, tmp_path / "digits-run")
    # Random features would do for the pictures, but not for the points.
    done = manege("compare", "run", "digits-run", "--metrics", "kid", "--json")
    assert done.code == 0, done.err
    shown = {name: [bool(one) for one in row] for name, row in done.json["scores"].items()}
    assert list(shown.values()) == [[True, False], [False, True]]
    assert (tmp_path / "comparison.png").is_file()


def refused(command: str, *says: str) -> object:
    return pytest.param(command, says, id=command.replace(" ", "-"))


@pytest.mark.parametrize(
    ("command", "says"),
    [
        refused("run --features random", "--features random: points are their own features"),
        refused("run --metrics labels", "--metrics labels", "needs labelled reference data"),
        refused("run --metrics nearest", "--metrics nearest: points have no pixels"),
        refused("run --size 8", "--size"),
        refused("photos --data ring8", "photos: pictures of 8x8x1", "ring8 has 1x1x2"),
        refused(
            "run --data photos",
            "run",
            "photos",
            "points",
        ),
        refused(
            "run --data digits",
            "run",
            "digits",
            "points",
        ),
        refused(
            "model --data ring8",
            "model",
            "ring8",
            "points",
        ),
    ],
)
def test_points_and_pictures_do_not_mix(
    command: str,
    says: tuple[str, ...],
    manege: Command,
    own_ring: Path,
    model: Path,
    tmp_path: Path,
) -> None:
    write_class(tmp_path / "photos", 12)
    before = sorted(tmp_path.rglob("*"))
    done = manege("evaluate", *command.split())
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1, done.err
    for words in says:
        assert words in done.err
    assert "leave out --size" not in done.err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_toy_has_no_classifier(manege: Command, tmp_path: Path) -> None:
    few = ("--classes", "0,2", "--limit-per-class", "8", "--rounds", "1", *TINY)
    assert manege("train", "ring8", *few, "--out", "run").code == 0
    done = manege("evaluate", "run", "--features", "classifier")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "--features classifier: points are their own features" in done.err


def test_the_modes_are_those_of_the_classes_there_are(
    manege: Command, ring: Path, tmp_path: Path
) -> None:
    shutil.copytree(ring, tmp_path / "run")
    done = manege("evaluate", "run", "--metrics", "modes", "--json")
    scores = {score["name"]: score for score in done.json["scores"]}
    assert scores["modes"]["reference"] == 2
