"""A host by itself: what it is told, and what it tells."""

from __future__ import annotations

from typing import Any

import pytest

from manege import device
from manege.config import resolve
from manege.data import open_dataset
from manege.observer import Observer
from manege.runtime.messages import CommitWritten, Opened, TakeCell
from manege.runtime.worker.host import Host
from manege.runtime.worker.preparing import prepare_new
from manege.runtime.worker.setup import bound_method

SETTINGS = (
    *("networks.hidden=8", "networks.latent=4", "training.batches_per_round=2"),
    *("cellular.fitness_samples=32", "cellular.mixture.samples=100"),
)
HOSTED = {"share_s": None, "cells": 4, "until": None, "watched": False, "elsewhere": False}


@pytest.mark.parametrize("quiet", [False, True])
def test_who_is_frozen_before_it_ever_committed_is_saved_as_it_began(quiet, tmp_path):
    """Its neighbours go on with its first centre, and the model may draw from it."""
    flags = {"data.source": "ring8", "method": "cellular", "rounds": 2, "training.batch": 20}
    config = resolve(flags=flags, sets=(*SETTINGS, "cellular.rows=2", "cellular.columns=2"))
    rundir, config, _ = prepare_new(config, tmp_path / "run", "test", Observer())
    bound = bound_method(config, open_dataset(config.data), rundir, device.CPU)
    told: list[Any] = []
    with rundir.start():
        host = Host(
            bound,
            rundir,
            lambda message, files: told.append(message),
            mark="1.1",
            listen=lambda: None,
            tell_every_s=0.0,
        )
        host.handle(TakeCell("0-1", quiet=quiet, **HOSTED))
    assert [type(message) for message in told] == [Opened, *([CommitWritten] if quiet else [])]
    if quiet:
        assert told[-1].round == 0
