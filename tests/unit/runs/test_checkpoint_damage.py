"""Loading: damage is found, named and stepped over; what is another's is refused."""

from __future__ import annotations

import hashlib
import json
import os
import shutil

import pytest

from manege.errors import CheckpointError
from manege.runs import RunDir
from manege.runs.jsontext import readable
from manege.runs.manifest import _digest

BITS = (0xFF, 1, 2, 4, 8, 16, 32, 64, 128)


def damaged(data: bytes, masks: tuple[int, ...]):
    """Every truncation, and every byte changed by each of the masks."""
    for offset in range(len(data)):
        yield data[:offset]
        for mask in masks:
            yield data[:offset] + bytes([data[offset] ^ mask]) + data[offset + 1 :]
    yield data + b"\0"
    yield data + data


def assert_every_damage(cell, name, check):
    path = cell.folder / name
    whole = path.read_bytes()
    run = RunDir.open(cell.path)
    for data in damaged(whole, BITS if name == "manifest.json" else (0xFF, 1)):
        path.write_bytes(data)
        check(run)
    path.write_bytes(whole)


def assert_old_state(cell, run):
    found = run.load(cell.key, identity="run-a")
    assert found.meta == {"number": 1}
    assert found.warnings
    expected = cell.state(1)
    assert {n: a.tobytes() for n, a in found.tensors.items()} == {
        n: a.tobytes() for n, a in expected.items()
    }


@pytest.mark.parametrize("name", ["2-20.safetensors", "manifest.json"])
def test_any_damage_to_the_newest_gives_the_older_state_with_a_warning(cell, name):
    cell.commit(1)
    cell.commit(2)
    assert_every_damage(cell, name, lambda run: assert_old_state(cell, run))
    assert cell.loaded() == (2, ())


@pytest.mark.full
@pytest.mark.parametrize("name", ["1-10.safetensors", "manifest.json"])
def test_any_damage_to_the_only_generation_is_an_error(cell, name):
    cell.commit(1)

    def refused(run):
        with pytest.raises(CheckpointError, match="no checkpoint that can be trusted"):
            run.load(cell.key, identity="run-a")

    assert_every_damage(cell, name, refused)
    assert cell.loaded() == (1, ())


def test_the_warning_names_the_damaged_file_and_what_is_used_instead(cell):
    cell.commit(1)
    cell.commit(2)
    (cell.folder / "2-20.safetensors").unlink()
    number, (warning,) = cell.loaded()
    assert number == 1
    assert str(cell.folder / "2-20.safetensors") in warning
    assert "missing" in warning
    assert "used 1-10.safetensors of round 1, step 10 instead" in warning


def test_a_missing_manifest_gives_the_one_before_with_a_warning(cell):
    cell.commit(1)
    cell.commit(2)
    (cell.folder / "manifest.json").unlink()
    number, (warning,) = cell.loaded()
    assert number == 1
    assert "manifest.json is missing" in warning
    assert [c.round_ for c in RunDir.open(cell.path).commits(cell.key)] == [1]


def test_two_damaged_generations_are_an_error_in_one_line(cell):
    cell.commit(1)
    cell.commit(2)
    for file in cell.folder.glob("*.safetensors"):
        file.write_bytes(b"")
    with pytest.raises(CheckpointError) as refused:
        cell.loaded()
    message = str(refused.value)
    assert "\n" not in message
    assert str(cell.folder) in message
    assert "delete the folder to train this cell anew" in message


def test_files_without_a_manifest_were_never_committed(cell):
    cell.folder.mkdir()
    (cell.folder / "1-10.safetensors").write_bytes(b"half")
    assert cell.loaded() == (None, ())
    run = RunDir.open(cell.path)
    assert run.cells() == []
    assert run.commits(cell.key) == []


