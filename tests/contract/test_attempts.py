"""Whole runs of two classes of which one breaks down: it is healed or given up, alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from manege.api import start_run
from manege.config import resolve
from manege.methods import Independent
from manege.runs import RunDir

NAN = float("nan")
BASE = ("networks.kind=mlp", "networks.hidden=8", "training.batch=50")


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("MANEGE_CACHE", str(tmp_path_factory.getbasetemp() / "method-cache"))


def _run(tmp_path, name: str, *sets: str, poisoned=None):
    """A whole run on two digits; `poisoned(cell, state)` says when a step breaks the generator."""
    train = Independent._train

    def broken(self, cell, state):
        images = train(self, cell, state)
        if poisoned is not None and poisoned(cell, state):
            with torch.no_grad():
                state.pair.generator.weights.fill_(NAN)
        return images

    config = resolve(
        preset="paper",
        flags={"data.source": "digits", "rounds": 3},
        sets=[*BASE, "data.classes=[3, 7]", "training.ema=0.9", *sets],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Independent, "_train", broken)
        run = start_run(config, out=tmp_path / name)
    rundir = RunDir.open(run.path)
    bits = {
        cell: {
            name: array.tobytes()
            for name, array in rundir.load(cell, identity=run.config.identity()).tensors.items()
        }
        for cell in ("3", "7")
        if rundir.load(cell, identity=run.config.identity()) is not None
    }
    return run.outcome, list(rundir.events()), bits


ATTEMPTS = ("training.attempts=3", "checkpoints.every_rounds=1")


@pytest.mark.full
def test_a_cell_that_breaks_down_once_goes_on_and_the_other_never_notices(tmp_path):
    calm, _, undisturbed = _run(tmp_path, "calm", *ATTEMPTS)
    outcome, events, bits = _run(
        tmp_path,
        "once",
        *ATTEMPTS,
        poisoned=lambda cell, state: (
            cell == "3" and state.round_ == 1 and state.step == 2 and state.attempt == 0
        ),
    )
    assert calm.state == outcome.state == "finished"
    assert outcome.rounds == {"3": 3, "7": 3}
    assert bits["7"] == undisturbed["7"]
    assert bits["3"] != undisturbed["3"]
    (rollback,) = [event for event in events if event["event"] == "rollback"]
    assert rollback["cell"] == "3"
    assert (rollback["round"], rollback["step"], rollback["attempt"]) == (2, 3, 1)
    assert rollback["reason"] == "the discriminator's loss is not finite"
    rounds = [event["round"] for event in events if event["event"] == "round"]
    assert sorted(rounds) == [1, 1, 2, 2, 3, 3]


def test_a_cell_that_breaks_down_always_is_given_up_after_its_attempts(tmp_path):
    _, _, undisturbed = _run(tmp_path, "calm", *ATTEMPTS)
    outcome, events, bits = _run(
        tmp_path,
        "always",
        *ATTEMPTS,
        poisoned=lambda cell, state: cell == "3" and state.round_ == 1 and state.step == 1,
    )
    reason = "the discriminator's loss is not finite in round 2, at 3 attempts"
    assert outcome.state == "failed"
    assert outcome.failed == {"3": reason}
    assert outcome.rounds == {"3": 1, "7": 3}
    assert bits["7"] == undisturbed["7"]
    told = [event["attempt"] for event in events if event["event"] == "rollback"]
    assert told == [1, 2, 3]
    (failed,) = [event for event in events if event["event"] == "cell_failed"]
    assert (failed["cell"], failed["round"], failed["reason"]) == ("3", 2, reason)
    # What is kept of it is its last sound round.
    assert not np.isnan(np.frombuffer(bits["3"]["generator"], np.float32)).any()


def test_a_cell_with_one_attempt_is_given_up_at_once(tmp_path):
    outcome, events, _ = _run(
        tmp_path, "one", poisoned=lambda cell, state: cell == "3" and state.step == 1
    )
    assert outcome.failed == {"3": "the discriminator's loss is not finite in round 1"}
    assert not [event for event in events if event["event"] == "rollback"]
