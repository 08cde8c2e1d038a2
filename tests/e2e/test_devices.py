"""A device for each network, from the command line to the bits of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.command import Done, run_here, run_process
from tests.helpers.forker import state_of

from .conftest import Command

METHODS = {
    "per-class": (
        *("digits", "--preset", "paper-dc", "--networks", "mlp", "--classes", "3,7"),
        *("--limit-per-class", "40", "--batch", "20", "--rounds", "4", "--score", "none"),
        *("--set", "networks.hidden=16", "--ema", "0.9"),
    ),
    "grid": (
        *("ring8", "--method", "cellular", "--grid", "1x2", "--batch", "50", "--rounds", "3"),
        *("--set", "training.batches_per_round=4", "--set", "networks.hidden=16"),
        *("--set", "networks.latent=8", "--set", "cellular.fitness_samples=64"),
        *("--set", "cellular.mixture.samples=200", "--set", "cellular.mixture.final_samples=200"),
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("method", METHODS)
def test_two_devices_give_the_bits_of_one(method: str, tmp_path: Path) -> None:
    words = ("train", *METHODS[method])
    one = run_here(*words, "--device", "cpu", "--out", "one", cwd=tmp_path)
    two = run_here(*words, "--device", "cpu+cpu", "--out", "two", cwd=tmp_path)
    local = ("--runtime", "local", "--workers", "2", "--device", "cpu+cpu")
    apart = run_process(*words, *local, "--out", "apart", cwd=tmp_path)
    assert [done.code for done in (one, two, apart)] == [0, 0, 0], apart.err
    wanted = state_of(tmp_path / "one")
    assert len(wanted) > 6
    assert state_of(tmp_path / "two") == wanted
    assert state_of(tmp_path / "apart") == wanted


@pytest.mark.parametrize("name", ["cpu+", "+cpu", "cpu+gpu", "cpu+cpu+cpu", "cpu cpu", "cuda:"])
def test_devices_of_no_kind_are_refused_in_one_line(manege: Command, name: str) -> None:
    done: Done = manege("train", "digits", "--device", name)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert f"device: found {name!r}" in done.err
    assert "two of them as in cuda+cuda" in done.err


def test_samples_are_drawn_on_one_device(manege: Command, run: Path) -> None:
    done = manege("sample", run, "-o", "a.png", "--device", "cpu+cpu")
    assert done.code == 2
    assert "--device 'cpu+cpu': expected auto, cpu, cuda or cuda:N" in done.err
