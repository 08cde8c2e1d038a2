"""Small real datasets, and a cache of its own for every test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.helpers.samples import idx_bytes, noise, write_class


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("MANEGE_CACHE", str(folder))
    monkeypatch.delenv("MANEGE_DATA", raising=False)
    return folder


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    """Two classes of twenty 16x16 colour pictures, no official split."""
    root = tmp_path / "animals"
    write_class(root / "cat", 20)
    write_class(root / "dog", 20)
    return root


@pytest.fixture
def tiny_mnist(tmp_path: Path) -> Path:
    """The four idx files with 10 training and 3 test pictures of every digit, plain."""
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    for prefix, each, seed in (("train", 10, 1), ("t10k", 3, 2)):
        labels = np.tile(np.arange(10, dtype=np.uint8), each)
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(
            idx_bytes(noise(seed, len(labels), 28, 28))
        )
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx_bytes(labels))
    return folder
