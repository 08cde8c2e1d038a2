"""A cache of these tests' own: three digits' feature network is trained once for all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from manege.config import DataConfig
from manege.data import Dataset, open_dataset
from manege.metrics import Space, classifier_for


@pytest.fixture(scope="module", autouse=True)
def _cache(score_cache: None) -> None:
    """That of all tests of scores."""


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of one test's own, to damage at will."""
    monkeypatch.setenv("MANEGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def three(_cache: None) -> Dataset:
    """Three digits, about 160 pictures each to train on and 18 held out."""
    return open_dataset(DataConfig(source="digits", classes=("3", "7", "8")))


@pytest.fixture(scope="module")
def classifier(three: Dataset) -> Space:
    """Their feature network."""
    return classifier_for(three)
