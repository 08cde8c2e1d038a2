"""What comes before training: the same pictures, and the same arithmetic, as the run began with."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from manege.config import RunConfig, resolve
from manege.data import Split, open_dataset
from manege.data.folder import FolderSource
from manege.errors import ConfigError
from manege.observer import Observer
from manege.runs import RunDir
from manege.runtime.worker.preparing import CPU_VARIABLES, prepare_new, prepare_resume
from manege.sampler import run_config

SILENT = Observer()


class Saying(Observer):
    """Keeps what is said."""

    def __init__(self, said: list[str]) -> None:
        self._said = said

    def say(self, text: str) -> None:
        self._said.append(text)


UNMEASURED = "stability.every_rounds=null"


@pytest.fixture
def animals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An image folder of which two pictures a class are held out."""
    monkeypatch.setenv("MANEGE_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        folder = tmp_path / "animals" / label
        folder.mkdir(parents=True)
        for number in range(20):
            picture = rng.integers(0, 256, (8, 8), dtype=np.uint8)
            Image.fromarray(picture).save(folder / f"{number:03d}.png")
    return tmp_path / "animals"


def configured(animals: Path, *sets: str) -> RunConfig:
    # Without scores: making their feature network would look at all pictures.
    flags = {"data.source": str(animals), "rounds": 1}
    return resolve(preset="paper", flags=flags, sets=("data.size=8", "networks.kind=mlp", *sets))


def begun(animals: Path, *sets: str) -> Path:
    run = animals.parent / "run"
    prepare_new(configured(animals, *sets), run, "test", SILENT)
    return run


def resume(run: Path) -> list[str]:
    """What was said."""
    said: list[str] = []
    prepare_resume(run, rounds=None, budget_s=None, observer=Saying(said))
    return said


def began_otherwise(run: Path, **facts: str | None) -> None:
    """Let environment.json tell other facts; None takes one out."""
    path = run / "environment.json"
    told = json.loads(path.read_text()) | facts
    path.write_text(json.dumps({key: value for key, value in told.items() if value is not None}))


def classes_of(run: Path) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = json.loads((run / "data.json").read_text())["classes"]
    return found


def invert(path: Path) -> None:
    with Image.open(path) as image:
        picture = 255 - np.asarray(image)
    Image.fromarray(picture).save(path)


def change_held_out(animals: Path, run: Path) -> None:
    (name, *_) = classes_of(run)["cat"]["held_out_names"]  # type: ignore[misc]
    invert(animals / "cat" / str(name))


def test_both_parts_of_each_class_are_known_by_their_digests(animals):
    run = begun(animals)
    dataset = open_dataset(configured(animals).data)
    for label, entry in classes_of(run).items():
        assert entry["train_sha256"] == dataset.digest(label, Split.TRAIN)
        assert entry["held_out_sha256"] == dataset.digest(label, Split.HELD_OUT)
        assert entry["train_sha256"] != entry["held_out_sha256"]
    resume(run)


@pytest.mark.parametrize(
    ("sets", "looked_at"), [((), tuple(Split)), ((UNMEASURED,), (Split.TRAIN,))]
)
def test_no_picture_is_decoded_twice_or_for_its_digest_alone(animals, monkeypatch, sets, looked_at):
    decoded: Counter[tuple[str, Split]] = Counter()
    decode = FolderSource.decode

    def counted(self, wanted, split, form):
        decoded.update((label, split) for label in wanted)
        return decode(self, wanted, split, form)

    monkeypatch.setattr(FolderSource, "decode", counted)
    run = begun(animals, *sets)
    resume(run)
    assert decoded == {(label, split): 1 for label in ("cat", "dog") for split in looked_at}
    assert all(
        ("held_out_sha256" in entry) == (Split.HELD_OUT in looked_at)
        for entry in classes_of(run).values()
    )


def test_a_class_of_which_nothing_is_held_out_has_no_digest_of_it(animals):
    for path in sorted((animals / "dog").iterdir())[8:]:
        path.unlink()
    run = begun(animals)
    assert "held_out_sha256" in classes_of(run)["cat"]
    assert "held_out_sha256" not in classes_of(run)["dog"]
    resume(run)


def test_a_changed_held_out_picture_is_refused_on_resume(animals):
    run = begun(animals)
    change_held_out(animals, run)
    with pytest.raises(ConfigError, match=r"the dataset has changed .*\(class 'cat'\); put it"):
        resume(run)


def test_a_run_from_before_the_digest_goes_on_and_knows_its_training_pictures(animals):
    run = begun(animals)
    told = json.loads((run / "data.json").read_text())
    for entry in told["classes"].values():
        del entry["held_out_sha256"]
    (run / "data.json").write_text(json.dumps(told))
    change_held_out(animals, run)
    resume(run)
    for path in (animals / "dog").iterdir():
        invert(path)
    with pytest.raises(ConfigError, match=r"the dataset has changed .*\(class 'dog'\)"):
        resume(run)


def test_what_is_held_out_does_not_matter_to_a_run_that_does_not_look_at_it(animals):
    run = begun(animals)
    config = run / "config.yaml"
    measured = config.read_text()
    assert "every_rounds: 1\n" in measured
    config.write_text(measured.replace("every_rounds: 1\n", "every_rounds: null\n"))
    change_held_out(animals, run)
    resume(run)


# What the same bits rest on.


def test_a_run_that_goes_on_as_it_began_is_told_nothing(animals):
    assert resume(begun(animals)) == []


@pytest.mark.parametrize(
    "fact", ["manege", "torch", "numpy", "machine", "cpu", "cpu_capability", "cpu_settings"]
)
def test_whatever_decides_the_bits_and_is_another_is_named_in_a_line(animals, fact):
    run = begun(animals)
    here = json.loads((run / "environment.json").read_text())[fact]
    began_otherwise(run, **{fact: "Z80"})
    (line,) = resume(run)
    assert line.startswith(f"warning: {run} began with {fact} Z80, here it is {here}: ")
    assert "\n" not in line


def test_all_that_are_others_share_the_line(animals):
    run = begun(animals)
    began_otherwise(run, cpu_capability="Z80", torch="0.1", python="1.5", system="CP/M")
    (line,) = resume(run)
    assert line.startswith(f"warning: {run} began with torch 0.1, here it is ")
    assert "; cpu_capability Z80, here it is " in line
    assert "python" not in line
    assert "CP/M" not in line


def test_limits_of_the_libraries_are_known_by_their_variables(animals, monkeypatch):
    for name in CPU_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    run = begun(animals)
    monkeypatch.setenv("MKL_ENABLE_INSTRUCTIONS", "SSE4_2")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    (line,) = resume(run)
    here = "ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=SSE4_2"
    assert f"began with cpu_settings none, here it is {here}: " in line


def test_nothing_is_claimed_about_what_an_older_run_did_not_write_down(animals):
    run = begun(animals)
    began_otherwise(run, cpu=None, cpu_capability=None, cpu_settings=None)
    assert resume(run) == []
    for damaged in (b"", b"[]", b"{", b"\xff"):
        (run / "environment.json").write_bytes(damaged)
        assert resume(run) == []
    (run / "environment.json").unlink()
    assert resume(run) == []


def test_the_sheet_of_training_pictures_comes_back(animals: Path) -> None:
    run = begun(animals)
    sheet = run / "samples" / "real.png"
    before = sheet.read_bytes()
    sheet.unlink()
    resume(run)
    assert sheet.read_bytes() == before


def trained(run: Path, **cells: tuple[int, float]) -> None:
    """Give the run commits of these cells: rounds, and seconds of training; the status lags."""
    rundir = RunDir.open(run)
    identity = run_config(rundir).identity()
    for cell, (rounds, spent_s) in cells.items():
        rundir.commit(
            cell, identity=identity, round_=rounds, step=0, tensors={}, meta={"spent_s": spent_s}
        )


def length(run: Path, trainers: int = 1, **asked: int | str) -> tuple[int | None, float | None]:
    """Rounds and seconds of a run that is to go on with what is asked."""
    given = {"rounds": None, "budget_s": None, **asked}
    config = prepare_resume(run, **given, observer=SILENT, workers=trainers).config
    return config.rounds, config.budget_s


def test_fewer_rounds_than_were_trained_are_refused(animals: Path) -> None:
    run = begun(animals)
    trained(run, cat=(5, 1.0), dog=(3, 1.0))
    with pytest.raises(ConfigError) as refused:
        length(run, rounds=4)
    told = "run: 'cat' has had 5 rounds, rounds 4 asks for fewer; give 5 or more, or leave it out"
    assert str(refused.value).endswith(told)
    assert length(run, rounds=5) == (5, None)
    assert length(run) == (1, None)


def test_less_time_than_was_trained_is_refused(animals: Path) -> None:
    run = begun(animals)
    trained(run, cat=(5, 1500.0), dog=(3, 1090.0))
    with pytest.raises(ConfigError) as refused:
        length(run, budget_s="3m")
    told = (
        "run: trained for 43m10s, budget_s 3m00s asks for less; give a longer one, or leave it out"
    )
    assert str(refused.value).endswith(told)
    assert length(run, budget_s="44m") == (None, 44 * 60)


def test_time_is_that_of_each_of_the_trainers_that_a_run_may_have(animals: Path) -> None:
    run = begun(animals)
    trained(run, cat=(5, 1500.0), dog=(3, 1100.0))
    with pytest.raises(ConfigError, match="trained for 25m00s"):
        length(run, 2, budget_s="24m")  # No class can have had less wall time than it trained.
    assert length(run, 2, budget_s="26m") == (None, 26 * 60)
    trained(run, fox=(5, 1500.0), owl=(5, 1500.0))
    with pytest.raises(ConfigError, match="trained for 46m40s"):
        length(run, 2, budget_s="46m")


def test_a_budget_that_was_used_up_may_be_asked_for_again(animals: Path) -> None:
    """The last step of each class goes a little beyond it."""
    run = begun(animals, "rounds=null", "budget_s=60")
    trained(run, cat=(5, 30.2), dog=(3, 30.1))
    assert length(run, budget_s="1m") == (None, 60)
    with pytest.raises(ConfigError, match="trained for 1m00s, budget_s 59s asks for less"):
        length(run, budget_s="59s")


def test_computing_time_is_that_of_all_trainers(animals: Path) -> None:
    run = begun(animals, "rounds=null", "budget_s=90", "budget_clock=cpu")
    trained(run, cat=(5, 30.0), dog=(3, 30.0))
    with pytest.raises(ConfigError, match="trained for 1m00s"):
        length(run, 2, budget_s="40s")
