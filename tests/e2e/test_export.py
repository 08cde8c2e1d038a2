"""Models taken elsewhere: the README of an export runs as it stands, where there is no manege."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import manege as package
from manege.sampler import Model

from .conftest import Command

WITHOUT_MANEGE = """
import sys

sys.modules["manege"] = None  # Whatever imports it fails.
sys.path.insert(0, ".")
"""
KEEP = """
import numpy

given = {"z": z, "label": label, "u": u, "pictures": pictures}
numpy.savez("kept.npz", **{name: numpy.asarray(one) for name, one in given.items()})
"""


def exported(manege: Command, run: Path, out: Path, kind: str) -> Path:
    done = manege("export", run, "-o", out, "--format", kind)
    assert (done.code, done.err) == (0, "")
    return out


def kept(folder: Path) -> dict[str, np.ndarray]:
    """What the lines of an exported folder's README come to, in a process without manege."""
    lines = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    code = WITHOUT_MANEGE + lines + KEEP
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    with np.load(folder / "kept.npz", allow_pickle=False) as archive:
        return dict(archive)


def drawn(model: Model, found: dict[str, np.ndarray]) -> np.ndarray:
    """What the model's own generator makes of the same latents, before it becomes bytes."""
    (component,) = model.components_of(model.labels[int(found["label"][0])])
    with torch.no_grad():
        pictures = model.generator(component, torch.device("cpu"))(torch.from_numpy(found["z"]))
    return pictures.numpy()


def test_an_export_draws_the_same_pictures_where_there_is_no_manege(
    manege: Command, tmp_path: Path, trained: Path
) -> None:
    found = kept(exported(manege, trained, tmp_path / "plain", "torch"))
    model = package.load_model(trained)
    assert found["pictures"].shape == (16, 1, 8, 8)
    np.testing.assert_allclose(found["pictures"], drawn(model, found), rtol=0, atol=1e-6)
    shown = np.rint((found["pictures"] + 1) * 127.5).clip(0, 255).astype(np.uint8)
    again = model.generate(found["z"], "3").pictures
    assert abs(shown.transpose(0, 2, 3, 1).astype(int) - again).max() <= 1


@pytest.mark.full
@pytest.mark.parametrize("kind", ["safetensors", "torch-export", "onnx"])
def test_every_format_draws_the_same_pictures(
    kind: str, manege: Command, tmp_path: Path, trained: Path
) -> None:
    found = kept(exported(manege, trained, tmp_path / "plain", kind))
    wanted = drawn(package.load_model(trained), found)
    np.testing.assert_allclose(found["pictures"], wanted, rtol=0, atol=1e-6)


def test_a_folder_is_what_an_export_makes_unless_told_otherwise(
    manege: Command, tmp_path: Path, trained: Path
) -> None:
    assert manege("export", trained, "-o", "model").code == 0
    exported(manege, tmp_path / "model", tmp_path / "again", "folder")
    first, again = (package.load_model(tmp_path / name) for name in ("model", "again"))
    assert first.digest == again.digest
    assert "manege.load_model" in (tmp_path / "model" / "README.md").read_text()
    model = package.export(trained, tmp_path / "plain", format="safetensors")
    assert model.digest == first.digest
    assert (tmp_path / "plain" / "weights.safetensors").exists()


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--format", "onxx", "-o", "out"), "--format 'onxx': expected folder, torch, onnx, "),
        (("--format", "torch", "-o", "."), ".: expected the name of a new folder"),
        (
            ("--format", "torch", "-o", "out", "--balance-to", "5"),
            "--format torch: concerns the model, --balance-to writes pictures; leave one out",
        ),
    ],
)
def test_an_export_that_makes_no_sense_is_refused_in_one_line(
    args: tuple[str, ...], told: str, manege: Command, trained: Path
) -> None:
    done = manege("export", trained, *args)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"manege: {told}")
    assert done.err.count("\n") == 1


# The way between two pictures.


def test_a_way_is_a_sheet_a_moving_picture_or_an_array(
    manege: Command, tmp_path: Path, trained: Path
) -> None:
    between = ("--label", "7", "--interpolate", "3:7", "--steps", "5", "--seed", "4")
    for out in ("way.png", "way.gif", "way.npz", "way"):
        done = manege("sample", trained, *between, "-o", out)
        assert (done.code, done.err) == (0, "")
        assert done.out == f"5 pictures in {out}\n"
    with np.load(tmp_path / "way.npz") as archive:
        images, labels = archive["images"], archive["labels"].tolist()
    drawn = package.sample(trained, 8, label="7", seed=4).pictures
    np.testing.assert_array_equal(images[[0, -1]], drawn[[3, 7]])
    assert labels == ["7"] * 5
    with Image.open(tmp_path / "way.gif") as moving:
        assert (moving.n_frames, moving.size, moving.info["loop"]) == (8, (56, 56), 0)
    with Image.open(tmp_path / "way.png") as sheet:
        assert sheet.size == (7 * (5 * 9 + 1), 7 * 10)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ((), "way.gif: a GIF shows the way between two pictures; add --interpolate A:B, or "),
        (("--interpolate", "3"), "--interpolate '3': expected the numbers of two pictures"),
        (("--interpolate", "3:7"), "--label: found none, expected one of 3, 7, 8"),
        (("--interpolate", "3:7", "-n", "4"), "-n and --interpolate exclude each other"),
        (("--interpolate", "3:7", "--label", "3", "--steps", "1"), "--steps 1: expected at least"),
        (("--steps", "4", "--label", "3"), "--steps: concerns the way between two pictures"),
        (
            ("--interpolate", "0:1", "--label", "3", "--to-label", "7"),
            "picture 0 of label '3' and picture 1 of label '7': drawn by networks of their own",
        ),
    ],
)
def test_a_way_that_makes_no_sense_is_refused_in_one_line(
    args: tuple[str, ...], told: str, manege: Command, tmp_path: Path, trained: Path
) -> None:
    done = manege("sample", trained, "-o", "way.gif", *args)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"manege: {told}")
    assert done.err.count("\n") == 1
    assert not (tmp_path / "way.gif").exists()


@pytest.mark.full
def test_a_conditional_run_leads_from_label_to_label(manege: Command, tmp_path: Path) -> None:
    words = ("--networks", "mlp", "--set", "networks.hidden=16", "--preset", "paper")
    done = manege(
        *("train", "digits", "--method", "conditional", "--classes", "3,8", "--rounds", "1"),
        *(*words, "--out", "run"),
    )
    assert done.code == 0, done.err
    done = manege(
        *("sample", "run", "--label", "3", "--to-label", "8", "--interpolate", "3:7"),
        *("--steps", "4", "-o", "way.npz"),
    )
    assert (done.code, done.err) == (0, "")
    model = package.load_model(tmp_path / "run")
    with np.load(tmp_path / "way.npz") as archive:
        images = archive["images"]
    np.testing.assert_array_equal(images[0], model.sample(4, label="3").pictures[3])
    np.testing.assert_array_equal(images[-1], model.sample(8, label="8").pictures[7])
    assert len(model.module().networks) == 1
    found = kept(exported(manege, tmp_path / "run", tmp_path / "plain", "torch"))
    np.testing.assert_allclose(found["pictures"], drawn(model, found), rtol=0, atol=1e-6)
