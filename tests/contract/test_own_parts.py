"""A loss and networks that lie outside the package: the same bits whoever carries the run."""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from manege.config import resolve, stored
from manege.failpoints import TRAINER, VARIABLE
from manege.runs import RunDir
from tests.helpers.command import Done, run_here, run_process
from tests.helpers.foreign import FOLDER
from tests.helpers.forker import state_of

SMALL = (
    *("digits", "--preset", "paper-dc", "--classes", "3,7", "--limit-per-class", "40"),
    *("--batch", "20", "--rounds", "3", "--sheet-every", "100", "--score", "none", "--ema", "0.9"),
    *("--set", "checkpoints.every_rounds=1", "--set", "stability.every_rounds=null"),
)
OWN = ("--networks", "foreign_parts:Pair", "--set", "networks.width=6")
LOSS = ("--loss", "foreign_parts:smoothed")
PER_CLASS = (*SMALL, *OWN, *LOSS)
# Points are their own features: no network has to be trained to score them.
GRID = (
    *("ring8", "--method", "cellular", "--grid", "2x2", "--batch", "50", "--rounds", "2"),
    *("--networks", "foreign_parts:Points", *LOSS, "--sheet-every", "100"),
    *("--set", "training.batches_per_round=4"),
    *("--set", "cellular.fitness_samples=20", "--set", "cellular.mixture.samples=100"),
    *("--set", "cellular.mixture.final_samples=100", "--set", "stability.every_rounds=null"),
)
METHODS = {"per-class": PER_CLASS, "grid": GRID}
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
KILLED = -9


