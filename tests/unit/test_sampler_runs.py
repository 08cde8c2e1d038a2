"""The model of a run that has not ended."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.helpers.tiny import TINY

import manege
from manege.errors import CheckpointError
from manege.sampler import open_model

pytestmark = pytest.mark.usefixtures("score_cache")


def test_pictures_do_not_bear_the_name_of_other_weights(tmp_path: Path) -> None:
    """A commit may come between the opening of a run's model and the drawing."""
    two_classes = TINY | {"data__classes": ["3", "8"]}
    run = manege.train("digits", out=tmp_path / "run", **two_classes).path
    shutil.rmtree(run / "model")
    model = open_model(run)
    assert len(model.pictures_of("3", 4)) == 4
    manege.resume(run, rounds=two_classes["rounds"] + 1)
    with pytest.raises(CheckpointError, match="cell '3' has another commit now than at first"):
        model.pictures_of("3", 4)
