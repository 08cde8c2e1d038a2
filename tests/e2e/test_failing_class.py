"""A class whose training breaks down for good: given up by name, the others as if alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from manege.runs import RunDir
from manege.sampler import run_config
from tests.helpers.command import run_here
from tests.helpers.material import noise

from .conftest import Command

REASON = "a weight is not finite"
# An unbounded critic that learns far too fast: after forty steps the squares of its gradients are
# beyond float32, after one they are not. A round of the common class has more than forty, one of
# the rare class a single one.
BREAKS_DOWN = (
    *("--preset", "paper", "--networks", "resnet", "--batch", "8", "--rounds", "1"),
    *("--set", "networks.generator_width=4", "--set", "networks.discriminator_width=16"),
    *("--set", "networks.latent=4", "--set", "training.attempts=3"),
    *("--set", "training.optimiser.discriminator_lr=0.3"),
)


def weights(run: Path, cell: str) -> dict[str, bytes]:
    """All that the class's last commit holds."""
    rundir = RunDir.open(run)
    found = rundir.load(cell, identity=run_config(rundir).identity())
    assert found is not None
    assert all(np.isfinite(array).all() for array in found.tensors.values())
    return {name: array.tobytes() for name, array in found.tensors.items()}


def told(run: Path, kind: str) -> list[dict]:
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [event for event in events if event["event"] == kind]


def test_a_class_that_always_turns_nan_is_given_up_and_the_others_are_as_without_it(
    manege: Command, tmp_path: Path
) -> None:
    labels = np.array(["common"] * 400 + ["rare"] * 9)
    np.savez(tmp_path / "a.npz", images=noise(1, len(labels), 8, 8), labels=labels)
    done = manege("train", "a.npz", *BREAKS_DOWN, "--out", "both", "--json")
    assert done.code == 4
    reason = f"{REASON} in round 1, at 3 attempts"
    assert (done.json["state"], done.json["failed"]) == ("failed", {"common": reason})
    assert done.json["rounds"] == {"common": 0, "rare": 1}
    assert f"class 'common' failed and is missing: {reason}" in done.err

    # Every attempt is told, and that it was the last.
    both = tmp_path / "both"
    rollbacks = [
        (one["cell"], one["round"], one["attempt"], one["reason"]) for one in told(both, "rollback")
    ]
    assert rollbacks == [("common", 1, attempt, REASON) for attempt in (1, 2, 3)]
    (failed,) = told(both, "cell_failed")
    assert (failed["cell"], failed["round"], failed["reason"]) == ("common", 1, reason)
    status = json.loads((both / "status.json").read_text())
    assert status["state"] == "failed"
    assert (status["cells"]["common"]["state"], status["cells"]["common"]["reason"]) == (
        "failed",
        reason,
    )

    # The other class is the same to the bit as in a run that never heard of the first.
    alone = run_here(
        "train", "a.npz", *BREAKS_DOWN, "--classes", "rare", "--out", "alone", cwd=tmp_path
    )
    assert alone.code == 0, alone.err
    assert weights(both, "rare") == weights(tmp_path / "alone", "rare")
    for file in ("model/rare.safetensors", "samples/rare/round-000001.png"):
        assert (both / file).read_bytes() == (tmp_path / "alone" / file).read_bytes()
    losses = [[one["losses"] for one in told(tmp_path / run, "round")] for run in ("both", "alone")]
    assert losses[0] == losses[1]
    assert not (both / "model" / "common.safetensors").exists()

    # Who asks for it is told what is missing, and why.
    done = manege("sample", "both", "--label", "common", "-o", "a.png")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert f"label 'common': missing from this model (failed: {reason})" in done.err
    assert not (tmp_path / "a.png").exists()
    done = manege("sample", "both", "-n", "6", "-o", "b.png", "--json")
    assert (done.code, done.json["labels"]) == (0, {"rare": 6})
    assert done.json["missing"] == {"common": f"failed: {reason}"}
