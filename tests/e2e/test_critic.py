"""`manege train` with critics on features: when it is the default, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from manege.metrics import lite0_weights
from tests.helpers.command import run_here
from tests.helpers.material import write_class, write_colour

SMALL = (
    *("--rounds", "1", "--batch", "8", "--score", "none", "--runtime", "inline"),
    *("--set", "networks.generator_width=16", "--set", "stability.every_rounds=null"),
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MANEGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(lite0_weights.VARIABLE, raising=False)


@pytest.fixture
def colour(tmp_path) -> Path:
    write_colour(tmp_path / "colour" / "a", 16)
    return tmp_path / "colour"


def _config(path: Path) -> dict:
    return yaml.safe_load((path / "config.yaml").read_text())


def test_colour_pictures_are_trained_on_features(colour, tmp_path):
    done = run_here("train", colour, *SMALL, "--out", "run", cwd=tmp_path)
    assert done.code == 0, done.err
    config = _config(tmp_path / "run")
    assert config["preset"] == "modern"
    assert config["critic"]["weights"] == lite0_weights.feature_weights().sha256
    # Nothing of the frozen network is in a commit.
    assert sum(f.stat().st_size for f in (tmp_path / "run" / "checkpoints").rglob("*")) < 8_000_000


def test_grey_pictures_are_trained_on_features_too(tmp_path):
    write_class(tmp_path / "grey" / "a", 16)
    done = run_here("train", "grey", *SMALL, "--out", "run", cwd=tmp_path)
    assert done.code == 0, done.err
    config = _config(tmp_path / "run")
    assert config["preset"] == "modern"
    assert config["critic"]["kind"] == "features"


@pytest.mark.parametrize(
    ("args", "preset"),
    [
        (("colour",), "modern"),
        (("colour", "--critic", "pixels"), "modern-pixels"),
        (("colour", "--preset", "modern", "--critic", "pixels"), "modern-pixels"),
        (("digits",), "modern"),
        (("digits", "--set", "critic.width=8"), "modern"),
        (("mnist",), "modern"),
        (("mnist", "--critic", "pixels"), "modern-pixels"),
        (("ring8", "--networks", "mlp"), "modern-pixels"),
        (("colour", "--preset", "paper"), "paper"),
    ],
)
def test_the_preset_follows_from_data_and_critic(args, preset, tmp_path):
    done = run_here("train", *args, "--print-config", cwd=tmp_path)
    assert done.code == 0, done.err
    assert yaml.safe_load(done.out)["preset"] == preset


def test_without_weights_pixels_are_trained_on_and_it_is_said(colour, tmp_path, monkeypatch):
    monkeypatch.setenv(lite0_weights.VARIABLE, "nowhere.pth")
    done = run_here("train", colour, *SMALL, "--out", "run", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "nowhere.pth: cannot be read" in done.err
    assert "discriminators see pixels instead (preset modern-pixels)" in done.err
    assert _config(tmp_path / "run")["critic"]["kind"] == "pixels"


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--critic", "features"), "critic features: MANEGE_FEATURE_WEIGHTS=nowhere.pth: cannot"),
        (("--feature-weights", "gone.pth"), "--feature-weights gone.pth: cannot be read"),
        (("--critic", "features", "--constraint", "gp"), "gp penalises gradients at pixels"),
        (
            ("--critic", "features", "--constraint", "r1r2"),
            "a feature critic sees none; use spectr",
        ),
        (("--critic", "features", "--constraint", "clip"), "clip bounds a Wasserstein critic"),
        (("--critic", "eyes"), "critic.kind: found 'eyes', expected one of pixels, features"),
        (
            ("--set", "critic.stages=[40, 24]"),
            "expected some, each once, from the first to the last",
        ),
        (("--set", "critic.stages=[25]"), "critic.stages.0: found 25, expected one of 16, 24"),
        (("--set", "critic.stages=[]"), "critic.stages: expected some"),
    ],
)
def test_what_cannot_be_had_is_refused_in_a_line(args, told, colour, tmp_path, monkeypatch):
    monkeypatch.setenv(lite0_weights.VARIABLE, "nowhere.pth")
    done = run_here("train", colour, *SMALL, *args, "--out", "run", cwd=tmp_path)
    assert done.code == 2
    assert told in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_points_have_no_features(tmp_path):
    args = ("--networks", "mlp", "--critic", "features", "--constraint", "spectral")
    done = run_here("train", "ring8", *args, "--rounds", "1", cwd=tmp_path)
    assert done.code == 2
    assert "points are no pictures" in done.err


def test_a_run_goes_on_with_its_own_weights_or_not_at_all(colour, tmp_path, monkeypatch):
    done = run_here("train", colour, *SMALL, "--out", "run", cwd=tmp_path)
    assert done.code == 0, done.err
    monkeypatch.setenv(lite0_weights.VARIABLE, "nowhere.pth")
    gone = run_here("resume", "run", "--rounds", "2", "--runtime", "inline", cwd=tmp_path)
    assert gone.code == 2
    assert "nowhere.pth: cannot be read" in gone.err
    import torch

    state = torch.load(lite0_weights.package_file(), map_location="cpu", weights_only=True)
    state["_fc.bias"][0] += 1
    torch.save(state, tmp_path / "other.pth")
    monkeypatch.setenv(lite0_weights.VARIABLE, str(tmp_path / "other.pth"))
    other = run_here("resume", "run", "--rounds", "2", "--runtime", "inline", cwd=tmp_path)
    assert other.code == 2
    assert "with which the run began" in other.err
    assert len(other.err.strip().splitlines()) == 1
    monkeypatch.delenv(lite0_weights.VARIABLE)
    again = run_here("resume", "run", "--rounds", "2", "--runtime", "inline", cwd=tmp_path)
    assert again.code == 0, again.err