@pytest.fixture(autouse=True, scope="module")
def _found(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MANEGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("MANEGE_RUNTIME", raising=False)
        # In this process alone: what it starts is to be told.
        patch.syspath_prepend(str(FOLDER))
        yield


@pytest.fixture(scope="module")
def inline(tmp_path_factory) -> Callable[[str], Path]:
    """An undisturbed run in one process."""

    @functools.cache
    def train(method: str) -> Path:
        folder = tmp_path_factory.mktemp(method)
        done = run_here("train", *METHODS[method], "--runtime", "inline", "--out", "r", cwd=folder)
        assert done.code == 0, done.err
        return folder / "r"

    return train


@pytest.fixture
def copied(inline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run, and a copy of the module in a folder that commands run in."""
    shutil.copytree(inline("per-class"), tmp_path / "r")
    shutil.copy(FOLDER / "foreign_parts.py", tmp_path)
    return tmp_path


def _process(*args: object, cwd: Path, **env: str) -> Done:
    return run_process(*map(str, args), cwd=cwd, env={"PYTHONPATH": _path(), **env})


def _path(*more: Path) -> str:
    return os.pathsep.join(map(str, (*more, *filter(None, [os.environ.get("PYTHONPATH")]))))


def test_a_process_that_a_run_starts_finds_what_this_one_finds(inline, tmp_path):
    """The folder is on this process's path alone, as a script's is."""
    done = run_here("train", *PER_CLASS, "--workers", "2", "--out", "r", cwd=tmp_path)
    assert done.code == 0, done.err
    assert state_of(tmp_path / "r") == state_of(inline("per-class"))


@pytest.mark.full
@pytest.mark.skipif(MPIEXEC is None, reason="there is no mpiexec on the PATH")
@pytest.mark.parametrize("method", METHODS)
def test_three_ranks_come_to_the_bits_of_one_process(inline, tmp_path, method):
    launch = ("--launch", "mpiexec", "-n", "3", "--out", "r")
    path = {"PYTHONPATH": _path(FOLDER)}
    done = run_process("train", *METHODS[method], *launch, cwd=tmp_path, env=path)
    assert done.code == 0, done.err
    assert state_of(tmp_path / "r") == state_of(inline(method))


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "runtime", "at"),
    [
        ("per-class", ("--runtime", "inline"), "step@5"),
        ("per-class", ("--workers", "2"), "step@5"),
        ("grid", ("--runtime", "inline"), "step@7"),
    ],
)
def test_a_killed_run_comes_to_the_bits_of_one_that_was_not(inline, tmp_path, method, runtime, at):
    order = ("train", *METHODS[method], *runtime, "--out", "r")
    path = {"PYTHONPATH": _path(FOLDER)}
    alone = runtime == ("--runtime", "inline")
    which = {} if alone else {TRAINER: "1"}
    killed = run_process(*order, cwd=tmp_path, env={VARIABLE: at, **which, **path})
    if alone:
        assert killed.code == KILLED, killed.err
        done = run_here("resume", "r", *runtime, cwd=tmp_path)
        assert done.code == 0, done.err
    else:
        assert killed.code == 0, killed.err
        died = [one for one in RunDir.open(tmp_path / "r").events() if "died" in one["event"]]
        assert died
    assert state_of(tmp_path / "r") == state_of(inline(method))


def test_the_run_and_its_model_name_the_module_and_its_source(inline):
    path = inline("per-class")
    config = stored(path / "config.yaml")
    assert [*config.plugins] == ["foreign_parts"]
    assert config.references() == {
        "networks.kind": "foreign_parts:Pair",
        "training.loss": "foreign_parts:smoothed",
    }
    other = config.model_copy(update={"plugins": {"foreign_parts": "0" * 64}})
    assert other.identity() != config.identity()
    model = json.loads((path / "model" / "model.json").read_text())
    assert [one["networks"] for one in model["components"]] == [
        {"kind": "foreign_parts:Pair", "width": 6}
    ] * 2
    assert [one["trained"]["plugins"] for one in model["components"]] == [config.plugins] * 2


def test_identities_without_parts_from_outside_are_as_they_were():
    config = resolve(preset="paper", flags={"data.source": "digits"})
    assert "plugins" not in config.model_dump()
    assert config.identity() == config.model_copy(update={"plugins": {}}).identity()


def test_a_model_says_what_is_missing_where_its_networks_are_not(copied):
    done = _process("sample", copied / "r" / "model", "-n", 4, "-o", "a.png", cwd=copied)
    assert done.code == 0, done.err
    elsewhere = copied / "elsewhere"
    elsewhere.mkdir()
    done = _process("sample", copied / "r" / "model", "-n", 4, "-o", "a.png", cwd=elsewhere)
    assert done.code == 2
    assert "networks: there is no module foreign_parts here; run from the folder that " in done.err
    assert done.err.count("\n") == 1


def test_a_changed_source_is_refused_before_anything_is_touched(copied):
    with (copied / "foreign_parts.py").open("a") as file:
        file.write("\n# changed\n")
    before = {path: path.stat().st_mtime_ns for path in copied.rglob("*") if path.is_file()}
    done = _process("resume", "r", "--rounds", 4, "--runtime", "inline", cwd=copied)
    assert done.code == 2, done.err
    assert "module foreign_parts (" in done.err
    assert "put back the source that the run began with, or start a new run" in done.err
    assert done.err.count("\n") == 1
    after = {
        path: path.stat().st_mtime_ns
        for path in copied.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert after == before
    done = _process("sample", "r/model", "-n", 4, "-o", "a.png", cwd=copied)
    assert done.code == 2
    assert "class '" in done.err
    assert "another source may draw other pictures from the same weights" in done.err


def test_own_code_that_raises_fails_its_class_by_name_and_line(tmp_path):
    loss = ("--loss", "foreign_parts:breaking", "--runtime", "inline", "--out", "r")
    # One class after the other; of eight updates, and two tries, the first class takes all but one.
    order = ("train", *SMALL, "--networks", "mlp", "--set", "networks.hidden=8", *loss)
    import foreign_parts

    foreign_parts.steps = 0
    done = run_here(*order, cwd=tmp_path, env={"BREAKS_AT": "8"})
    assert done.code == 4, done.err
    line = (
        (FOLDER / "foreign_parts.py")
        .read_text()
        .splitlines()
        .index('        raise ValueError("enough of it")')
    )
    reason = (
        "foreign_parts:breaking: discriminator(real, fake) raised ValueError at "
        f"foreign_parts.py:{line + 1} (enough of it)"
    )
    cells = json.loads((tmp_path / "r" / "status.json").read_text())["cells"]
    assert cells["7"]["state"] == "failed"
    assert cells["7"]["reason"] == reason
    assert cells["3"]["state"] == "finished"
    assert reason in done.err


@pytest.mark.full
def test_own_code_that_hangs_is_named_and_the_run_is_saved(tmp_path):
    """In the second step of each attempt."""
    parts = ("--networks", "mlp", "--set", "networks.hidden=8", "--loss", "foreign_parts:breaking")
    env = {"HANGS_AT": "1", "PYTHONPATH": _path(FOLDER)}
    done = run_process(
        *("train", *SMALL, *parts, "--workers", "2", "--out", "r"), cwd=tmp_path, env=env
    )
    assert done.code == 4, done.err
    cells = json.loads((tmp_path / "r" / "status.json").read_text())["cells"]
    for label in ("3", "7"):
        assert cells[label]["state"] == "failed"
        assert "hung: not heard of for " in cells[label]["reason"]
        assert "it runs code of foreign_parts:breaking" in cells[label]["reason"]


def test_what_workers_cannot_import_is_refused_before_training(copied, monkeypatch):
    """The folder is taken away between the preparation and the loading."""
    done = _process(
        *("train", *SMALL, "--loss", "nowhere:mine", "--workers", "2", "--out", "new"), cwd=copied
    )
    assert done.code == 2
    assert "training.loss: there is no module nowhere here; run from the folder that" in done.err
    assert not (copied / "new").exists()
