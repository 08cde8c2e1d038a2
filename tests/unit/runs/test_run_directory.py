"""The run directory: making, opening, locking, events, status and loose files."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import manege.runs
from manege import failpoints, files
from manege.errors import CheckpointError, ConfigError, MachineError
from manege.files import write_atomic
from manege.runs import RunDir, cell_folder, events, lock

INITIAL = {"name": "mnist", "config": "seed: 1\n", "command": "manege train"}
INITIAL |= {"environment": {}, "data": {}}


def test_a_new_run_has_its_files_and_the_next_number(tmp_path):
    first = RunDir.create(None, parent=tmp_path / "a" / "runs", **INITIAL)
    second = RunDir.create(None, parent=tmp_path / "a" / "runs", **INITIAL | {"name": "Ä/../b"})
    assert first.path.name == "0001-mnist"
    assert second.path.name == "0002-a-b"
    assert {entry.name for entry in first.path.iterdir()} == {
        *("config.yaml", "command.txt", "environment.json", "status.json", "lock", "data.json"),
        *("checkpoints", "samples", "logs"),
    }
    assert first.config_text() == "seed: 1\n"
    assert (first.path / "command.txt").read_text() == "manege train\n"
    assert first.status() == {"incarnation": 0, "state": "stopped"}


def test_numbers_go_on_after_the_highest_and_past_an_abandoned_claim(tmp_path):
    (tmp_path / "0041-x").mkdir()
    (tmp_path / ".0042").mkdir()
    (tmp_path / "notes").mkdir()
    assert RunDir.create(None, parent=tmp_path, **INITIAL).path.name == "0043-mnist"


def test_processes_creating_runs_at_once_get_different_numbers(tmp_path, fork):
    ready, go = os.pipe()

    def work(which: int) -> None:
        os.close(go)
        os.read(ready, 1)
        for _ in range(5):
            RunDir.create(None, parent=tmp_path, **INITIAL | {"name": f"run{which}"})

    children = [fork(lambda which=which: work(which)) for which in range(4)]
    os.close(ready)
    os.close(go)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    made = sorted(entry.name for entry in tmp_path.iterdir())
    assert len({name[:4] for name in made}) == len(made) == 20


def test_processes_given_the_same_folder_make_one_run(tmp_path, fork):
    ready, go = os.pipe()
    out = tmp_path / "out"

    def work() -> None:
        os.close(go)
        os.read(ready, 1)
        try:
            RunDir.create(out, **INITIAL)
        except CheckpointError:
            os._exit(2)

    children = [fork(work) for _ in range(4)]
    os.close(ready)
    os.close(go)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert sorted(codes) == [0, 2, 2, 2]
    assert RunDir.open(out).config_text() == "seed: 1\n"


def test_a_number_finished_by_another_after_we_counted_is_not_taken_again(tmp_path, monkeypatch):
    (tmp_path / "0001-other").mkdir()
    monkeypatch.setattr("manege.runs.names._numbers", lambda parent: [])
    assert RunDir.create(None, parent=tmp_path, **INITIAL).path.name == "0002-mnist"
    assert {entry.name for entry in tmp_path.iterdir()} == {"0001-other", "0002-mnist"}


def test_a_folder_taken_by_another_after_we_looked_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / "lock").touch()
    monkeypatch.setattr("manege.runs.creation._given", lambda path: path)
    with pytest.raises(CheckpointError, match="already exists"):
        RunDir.create(tmp_path, **INITIAL)
    assert [entry.name for entry in tmp_path.iterdir()] == ["lock"]


def test_a_given_folder_may_be_new_or_empty(tmp_path):
    (tmp_path / "empty").mkdir()
    assert RunDir.create(tmp_path / "empty", **INITIAL).path == tmp_path / "empty"
    assert RunDir.create(tmp_path / "deep" / "new", **INITIAL).path.is_dir()


def test_a_folder_in_use_is_refused_with_the_way_on(tmp_path):
    run = RunDir.create(tmp_path / "run", **INITIAL)
    with pytest.raises(CheckpointError, match=r"already exists; continue it with `manege resume"):
        RunDir.create(run.path, **INITIAL)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(CheckpointError, match="holds other files; give another out"):
        RunDir.create(tmp_path / "other", **INITIAL)
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(CheckpointError, match="file already exists and is not a folder"):
            RunDir.create(path, **INITIAL)
    with pytest.raises(CheckpointError, match="is not a folder"):
        RunDir.create(None, parent=tmp_path / "file", **INITIAL)


def test_an_unwritable_place_is_a_machine_error(tmp_path, end_of):
    for folder in (tmp_path.parent, tmp_path):
        folder.chmod(0o755)
    (tmp_path / "closed").mkdir(mode=0o555)

    def work() -> None:
        os.chdir(tmp_path)
        if os.geteuid() == 0:
            os.setuid(65534)
        for path in (Path("closed/run"), None):
            with pytest.raises(MachineError, match="permission denied; give yourself"):
                RunDir.create(path, parent=Path("closed"), **INITIAL)

    assert end_of(work) == 0


def test_nothing_is_left_of_a_run_that_could_not_be_made(tmp_path, monkeypatch):
    def full(path, data):
        raise MachineError("full")

    monkeypatch.setattr("manege.runs.creation.write_atomic", full)
    with pytest.raises(MachineError):
        RunDir.create(None, parent=tmp_path, **INITIAL)
    assert list(tmp_path.iterdir()) == []


def test_opening_something_else_says_what_it_is(tmp_path, run):
    (tmp_path / "file").touch()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.json").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "lock").touch()
    for path, words in {
        tmp_path / "nowhere": "no such folder",
        tmp_path / "file": "it is a file",
        tmp_path / "model": "it is a model",
        tmp_path / "empty": "has no config.yaml",
        tmp_path / "half": "cut short",
        run.path.parent: r"a folder of 1 runs; give one of them, such as .*0001-mnist-per-class",
    }.items():
        with pytest.raises(CheckpointError, match=words) as refused:
            RunDir.open(path)
        assert "\n" not in str(refused.value)


def test_the_configuration_is_replaced_whole(run):
    run.write_config("seed: 2\nlabel: ä\n")
    assert RunDir.open(run.path).config_text() == "seed: 2\nlabel: ä\n"
    (run.path / "config.yaml").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match=r"config\.yaml is damaged"):
        run.config_text()


def test_each_start_is_a_new_incarnation(run):
    for expected in (1, 2, 3):
        with RunDir.open(run.path).start() as started:
            assert started.incarnation == expected
            assert RunDir.open(run.path).incarnation == expected
            assert started.append("round")["incarnation"] == expected
    assert [event["incarnation"] for event in run.events()] == [1, 2, 3]


def test_a_second_process_is_refused_and_told_the_first(run, holder):
    refused = pytest.raises(CheckpointError, match=f"is being run by process {holder.pid};")
    with refused, run.start():
        pass
    assert run.status()["state"] == "running"


def test_a_refused_process_leaves_the_lock_and_the_status_as_they_were(run, holder):
    before = (run.path / "status.json").read_bytes()
    for _ in range(2):
        with pytest.raises(CheckpointError, match=f"process {holder.pid}"), run.start():
            pass
    assert (run.path / "status.json").read_bytes() == before


def test_a_killed_holder_frees_the_lock_and_its_run_is_interrupted(run, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert run.status()["state"] == "interrupted"
    with run.start() as started:
        assert started.incarnation == 2
        assert run.status()["state"] == "running"


def test_an_error_inside_frees_the_lock(run):
    with pytest.raises(ZeroDivisionError), run.start():
        raise ZeroDivisionError
    assert run.status()["state"] == "interrupted"
    with run.start():
        run.write_status(state="finished")
    assert run.status()["state"] == "finished"


def test_looking_at_the_status_never_keeps_a_run_from_starting(run, fork):
    def look() -> None:
        while True:
            run.status()

    with run.start():
        pass
    child = fork(look)
    try:
        for _ in range(30):
            with run.start():
                pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_fork_that_unwinds_does_not_free_its_parents_lock(run, end_of):
    context = run.start()
    context.__enter__()
    assert end_of(lambda: context.__exit__(None, None, None)) == 0
    assert lock.is_held(run.path / "lock")
    context.__exit__(None, None, None)
    assert not lock.is_held(run.path / "lock")


def test_a_trainer_that_outlives_its_killed_coordinator_does_not_keep_the_lock(run):
    program = (
        "import os, signal, subprocess, sys\nfrom pathlib import Path\n"
        "from manege.runs import RunDir\n"
        "with RunDir.open(Path(sys.argv[1])).start():\n"
        "    trainer = subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL)\n"
        "    print(trainer.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(run.path)], stdout=subprocess.PIPE, text=True
    )
    assert done.returncode == -signal.SIGKILL
    try:
        with run.start() as started:
            assert started.incarnation == 2
    finally:
        os.kill(int(done.stdout), signal.SIGKILL)


def test_a_disk_without_locks_is_a_machine_error(run, monkeypatch):
    def flock(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", flock)
    with pytest.raises(MachineError, match="this file system has no locks"), run.start():
        pass


def test_events_come_back_in_order_with_time_and_incarnation(run):
    with run.start():
        written = [run.append("round", cell="ä\n", loss=np.float32(0.5), n=i) for i in range(3)]
    assert list(run.events()) == written
    assert written[1]["n"] == 1
    assert set(written[0]) == {"t", "incarnation", "event", "cell", "loss", "n"}


def test_non_finite_numbers_become_null(run):
    fields = {"a": float("nan"), "b": [np.inf, {"c": np.float64("-inf")}], "d": np.array([1, 2])}
    record = run.append("x", **fields)
    assert record["a"] is None
    assert record["b"] == [None, {"c": None}]
    assert next(run.events())["d"] == [1, 2]


@pytest.mark.parametrize("torn", [b'{"event": "ha', b'{"event": "whole"}', b"\0" * 100, b"\xff"])
def test_a_torn_last_line_is_left_out_and_cut_off_by_the_next_start(run, torn):
    run.append("first")
    with (run.path / "events.jsonl").open("ab") as file:
        file.write(torn)
    assert [event["event"] for event in run.events()] == ["first"]
    with run.start():
        run.append("second")
    assert [event["event"] for event in run.events()] == ["first", "second"]


def test_a_torn_line_longer_than_a_block_is_cut_off(run):
    path = run.path / "events.jsonl"
    path.write_bytes(b"x" * 200_000)
    assert events.cut_torn_line(path) == 200_000
    path.write_bytes(b"{}\n" + b"x" * 200_000)
    assert events.cut_torn_line(path) == 200_000
    assert path.read_bytes() == b"{}\n"


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"a": NaN}', b"\xff", b""])
def test_damage_in_the_middle_of_the_events_is_an_error_with_its_line(run, line):
    run.append("first")
    with (run.path / "events.jsonl").open("ab") as file:
        file.write(line + b"\n")
    run.append("third")
    with pytest.raises(CheckpointError, match="line 2 is damaged"):
        list(run.events())


def test_processes_appending_at_once_do_not_mix_their_lines(run, fork):
    def work() -> None:
        for i in range(200):
            run.append("x", i=i, text="y" * 500)

    children = [fork(work) for _ in range(4)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert sorted(event["i"] for event in run.events()) == sorted(list(range(200)) * 4)


def test_a_line_the_disk_cuts_short_is_taken_back(run, end_of):
    run.append("first")

    def limited() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        with pytest.raises(MachineError, match=r"events.jsonl: "):
            run.append("second", text="y" * 200)

    assert end_of(limited) == 0
    run.append("third")
    assert [event["event"] for event in run.events()] == ["first", "third"]


def test_the_status_is_merged_and_only_known_states_are_taken(run):
    run.write_status(state="running", rounds=3)
    run.write_status(state="failed", loss=float("nan"))
    assert run.status() == {"incarnation": 0, "state": "failed", "rounds": 3, "loss": None}
    with pytest.raises(ValueError, match="state 'great'"):
        run.write_status(state="great")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"incarnation": null}'])
def test_a_damaged_status_is_named_and_may_be_deleted(run, text):
    (run.path / "status.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"status.json is damaged .* delete it"):
        RunDir.open(run.path)
    (run.path / "status.json").unlink()
    with RunDir.open(run.path).start() as started:
        assert started.incarnation == 1


def test_loose_files_are_written_with_their_folders_inside_the_run_only(run):
    run.write_json("model/model.json", {"a": [1, float("inf")]})
    run.write_bytes("samples/1/a.png", b"png")
    assert (run.path / "model" / "model.json").read_text() == (
        '{\n  "a": [\n    1,\n    null\n  ]\n}\n'
    )
    assert (run.path / "samples" / "1" / "a.png").read_bytes() == b"png"
    for bad in ("../x", "/tmp/x", "a/../../x", ""):
        with pytest.raises(ValueError, match="not a path inside"):
            run.write_bytes(bad, b"")


def test_a_start_removes_what_a_killed_writer_left_aside(run):
    (run.path / ".status.json.99999.abcd.tmp").touch()
    with run.start():
        assert not list(run.path.glob(".*.tmp"))


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS, errno.EIO]
)
@pytest.mark.parametrize("refusing", ["write", "fsync", "replace"])
def test_a_refused_write_leaves_the_old_file_and_nothing_beside_it(
    tmp_path, monkeypatch, number, refusing
):
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def refuse(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path if refusing == "replace" else files.os, refusing, refuse)
    with pytest.raises(MachineError) as refused:
        write_atomic(path, b"new")
    monkeypatch.undo()
    assert "\n" not in str(refused.value)
    assert [entry.read_bytes() for entry in tmp_path.iterdir()] == [b"old"]


def test_keys_name_their_own_folder_when_they_are_plain():
    assert [cell_folder(key) for key in ("7", "0_2", "t-shirt", "a.b")] == [
        *("7", "0_2", "t-shirt", "a.b"),
    ]
    assert cell_folder("Ankle Boot").startswith("ankle-boot-")
    for odd in ("", ".", "..", ".hidden", "a/b", "A", "a\n", "ä", "\ud800", "x" * 65, "\0"):
        assert cell_folder(odd) != odd
    assert cell_folder(cell_folder("A")) != cell_folder("A")


def test_a_key_of_any_letters_commits_and_loads(run):
    keys = ["T-shirt/top", "t-shirt/top", "..", "日本", "", "a" * 300]
    for number, key in enumerate(keys):
        run.commit(key, identity="i", round_=number, step=0, tensors={}, meta={})
    for number, key in enumerate(keys):
        assert run.load(key, identity="i").round_ == number
    assert run.cells() == sorted(keys)


def test_failpoints_do_nothing_unless_named_and_refuse_nonsense(killed_at, monkeypatch):
    monkeypatch.delenv(failpoints.VARIABLE, raising=False)
    failpoints.reset()
    failpoints.failpoint("here")
    assert killed_at("here", lambda: failpoints.failpoint("there")) == 0
    assert killed_at("here", lambda: failpoints.failpoint("here")) == -signal.SIGKILL
    assert killed_at("here@2", lambda: failpoints.failpoint("here")) == 0
    for nonsense in ("here@", "here@0", "here@x", "here@-1"):
        monkeypatch.setenv(failpoints.VARIABLE, nonsense)
        failpoints.reset()
        with pytest.raises(ConfigError, match="expected name or name@N"):
            failpoints.failpoint("here")
    monkeypatch.undo()
    failpoints.reset()


def test_the_layer_loads_neither_torch_nor_the_configuration():
    program = (
        "import sys, manege.runs\n"
        "print([m for m in sys.modules if m == 'torch' or m.startswith('manege.config')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_every_public_name_is_there():
    assert all(hasattr(manege.runs, name) for name in manege.runs.__all__)
