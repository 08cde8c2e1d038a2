"""Points in the plane from the command line: trained, resumed, drawn, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from manege.data import read_set
from manege.pictures import read_text, scatter

from .command import TINY, run_here
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


def test_the_list_of_datasets_has_the_toys(manege: Command) -> None:
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