def test_another_runs_identity_is_refused_not_stepped_over(cell):
    cell.commit(1)
    cell.commit(2)
    with pytest.raises(CheckpointError, match=r"identity 'run-a', expected 'run-b'"):
        RunDir.open(cell.path).load(cell.key, identity="run-b")
    (cell.folder / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="belongs to another run"):
        RunDir.open(cell.path).load(cell.key, identity="run-b")


def test_another_cells_folder_is_refused(cell):
    cell.commit(1)
    run = RunDir.open(cell.path)
    shutil.copytree(cell.folder, cell.folder.with_name("digit-8"))
    with pytest.raises(CheckpointError, match=r"another cell \('digit-7', expected 'digit-8'\)"):
        run.load("digit-8", identity="run-a")
    with pytest.raises(CheckpointError, match="expected in digit-7"):
        run.cells()


def sealed(cell, /, **changes):
    """The manifest with changes and a digest that fits: forged, not damaged."""
    path = cell.folder / "manifest.json"
    body = json.loads(path.read_bytes())
    del body["digest"]
    generation = body["generations"][0]
    generation |= {k: v for k, v in changes.items() if k in generation}
    body |= {k: v for k, v in changes.items() if k not in generation}
    path.write_bytes(readable(body | {"digest": _digest(body)}))


def test_a_sound_file_of_another_run_under_our_manifest_is_refused(cell):
    cell.commit(1)
    sealed(cell, identity="run-b")
    with pytest.raises(CheckpointError, match=r"1-10.safetensors belongs to another run"):
        RunDir.open(cell.path).load(cell.key, identity="run-b")


def test_a_sound_file_of_another_round_is_damage(cell):
    cell.commit(1)
    cell.commit(2)
    sealed(cell, step=21)
    number, (warning,) = cell.loaded()
    assert number == 1
    assert "it says round, step (2, 20)" in warning


@pytest.mark.parametrize(
    "changes",
    [
        {"file": "../other/1-1.safetensors"},
        {"file": "/etc/passwd"},
        {"bytes": -1},
        {"bytes": True},
        {"sha256": "x"},
        {"round": 1.0},
        {"generations": None},
        {"generations": [1]},
        {"cell": 7},
        {"unknown": 1},
    ],
)
def test_a_forged_manifest_with_wrong_fields_is_damage(cell, changes):
    cell.commit(1)
    cell.commit(2)
    sealed(cell, **changes)
    number, warnings = cell.loaded()
    assert number == 1
    assert any("manifest.json is damaged" in warning for warning in warnings)


def test_a_manifest_of_another_format_asks_for_the_other_version(cell):
    cell.commit(1)
    cell.commit(2)
    sealed(cell, format=2)
    with pytest.raises(CheckpointError, match="format 2, expected 1"):
        cell.loaded()


@pytest.mark.parametrize("text", [b"", b"[]", b"[" * 100_000, b"NaN", b"\xff", b" " * 2_000_000])
def test_a_manifest_of_nonsense_is_damage(cell, text):
    cell.commit(1)
    cell.commit(2)
    (cell.folder / "manifest.json").write_bytes(text)
    assert cell.loaded()[0] == 1


def test_folders_and_pipes_in_the_place_of_files_are_damage(cell):
    cell.commit(1)
    cell.commit(2)
    (cell.folder / "2-20.safetensors").unlink()
    os.mkfifo(cell.folder / "2-20.safetensors")
    assert cell.loaded()[0] == 1
    (cell.folder / "manifest.json").unlink()
    (cell.folder / "manifest.json").mkdir()
    assert cell.loaded()[0] == 1


def test_a_hashed_file_that_is_not_ours_is_damage(cell):
    cell.commit(1)
    cell.commit(2)
    path = cell.folder / "2-20.safetensors"
    for blob in (b"", b"\x02\0\0\0\0\0\0\0{}", b"\xff" * 20):
        path.write_bytes(blob)
        sealed(cell, bytes=len(blob), sha256=hashlib.sha256(blob).hexdigest())
        number, (warning,) = cell.loaded()
        assert number == 1
        assert "not a checkpoint of manege" in warning
