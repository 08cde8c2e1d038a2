"""Stacked digits by the command: the modes that pictures cover."""

from __future__ import annotations

import numpy as np
import pytest

from manege.data import Split, stacked
from tests.helpers.material import noise, write_idx

from .conftest import Command

MODES = ("evaluate", "mine.npz", "--data", "stacked-mnist", "--metrics", "modes")


@pytest.fixture
def root(tmp_path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Few pictures of few digits, and a cache that knows no others."""
    monkeypatch.setenv("MANEGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(stacked, "COUNTS", {Split.TRAIN: 60, Split.HELD_OUT: 40})
    write_idx(tmp_path / "data" / "mnist")
    return ("--data-root", "data")


@pytest.mark.full
def test_modes_are_told_by_the_classifier_of_the_digits(manege: Command, tmp_path, root):
    np.savez(tmp_path / "mine.npz", images=np.repeat(noise(0, 30, 28, 28, 1), 3, axis=-1))
    done = manege(*MODES, *root, "--json")
    assert done.code == 0, done.err
    scores = {score["name"]: score for score in done.json["scores"]}
    assert scores.keys() == {"modes-covered", "modes-kl"}
    # Three times the same digit: ten modes at most.
    assert 1 <= scores["modes-covered"]["value"] <= 10
    assert scores["modes-covered"]["floor"]["value"] > 1
    digits = done.json["protocol"]["digits"]
    assert digits["labels"] == [str(digit) for digit in range(10)]
    assert digits["sha256"] == scores["modes-kl"]["space_sha256"]


def test_grey_pictures_have_no_modes(manege: Command, tmp_path, root):
    np.savez(tmp_path / "mine.npz", images=noise(0, 30, 28, 28, 1))
    done = manege(*MODES, *root, "--channels", "1")
    assert done.code == 2
    assert "only the toys ring8 and grid25, and stacked-mnist, have known modes" in done.err
