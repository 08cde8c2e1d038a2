"""Damage in the cache: every command that opens an entry makes it again; the bits are the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.helpers.command import TINY, run_here, run_process
from tests.helpers.material import write_class

RUN = ("--classes", "cat", *TINY)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a cache and a dataset of its own."""
    monkeypatch.setenv("MANEGE_CACHE", str(tmp_path / "cache"))
    write_class(tmp_path / "animals" / "cat", 100)
    write_class(tmp_path / "animals" / "dog", 100)
    return tmp_path


def damage(here: Path) -> list[Path]:
    """Flip two bits of the content of every entry."""
    entries = sorted((here / "cache").glob("*/*.npy"))
    assert entries
    for entry in entries:
        content = bytearray(entry.read_bytes())
        content[-1] ^= 1
        content[-9] ^= 1
        entry.write_bytes(content)
    return entries


def told(err: str) -> set[str]:
    """The entries that a command said it makes again."""
    lines = [line.split(": ") for line in err.splitlines() if line.endswith("; made again")]
    assert all(line[0] == "warning" for line in lines)
    assert len({line[1] for line in lines}) == len(lines)
    return {line[1] for line in lines}


def ended(run: Path) -> dict[str, bytes]:
    """What the run came to: the pictures' digests, the model."""
    files = [run / "data.json", *sorted((run / "model").iterdir())]
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.parametrize("runtime", ["inline", pytest.param("local", marks=pytest.mark.full)])
def test_train_and_resume_end_in_the_same_bits(here: Path, runtime: str) -> None:
    command = run_here if runtime == "inline" else run_process
    env = {"MANEGE_RUNTIME": runtime}

    def manege(*args: str) -> str:
        done = command(*args, cwd=here, env=env)
        assert done.code == 0, done.err
        return done.err

    assert not told(manege("train", "animals", *RUN, "--rounds", "1", "--out", "clean"))
    once = ended(here / "clean")
    assert not told(manege("resume", "clean", "--rounds", "2"))
    every = {str(entry) for entry in damage(here)}
    assert {Path(entry).parent.name for entry in every} == {"features", "pictures"}
    assert told(manege("train", "animals", *RUN, "--rounds", "1", "--out", "run")) == every
    assert ended(here / "run") == once
    damage(here)
    assert told(manege("resume", "run", "--rounds", "2")) == every
    assert ended(here / "run") == ended(here / "clean")


@pytest.mark.full
def test_evaluate_and_compare_tell_the_same_scores(here: Path) -> None:
    for name, seed in (("run", "1"), ("other", "2")):
        done = run_here(
            *("train", "animals", *RUN, "--rounds", "1", "--seed", seed, "--out", name), cwd=here
        )
        assert done.code == 0, done.err
    for name in ("run", "other"):
        shutil.copytree(here / name, here / "copies" / name)
    how = ("--features", "random", "--samples", "100", "--json")
    clean = run_here("evaluate", "run", *how, cwd=here)
    assert clean.code == 0, clean.err
    both = run_here("compare", "run", "other", *how[:-1], "--out", "a.png", "--json", cwd=here)
    assert both.code == 0, both.err
    kinds = {entry.parent.name for entry in damage(here)}
    assert kinds == {"pictures", "features", "controls"}
    again = run_here("evaluate", "run", *how, cwd=here / "copies")
    assert again.code == 0, again.err
    assert {Path(path).parent.name for path in told(again.err)} == kinds
    assert again.json["scores"] == clean.json["scores"]
    assert again.json["protocol"] == clean.json["protocol"]
    damage(here)
    again = run_here(
        *("compare", "run", "other", *how[:-1], "--out", "a.png", "--json"), cwd=here / "copies"
    )
    assert again.code == 0, again.err
    assert told(again.err)
    assert json.dumps(again.json["scores"]) == json.dumps(both.json["scores"])
