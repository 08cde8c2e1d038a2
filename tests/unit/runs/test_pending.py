"""Checkpoints and files written aside by one process and put in place by another."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from manege.errors import CheckpointError, MachineError
from manege.files import write_atomic
from manege.runs import COMMIT_POINTS, Commit, Pending, RunDir, checkpoints

IDENTITY = "run-a"
WRITERS = ("commit:before", "commit:written")
NEW_AFTER = ("commit:done", "commit:cleaned")
MANIFESTS = {"manifest.json", "manifest.prev.json"}
ASIDE = ".2-20.safetensors.1.1.tmp"


def write(cell, number: int, mark: str = "1.1", place: tuple[int, int] | None = None):
    """What a host does: state number n of the cell, written aside, as a message tells it."""
    round_, step = place or (number, 10 * number)
    pending = RunDir.open(cell.path).write_pending(
        cell.key,
        identity=IDENTITY,
        round_=round_,
        step=step,
        tensors=cell.state(number),
        meta={"number": number},
        mark=mark,
    )
    return json.loads(json.dumps(pending.to_json()))


def adopt(cell, told: dict) -> Commit:
    """What the coordinator does with that message."""
    return RunDir.open(cell.path).adopt(cell.key, Pending.from_json(told), identity=IDENTITY)


def content(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


def test_an_adopted_checkpoint_gives_the_folder_that_a_commit_gives(cell, new_run):
    committed, adopted = cell, type(cell)(new_run().path)
    # The same place twice, so that the second choice of a name is seen too.
    for number, place in enumerate([(1, 10), (2, 20), (2, 20), (2, 20), (3, 0)], start=1):
        committed.commit(number, place)
        listed = adopted.files() if adopted.folder.exists() else set()
        new = adopt(adopted, write(adopted, number, mark=f"1.{number}", place=place))
        assert new.file not in listed
        assert content(adopted.folder) == content(committed.folder)
    assert adopted.loaded() == (5, ())


def test_an_adoption_says_what_it_put_in_place(cell):
    told = write(cell, 2)
    commit = adopt(cell, told)
    assert RunDir.open(cell.path).commits(cell.key) == [commit]
    assert commit.file == "2-20.safetensors"
    assert (commit.bytes, commit.sha256) == (told["bytes"], told["sha256"])
    assert (commit.round_, commit.step) == (2, 20)
    assert commit.bytes == (cell.folder / commit.file).stat().st_size


def test_a_pending_is_told_by_the_keys_of_a_manifest_and_comes_back_equal(cell):
    told = write(cell, 2)
    assert sorted(told) == ["aside", "bytes", "round", "sha256", "step"]
    assert told["aside"] == ASIDE
    assert Pending.from_json(told).to_json() == told


def test_a_pending_nobody_adopted_is_not_loaded_and_is_no_commit(cell):
    write(cell, 1)
    assert cell.loaded() == (None, ())
    assert RunDir.open(cell.path).cells() == []
    cell.commit(1)
    before = content(cell.folder)
    write(cell, 2)
    assert cell.loaded() == (1, ())
    assert content(cell.folder).items() > before.items()


@pytest.mark.parametrize("later", ["adoption", "commit"])
def test_a_pending_nobody_adopted_is_removed_by_the_next_adoption_or_commit(cell, later):
    cell.commit(1)
    write(cell, 2, mark="1.1")
    assert ASIDE in cell.files()
    if later == "commit":
        cell.commit(3)
    else:
        adopt(cell, write(cell, 3, mark="1.2"))
    assert cell.files() == MANIFESTS | {"1-10.safetensors", "3-30.safetensors"}
    assert cell.loaded() == (3, ())


def test_a_start_removes_pending_checkpoints_and_files_and_nothing_else(cell):
    cell.commit(1)
    run = RunDir.open(cell.path)
    others = type(cell)(cell.path, "digit-8")
    # Commands that do not hold the lock may be writing these: one lives, of the other nobody knows.
    anothers = [
        cell.path / "samples" / "a" / f".seed-1.png.{os.getpid()}.0123abcd.tmp",
        cell.path / "samples" / "a" / ".seed-2.png.tmp",
    ]
    asides = [write(one, 2)["aside"] for one in (cell, others)]
    picture = run.write_file_aside("samples/a/1.png", b"png", "1.1")
    for one in anothers:
        one.touch()
    before = {path for path in cell.path.rglob("*") if path.is_file()}
    with run.start():
        after = {path for path in cell.path.rglob("*") if path.is_file()}
    assert before - after == {
        *(one.folder / aside for one, aside in zip((cell, others), asides, strict=True)),
        cell.path / picture,
    }
    assert cell.loaded() == (1, ())
    assert others.loaded() == (None, ())


@pytest.mark.parametrize("place", ["samples/real.png", "evaluations/deep/1.json", "report.html"])
def test_a_start_removes_what_a_writer_killed_in_the_middle_left(cell, place):
    path = cell.path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    pid = os.fork()
    if pid == 0:
        try:
            # The kernel kills it when the file has ten bytes.
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
            write_atomic(path, bytes(100))
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGXFSZ
    (left,) = path.parent.glob(f".{path.name}.*.tmp")
    assert left.stat().st_size == 10
    with RunDir.open(cell.path).start():
        assert not left.exists()
    assert not path.exists()


def truncate(aside: Path) -> None:
    aside.write_bytes(aside.read_bytes()[:-1])


def lengthen(aside: Path) -> None:
    aside.write_bytes(aside.read_bytes() + b"\0")


def replace_by_folder(aside: Path) -> None:
    aside.unlink()
    aside.mkdir()


def replace_by_link(aside: Path) -> None:
    shutil.move(aside, aside.with_name("elsewhere"))
    aside.symlink_to("elsewhere")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (truncate, r"has \d+ bytes, expected \d+"),
        (lengthen, r"has \d+ bytes, expected \d+"),
        (Path.unlink, "is missing"),
        (replace_by_folder, "is not a regular file"),
        (replace_by_link, "is not a regular file"),
    ],
)
@pytest.mark.parametrize("place", [(2, 20), (1, 10)])
def test_a_damaged_aside_is_refused_in_one_line_and_the_old_state_stays(cell, harm, words, place):
    cell.commit(1)
    before = content(cell.folder)
    told = write(cell, 2, place=place)
    harm(cell.folder / told["aside"])
    with pytest.raises(CheckpointError, match=words) as refused:
        adopt(cell, told)
    assert "\n" not in str(refused.value)
    assert str(cell.folder / told["aside"]) in str(refused.value)
    assert {name: (cell.folder / name).read_bytes() for name in before} == before
    assert cell.loaded() == (1, ())
    if harm in (truncate, lengthen):
        assert cell.files() == set(before)


def test_the_first_aside_of_a_cell_refused_leaves_a_cell_that_never_committed(cell):
    told = write(cell, 1)
    truncate(cell.folder / told["aside"])
    with pytest.raises(CheckpointError, match="expected"):
        adopt(cell, told)
    assert cell.files() == set()
    assert cell.loaded() == (None, ())


def test_a_pending_is_adopted_once(cell):
    cell.commit(1)
    told = write(cell, 2)
    adopt(cell, told)
    with pytest.raises(CheckpointError, match="is missing"):
        adopt(cell, told)
    assert cell.loaded() == (2, ())


def test_an_adoption_into_another_runs_cell_is_refused_and_leaves_nothing_aside(cell):
    cell.commit(1)
    before = content(cell.folder)
    told = write(cell, 2)
    with pytest.raises(CheckpointError, match="belongs to another run"):
        RunDir.open(cell.path).adopt(cell.key, Pending.from_json(told), identity="run-b")
    assert content(cell.folder) == before
    with pytest.raises(CheckpointError, match="belongs to another run"):
        RunDir.open(cell.path).commit(
            cell.key, identity="run-b", round_=2, step=0, tensors={}, meta={}
        )
    assert content(cell.folder) == before


GOOD_PENDING = {"aside": ASIDE, "bytes": 9, "sha256": "0" * 64, "round": 2, "step": 20}
GOOD_COMMIT = {"file": "2-20.safetensors", **{k: GOOD_PENDING[k] for k in list(GOOD_PENDING)[1:]}}
BAD_COUNTS = [-1, 1.0, True, "1", None]
BAD_FIELDS = [
    *((key, value) for key in ("bytes", "round", "step") for value in BAD_COUNTS),
    *(("sha256", value) for value in ("0" * 63, "0" * 64 + "\n", "G" * 64, 0, None)),
    ("unknown", 1),
]
BAD_NAMES = [
    *("a/.x.tmp", "/.x.tmp", "./.x.tmp", "../.x.tmp", ".x/../y.tmp", ".x\\y.tmp", ".x/.tmp"),
    *("..", ".", "", ".tmp", "..tmp", "x.tmp", ".x", ".x.tmp\n", ".x\0.tmp", ".x.TMP", "...tmp"),
    *("2-20.safetensors", "manifest.json", 7, None, [ASIDE]),
]


@pytest.mark.parametrize(("key", "value"), [*BAD_FIELDS, *(("aside", name) for name in BAD_NAMES)])
def test_a_pending_with_a_bad_name_or_field_is_refused(key, value):
    assert Pending.from_json(GOOD_PENDING).file == ASIDE
    with pytest.raises(ValueError, match=r"is not|has not"):
        Pending.from_json(GOOD_PENDING | {key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [*BAD_FIELDS, *(("file", name) for name in ("../1-1.safetensors", "1-1", ASIDE, 7, None))],
)
def test_a_commit_with_a_bad_name_or_field_is_refused(key, value):
    assert Commit.from_json(GOOD_COMMIT).to_json() == GOOD_COMMIT
    with pytest.raises(ValueError, match=r"is not|has not"):
        Commit.from_json(GOOD_COMMIT | {key: value})


@pytest.mark.parametrize("tree", [None, [], "x", {}, 7, list(GOOD_PENDING)])
def test_a_tree_of_another_kind_or_without_a_field_is_refused(tree):
    for kind, good in ((Pending, GOOD_PENDING), (Commit, GOOD_COMMIT)):
        with pytest.raises(ValueError, match="has not the fields"):
            kind.from_json(tree)
        for key in good:
            with pytest.raises(ValueError, match="has not the fields"):
                kind.from_json({k: v for k, v in good.items() if k != key})


@pytest.mark.parametrize("mark", ["../1", "a/b", "\0", "1\n", " "])
def test_a_mark_that_cannot_be_in_a_name_is_refused_before_anything_is_written(cell, mark):
    with pytest.raises(ValueError, match="cannot be a name aside"):
        write(cell, 1, mark=mark)
    assert cell.files() == set()


def test_two_hosts_with_different_marks_do_not_collide(cell):
    cell.commit(1)
    # The one that was given up wakes up after the other took its place and wrote the same step.
    first = write(cell, 2, mark="1.16", place=(5, 50))
    second = write(cell, 3, mark="1.17", place=(5, 50))
    assert first["aside"] != second["aside"]
    assert {first["aside"], second["aside"]} < cell.files()
    adopt(cell, second)
    assert cell.loaded() == (3, ())
    with pytest.raises(CheckpointError, match="is missing"):
        adopt(cell, first)
    late = write(cell, 4, mark="1.16", place=(5, 50))
    assert cell.loaded() == (3, ())
    adopt(cell, write(cell, 5, mark="1.17"))
    assert late["aside"] not in cell.files()
    assert cell.loaded() == (5, ())


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("point", COMMIT_POINTS)
def test_a_kill_of_the_host_or_the_coordinator_leaves_the_old_or_the_new_state(
    cell, killed_at, tmp_path, point, before
):
    for number in range(1, before + 1):
        adopt(cell, write(cell, number))
    new = before + 1
    message = tmp_path / "message"

    def host() -> None:
        message.write_text(json.dumps(write(cell, new)))

    def coordinator() -> None:
        adopt(cell, json.loads(message.read_text()))

    # Each passes its own points and none of the other's.
    assert killed_at(point, host) == (-signal.SIGKILL if point in WRITERS else 0)
    if point not in WRITERS:
        assert cell.loaded() == (before or None, ())
        assert killed_at(point, coordinator) == -signal.SIGKILL
    number, warnings = cell.loaded()
    assert number == (new if point in NEW_AFTER else before or None)
    assert bool(warnings) == (point == "commit:manifest-aside" and before > 0)
    with RunDir.open(cell.path).start():
        assert not [name for name in cell.files() if name.endswith(".tmp")]
    adopt(cell, write(cell, new + 1, mark="2.1"))
    assert cell.loaded() == (new + 1, ())
    assert cell.files() - MANIFESTS == {f"{n}-{10 * n}.safetensors" for n in (number, new + 1) if n}


def hashed(monkeypatch) -> list[str]:
    """The names of the files that are read and hashed from now on."""
    names: list[str] = []
    read = checkpoints._verified_bytes

    def noting(path, generation):
        names.append(path.name)
        return read(path, generation)

    monkeypatch.setattr(checkpoints, "_verified_bytes", noting)
    return names


def test_what_a_host_verified_is_not_hashed_again_and_the_new_file_never(cell, monkeypatch):
    cell.commit(1)
    host, coordinator = RunDir.open(cell.path), RunDir.open(cell.path)
    assert host.verified(cell.key) is None
    host.load(cell.key, identity=IDENTITY)
    verified = host.verified(cell.key)
    assert [verified] == host.commits(cell.key)
    names = hashed(monkeypatch)
    coordinator.trust(cell.key, Commit.from_json(verified.to_json()))
    for number in (2, 3):
        pending = Pending.from_json(write(cell, number))
        new = coordinator.adopt(cell.key, pending, identity=IDENTITY)
        assert coordinator.verified(cell.key) == new
    assert names == []
    adopt(cell, write(cell, 4))
    assert names == ["3-30.safetensors"]


def test_a_commit_trusted_that_is_not_listed_is_hashed_all_the_same(cell, monkeypatch):
    cell.commit(1)
    run = RunDir.open(cell.path)
    run.trust(cell.key, Commit("1-10.safetensors", 9, "0" * 64, 1, 10))
    names = hashed(monkeypatch)
    run.adopt(cell.key, Pending.from_json(write(cell, 2)), identity=IDENTITY)
    assert names == ["1-10.safetensors"]


def test_a_refused_adoption_changes_nothing_that_is_trusted(cell):
    cell.commit(1)
    run = RunDir.open(cell.path)
    run.load(cell.key, identity=IDENTITY)
    before = run.verified(cell.key)
    told = write(cell, 2)
    truncate(cell.folder / told["aside"])
    with pytest.raises(CheckpointError, match="expected"):
        run.adopt(cell.key, Pending.from_json(told), identity=IDENTITY)
    assert run.verified(cell.key) == before is not None


@pytest.mark.parametrize("refused", ["2-20.safetensors", "manifest.prev.json", "manifest.json"])
def test_a_refused_rename_leaves_the_old_state_and_nothing_beside_it(cell, monkeypatch, refused):
    cell.commit(1)
    told = write(cell, 2)
    replace = Path.replace

    def refusing(self, target):
        if Path(target).name == refused:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", refusing)
    with pytest.raises(MachineError, match="input/output error"):
        adopt(cell, told)
    monkeypatch.undo()
    assert cell.files() - MANIFESTS == {"1-10.safetensors"}
    assert cell.loaded()[0] == 1
    adopt(cell, write(cell, 2))
    assert cell.loaded() == (2, ())


@pytest.fixture
def disk(tmp_path: Path):
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_became_read_only_is_a_machine_error_in_either_phase(disk):
    run = RunDir.create(disk / "run", name="x", config="", command="", environment={}, data={})
    options = {"identity": "i", "step": 0, "tensors": {"a": np.zeros(3)}, "meta": {}}
    run.commit("c", round_=1, **options)
    pending = run.write_pending("c", round_=2, mark="1.1", **options)
    picture = run.write_file_aside("samples/1.png", b"png", "1.1")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    for work in (
        lambda: run.commit("c", round_=3, **options),
        lambda: run.write_pending("c", round_=3, mark="1.2", **options),
        lambda: run.adopt("c", pending, identity="i"),
        lambda: run.write_file_aside("samples/2.png", b"png", "1.1"),
        lambda: run.adopt_file(picture, "samples/1.png"),
    ):
        with pytest.raises(MachineError, match="read-only file system; choose a place"):
            work()
    assert run.load("c", identity="i").round_ == 1


def test_a_deleted_run_is_not_brought_back_by_what_a_host_writes(run):
    shutil.rmtree(run.path)
    with pytest.raises(MachineError, match="does not exist"):
        run.write_pending("c", identity="i", round_=1, step=1, tensors={}, meta={}, mark="1.1")
    with pytest.raises(MachineError, match="does not exist"):
        run.write_file_aside("samples/1.png", b"png", "1.1")
    assert not run.path.exists()


def test_a_file_written_aside_gets_its_name_by_adoption(run):
    run.write_bytes("samples/a/1.png", b"old")
    aside = run.write_file_aside("samples/a/1.png", b"new", "3.17")
    assert Path(aside).parent == Path("samples/a")
    assert Path(aside).name.startswith(".1.png.3.17.")
    assert (run.path / "samples/a/1.png").read_bytes() == b"old"
    assert (run.path / aside).read_bytes() == b"new"
    run.adopt_file(aside, "samples/a/1.png")
    assert content(run.path / "samples" / "a") == {"1.png": b"new"}


def test_files_for_the_same_name_wait_for_adoption_beside_each_other(run):
    asides = [run.write_file_aside("new/ä 1.png", data, "1.1") for data in (b"1", b"2")]
    for aside, data in zip(asides, (b"1", b"2"), strict=True):
        run.adopt_file(aside, "new/ä 1.png")
        assert (run.path / "new" / "ä 1.png").read_bytes() == data
    assert list(content(run.path / "new")) == ["ä 1.png"]


@pytest.mark.parametrize(
    ("aside", "path"),
    [
        ("../.x.tmp", "../x"),
        ("samples/../../.x.tmp", "x"),
        ("samples/.x.tmp", "samples/../../x"),
        ("{outside}/.x.tmp", "{outside}/x"),
        ("samples/.x.tmp", "{outside}/x"),
        ("{outside}/.x.tmp", "samples/x"),
        ("samples/.x.tmp", "x"),
        ("samples/.x.tmp", "logs/x"),
        ("samples/x.tmp", "samples/x"),
        ("samples/.x", "samples/x"),
        ("samples/.tmp", "samples/x"),
        ("samples/.x.tmp", ""),
        ("", "samples/x"),
    ],
)
def test_names_outside_the_run_or_not_of_a_file_aside_are_refused(run, aside, path):
    outside = run.path.parent
    for folder in (outside, run.path, run.path / "samples"):
        for name in (".x.tmp", "x.tmp", ".x", ".tmp"):
            (folder / name).write_bytes(b"mine")
    before = sorted(outside.rglob("*"))
    names = (name.format(outside=outside) for name in (aside, path))
    with pytest.raises(ValueError, match=r"not a path inside|not the name of a file aside"):
        run.adopt_file(*names)
    assert sorted(outside.rglob("*")) == before


@pytest.mark.parametrize("relative", ["../x", "/tmp/x", "a/../../x", "", "."])
def test_a_file_is_written_aside_inside_the_run_only(run, relative):
    before = sorted(run.path.parent.rglob("*"))
    with pytest.raises(ValueError, match="not a path inside"):
        run.write_file_aside(relative, b"", "1.1")
    assert sorted(run.path.parent.rglob("*")) == before


def test_a_mark_with_a_separator_is_refused_for_files_too(run):
    with pytest.raises(ValueError, match="Invalid name"):
        run.write_file_aside("new/x", b"", "../1")
    assert not (run.path / "new").exists()


def test_a_file_aside_that_is_gone_is_refused_in_one_line(run):
    run.write_bytes("samples/1.png", b"old")
    aside = run.write_file_aside("samples/1.png", b"new", "1.1")
    (run.path / aside).unlink()
    with pytest.raises(CheckpointError, match=r"is missing, so 1\.png") as refused:
        run.adopt_file(aside, "samples/1.png")
    assert "\n" not in str(refused.value)
    assert content(run.path / "samples") == {"1.png": b"old"}


def test_a_file_whose_place_is_taken_by_a_folder_is_a_machine_error_and_leaves_nothing(run):
    (run.path / "samples" / "1.png").mkdir()
    aside = run.write_file_aside("samples/1.png", b"new", "1.1")
    with pytest.raises(MachineError, match=r"1\.png: is a directory"):
        run.adopt_file(aside, "samples/1.png")
    assert [entry.name for entry in (run.path / "samples").iterdir()] == ["1.png"]
