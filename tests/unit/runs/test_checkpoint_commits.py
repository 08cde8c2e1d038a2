"""Commits: what is kept, what a crash leaves, what a full disk leaves."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from manege.errors import CheckpointError, MachineError
from manege.runs import COMMIT_POINTS, RunDir, checkpoints, tensors

NEW_AFTER = ("commit:done", "commit:cleaned")
MANIFESTS = {"manifest.json", "manifest.prev.json"}


def test_a_cell_that_never_committed_loads_as_none(cell):
    assert cell.loaded() == (None, ())


def test_the_newest_commit_is_loaded_and_two_generations_are_kept(cell):
    for number in (1, 2, 3, 4):
        cell.commit(number)
    assert cell.loaded() == (4, ())
    assert cell.files() == MANIFESTS | {"4-40.safetensors", "3-30.safetensors"}
    listed = RunDir.open(cell.path).commits(cell.key)
    assert [(c.file, c.round_, c.step) for c in listed] == [
        ("4-40.safetensors", 4, 40),
        ("3-30.safetensors", 3, 30),
    ]
    assert listed[0].bytes == (cell.folder / listed[0].file).stat().st_size


def test_a_commit_says_what_it_wrote(run):
    commit = run.commit(
        "c", identity="i", round_=2, step=5, tensors={"a": np.zeros(3)}, meta={"loss": 0.5}
    )
    assert run.commits("c") == [commit]
    assert (commit.file, commit.round_, commit.step) == ("2-5.safetensors", 2, 5)
    assert run.cells() == ["c"]


def test_the_same_content_gives_the_same_bytes_whatever_the_order_of_names(run):
    arrays = {"b": np.arange(3), "a": np.ones(2, np.float32)}
    options = {"identity": "i", "round_": 1, "step": 1, "meta": {"x": 1, "y": 2}}
    first = run.commit("c", tensors=arrays, **options)
    options["meta"] = {"y": 2, "x": 1}
    second = run.commit("c", tensors=dict(reversed(arrays.items())), **options)
    assert first.sha256 == second.sha256


def test_the_same_place_committed_again_never_overwrites_a_listed_file(cell):
    for number in (1, 2, 3, 4, 5):
        before = RunDir.open(cell.path).commits(cell.key)
        cell.commit(number, place=(7, 70))
        after = RunDir.open(cell.path).commits(cell.key)
        assert after[0].file not in {commit.file for commit in before}
        assert cell.loaded() == (number, ())
        assert len(cell.files() - MANIFESTS) == min(number, 2)


def test_a_commit_removes_what_a_killed_writer_left_and_nothing_else(cell):
    cell.commit(1)
    for name in (".2-20.safetensors.1.99999.tmp", ".manifest.json.1.99999.tmp", "9-9.safetensors"):
        (cell.folder / name).write_bytes(b"rubbish")
    (cell.folder / "notes.txt").write_text("mine")
    cell.commit(2)
    assert cell.files() == MANIFESTS | {"1-10.safetensors", "2-20.safetensors", "notes.txt"}


@pytest.mark.parametrize("before", [0, 1, 2, 3])
@pytest.mark.parametrize("point", COMMIT_POINTS)
def test_a_kill_inside_a_commit_leaves_the_old_or_the_new_state(cell, killed_at, point, before):
    for number in range(1, before + 1):
        cell.commit(number)
    new = before + 1
    assert killed_at(point, lambda: cell.commit(new)) == -signal.SIGKILL
    number, warnings = cell.loaded()
    assert number == (new if point in NEW_AFTER else before or None)
    assert bool(warnings) == (point == "commit:manifest-aside" and before > 0)
    cell.commit(new + 1)
    assert cell.loaded() == (new + 1, ())
    assert {f for f in cell.files() if f not in MANIFESTS} == {
        f"{n}-{10 * n}.safetensors" for n in (number, new + 1) if n
    }


@pytest.mark.parametrize("point", COMMIT_POINTS)
def test_a_kill_while_the_same_place_is_committed_again_leaves_a_loadable_state(
    cell, killed_at, point
):
    cell.commit(1, place=(5, 50))
    assert killed_at(point, lambda: cell.commit(2, place=(5, 50))) == -signal.SIGKILL
    assert cell.loaded()[0] == (2 if point in NEW_AFTER else 1)
    cell.commit(3, place=(5, 50))
    assert cell.loaded() == (3, ())
    assert len(cell.files() - MANIFESTS) == 2


@pytest.mark.full
@pytest.mark.parametrize("first", COMMIT_POINTS)
@pytest.mark.parametrize("second", COMMIT_POINTS)
def test_a_kill_after_a_kill_leaves_a_loadable_state(cell, killed_at, first, second):
    cell.commit(1)
    assert killed_at(first, lambda: cell.commit(2)) == -signal.SIGKILL
    between = cell.loaded()[0]
    assert killed_at(second, lambda: cell.commit(3)) == -signal.SIGKILL
    assert cell.loaded()[0] == (3 if second in NEW_AFTER else between)


def test_a_process_may_be_killed_in_its_nth_commit(cell, killed_at):
    def work() -> None:
        for number in (1, 2, 3, 4):
            cell.commit(number)

    assert killed_at("commit:renamed@3", work) == -signal.SIGKILL
    assert cell.loaded() == (2, ())


def test_a_commit_after_damage_keeps_the_sound_generation_not_the_damaged_one(cell):
    for number in (1, 2):
        cell.commit(number)
    (cell.folder / "2-20.safetensors").write_bytes(b"damaged")
    cell.commit(2)
    assert cell.loaded() == (2, ())
    assert [c.round_ for c in RunDir.open(cell.path).commits(cell.key)] == [2, 1]


@pytest.mark.parametrize("point", COMMIT_POINTS)
def test_a_damaged_manifest_never_displaces_the_sound_one_before_it(cell, killed_at, point):
    for number in (1, 2):
        cell.commit(number)
    (cell.folder / "manifest.json").write_bytes(b"damaged")
    assert killed_at(point, lambda: cell.commit(3)) == -signal.SIGKILL
    assert cell.loaded()[0] == (3 if point in NEW_AFTER else 1)


def test_a_file_size_limit_is_a_machine_error_and_the_earlier_commit_stays(cell, end_of):
    cell.commit(1)

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        # Enough for the checkpoint, whose manifest is the larger file; then for neither.
        for limit in (500, 100):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            with pytest.raises(MachineError, match=r"file too large; raise the limit") as refused:
                cell.commit(2)
            assert "\n" not in str(refused.value)

    assert (cell.folder / "1-10.safetensors").stat().st_size < 500
    assert (cell.folder / "manifest.json").stat().st_size > 100
    cell.commit(1, place=(1, 11))
    assert (cell.folder / "manifest.json").stat().st_size > 500
    files = cell.files()
    assert end_of(limited) == 0
    assert cell.files() == files
    assert cell.loaded() == (1, ())
    cell.commit(2)
    assert cell.loaded() == (2, ())


@pytest.fixture
def small_disk(tmp_path: Path):
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_a_machine_error_at_every_fill_and_the_earlier_commit_stays(small_disk):
    run = RunDir.create(
        small_disk / "run", name="x", config="", command="", environment={}, data={}
    )

    def commit(number: int) -> None:
        run.commit(
            "c",
            identity="i",
            round_=number,
            step=0,
            tensors={"a": np.full(8000, number, np.float32)},
            meta={},
        )

    commit(1)
    commit(2)
    newest = 2
    filler = small_disk / "filler"
    for free_pages in range(16):
        with filler.open("wb") as file:
            stat = os.statvfs(small_disk)
            file.write(bytes(max(0, stat.f_bavail - free_pages) * stat.f_bsize))
        with suppress(MachineError):
            commit(newest + 1)
            newest += 1
        filler.unlink()
        found = RunDir.open(run.path).load("c", identity="i")
        assert found is not None
        assert (found.round_, found.warnings) == (newest, ())
        assert (found.tensors["a"] == newest).all()
        folder = run.path / "checkpoints" / "c"
        assert len([f for f in folder.iterdir() if f.name not in MANIFESTS]) == 2
    # A checkpoint takes eight pages and more: at least as many fills were refused, not all.
    assert 2 < newest <= 2 + 16 - 8
    filler.write_bytes(bytes(os.statvfs(small_disk).f_bavail * stat.f_bsize))
    with pytest.raises(MachineError, match="no space left on device; free some space"):
        commit(newest + 1)


def test_a_deleted_run_is_not_brought_back_by_a_commit(run):
    for path in sorted(run.path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    run.path.rmdir()
    with pytest.raises(MachineError, match="does not exist"):
        run.commit("c", identity="i", round_=1, step=1, tensors={}, meta={})
    assert not run.path.exists()


def test_arrays_with_strides_or_another_byte_order_come_back_equal(run):
    arrays = {
        "every-other": np.arange(10, dtype=np.float32)[::2],
        "transposed": np.arange(6, dtype=np.int64).reshape(2, 3).T,
        "big-endian": np.arange(3, dtype=">f4"),
    }
    run.commit("c", identity="i", round_=1, step=1, tensors=arrays, meta={})
    found = run.load("c", identity="i")
    for name, array in arrays.items():
        np.testing.assert_array_equal(found.tensors[name], array)
        assert found.tensors[name].flags.writeable


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([None]), np.zeros(2, complex)])
def test_an_array_that_cannot_come_back_is_refused(run, array):
    with pytest.raises(TypeError, match="tensor 'a' is"):
        run.commit("c", identity="i", round_=1, step=1, tensors={"a": array}, meta={})


def test_the_name_safetensors_keeps_for_itself_is_refused():
    with pytest.raises(ValueError, match="__metadata__"):
        tensors.pack({"__metadata__": np.zeros(1)}, {})


def test_meta_keeps_infinities_and_nested_values(run):
    meta = {"loss": float("inf"), "nested": {"list": [1, 2.5, None, "ü"]}, "cell": "mine"}
    run.commit("c", identity="i", round_=1, step=1, tensors={}, meta=meta)
    assert run.load("c", identity="i").meta == meta


def test_a_commit_into_another_runs_cell_is_refused(run):
    options = {"round_": 1, "step": 1, "tensors": {}, "meta": {}}
    run.commit("c", identity="one", **options)
    with pytest.raises(CheckpointError, match="belongs to another run"):
        run.commit("c", identity="two", **options)
    assert run.load("c", identity="one") is not None


def test_a_commit_into_a_hopeless_folder_is_refused(cell):
    cell.commit(1)
    (cell.folder / "manifest.json").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="no checkpoint that can be trusted"):
        cell.commit(2)


def test_a_reader_beside_a_writer_sees_whole_states_without_warnings(cell, fork):
    cell.commit(1)

    def write() -> None:
        for number in range(2, 150):
            cell.commit(number)

    pid = fork(write)
    seen = []
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        number, warnings = cell.loaded()
        assert warnings == ()
        seen.append(number)
    assert seen == sorted(seen)
    assert len(set(seen)) > 1


def test_a_reader_overtaken_by_commits_looks_again(cell, monkeypatch):
    cell.commit(1)
    read = checkpoints._verified_bytes
    overtaken = iter([2, 3])

    def slow(path, generation):
        number = next(overtaken, None)
        if number:
            monkeypatch.setattr(checkpoints, "_verified_bytes", read)
            for later in (number, number + 1):
                cell.commit(later)
            monkeypatch.setattr(checkpoints, "_verified_bytes", slow)
        return read(path, generation)

    monkeypatch.setattr(checkpoints, "_verified_bytes", slow)
    assert cell.loaded() == (4, ())
