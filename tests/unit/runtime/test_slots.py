"""Centres in shared memory: in place, whole or not there, and nothing left behind."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from manege.errors import MachineError
from manege.runtime import slots
from manege.runtime.channel import Channel
from manege.runtime.slots import CentreSlot, lengths_of, payload_bytes, split, stated_lengths

LENGTHS = (("float32", 1000), ("float32", 333), ("float64", 7))


def mapped() -> int:
    return Path("/proc/self/maps").read_text().count("manege-slot")


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    before = mapped()
    yield
    assert mapped() == before
    assert not list(Path("/dev/shm").glob("*manege*"))


@pytest.fixture
def slot() -> Iterator[CentreSlot]:
    made = CentreSlot.create(LENGTHS)
    yield made
    made.close()


@pytest.fixture
def reader(slot: CentreSlot) -> Iterator[CentreSlot]:
    made = CentreSlot.attach(slot.fileno(), LENGTHS)
    yield made
    made.close()


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """The process does not outlive the block, also when that fails."""
    with process:
        try:
            yield process
        finally:
            process.kill()


def arrays(number: int) -> list[np.ndarray]:
    return [np.arange(length, dtype=kind) + number for kind, length in LENGTHS]


def assert_same(found: tuple[np.ndarray, ...], number: int) -> None:
    for one, expected in zip(found, arrays(number), strict=True):
        assert one.dtype == expected.dtype
        assert one.tobytes() == expected.tobytes()


def test_a_slot_holds_the_last_two_rounds_and_no_other(slot, reader):
    assert slot.newest() is reader.newest() is None
    with pytest.raises(LookupError, match="no round"):
        reader.read_newest()
    for round_ in range(5):
        slot.write(round_, arrays(10 * round_))
        assert reader.newest() == slot.newest() == round_
        for past in range(-3, 8):
            there = past in (round_, round_ - 1) and past >= 0
            assert reader.check(past) is slot.check(past) is there
            if there:
                assert_same(reader.read(past), 10 * past)
                assert_same(slot.read(past), 10 * past)
            else:
                with pytest.raises(LookupError, match=f"round {past} is not"):
                    reader.read(past)
        newest, copies = reader.read_newest()
        assert newest == round_
        assert_same(copies, 10 * round_)


def test_a_cell_that_goes_on_from_a_checkpoint_may_start_with_any_round(slot, reader):
    slot.write(41, arrays(41))
    assert reader.newest() == 41
    assert not reader.check(40)
    assert not reader.check(39)


def test_what_is_read_lies_in_place_and_cannot_be_written(slot, reader):
    slot.write(0, arrays(0))
    for one in (slot, reader):
        views = one.read(0)
        assert all(np.shares_memory(a, b) for a, b in zip(views, one.read(0), strict=True))
        assert all(view.ctypes.data % 64 == 0 for view in views)
        for view in views:
            with pytest.raises(ValueError, match="read-only"):
                view[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        reader.read(0)[0].flags.writeable = True
    views = reader.read(0)
    slot.write(2, arrays(20))
    assert_same(views, 20)  # No copy: they have changed under the reader,
    assert not reader.check(0)  # which is told.
    del views


def test_copies_are_copies(slot, reader):
    slot.write(0, arrays(0))
    _, copies = reader.read_newest()
    assert not any(np.shares_memory(a, b) for a, b in zip(copies, reader.read(0), strict=True))
    slot.write(2, arrays(20))
    assert_same(copies, 0)


def words(slot: CentreSlot, round_: int) -> tuple[np.ndarray, np.ndarray]:
    place = slot._places[round_ % 2]
    return place.before, place.after


@pytest.mark.parametrize("stage", ["first word", "arrays", "second word"])
def test_a_write_that_did_not_end_is_not_there(slot, reader, stage, monkeypatch):
    slot.write(0, arrays(0))
    slot.write(1, arrays(10))

    # A writer that is killed there: after the given thing, before the next.
    class Killed(Exception):
        pass

    def barrier() -> None:
        nonlocal calls
        calls += 1
        if (stage, calls) in {("first word", 1), ("second word", 2)}:
            raise Killed

    def copyto(*_: object) -> None:
        raise Killed

    calls = 0
    with monkeypatch.context() as patch:
        patch.setattr(slots, "_barrier", barrier)
        if stage == "arrays":
            patch.setattr(slots.np, "copyto", copyto)
        with pytest.raises(Killed):
            slot.write(2, arrays(20))
    for round_ in (0, 2):
        assert not reader.check(round_)
        with pytest.raises(LookupError):
            reader.read(round_)
    assert reader.newest() == 1
    assert_same(reader.read(1), 10)
    newest, copies = reader.read_newest()
    assert newest == 1
    assert_same(copies, 10)
    slot.write(2, arrays(20))
    assert reader.newest() == 2
    assert_same(reader.read(2), 20)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("value", [0, 2, 5, 3 | 1 << 63, 2**64 - 1])
def test_words_that_do_not_agree_tell_of_a_torn_round(slot, reader, which, value):
    slot.write(1, arrays(10))
    slot.write(2, arrays(20))
    words(slot, 2)[which][0] = value
    assert not reader.check(2)
    assert reader.newest() == 1
    words(slot, 1)[which][0] = value if value != 2 else 9
    assert reader.newest() is None
    with pytest.raises(LookupError, match="no round"):
        reader.read_newest()


def test_a_copy_that_was_overwritten_meanwhile_is_taken_again(slot, reader, monkeypatch):
    slot.write(0, arrays(0))
    check, came_by = CentreSlot.check, []

    def check_late(self: CentreSlot, round_: int) -> bool:
        if self is reader and not came_by:
            came_by.append(round_)
            slot.write(1, arrays(10))
            slot.write(2, arrays(20))
        return check(self, round_)

    monkeypatch.setattr(CentreSlot, "check", check_late)
    newest, copies = reader.read_newest()
    assert came_by == [0]
    assert newest == 2
    assert_same(copies, 20)


def test_a_writer_that_changes_places_while_one_looks_does_not_hide_its_rounds(
    slot, reader, monkeypatch
):
    slot.write(0, arrays(0))
    slot.write(1, arrays(10))
    of_place, looked = slots._Place.words, []

    def late(place: object) -> tuple[int, int]:
        looked.append(place)
        if len(looked) == 1:  # Place 0 while round 2 is being written there,
            return 3 | 1 << 63, 1
        if len(looked) == 2:  # place 1 when round 3 is being written there already.
            return 4 | 1 << 63, 2
        return of_place(place)

    monkeypatch.setattr(slots._Place, "words", late)
    assert reader.newest() == 1
    assert len(looked) == 4


def test_another_process_reads_what_is_written_without_a_copy_between_them(slot):
    program = (
        "import sys\nimport numpy as np\nfrom manege.runtime.slots import CentreSlot\n"
        f"slot = CentreSlot.attach(int(sys.argv[1]), {LENGTHS})\n"
        "assert 'torch' not in sys.modules\n"
        "views = slot.read(0)\n"
        "for line in sys.stdin:\n"
        "    round_ = int(line)\n"
        "    seen = slot.read(round_)\n"
        "    print(slot.newest(), [float(a[-1]) for a in seen], float(views[0][0]), flush=True)\n"
    )
    slot.write(0, arrays(0))
    with ended(
        subprocess.Popen(
            [sys.executable, "-c", program, str(slot.fileno())],
            pass_fds=[slot.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    ) as process:
        for round_ in range(4):
            slot.write(round_, arrays(10 * round_))
            print(round_, file=process.stdin, flush=True)
            last = [float(array[-1]) for array in arrays(10 * round_)]
            assert process.stdout.readline() == f"{round_} {last} {float(20 * (round_ // 2))}\n"
        process.stdin.close()
        assert process.wait() == 0


def test_no_copy_is_torn_while_another_process_writes_as_fast_as_it_can():
    lengths = (("float32", 30_000), ("float64", 20_000))
    program = (
        "import os, sys\nimport numpy as np\n"
        "from manege.runtime.channel import Channel\nfrom manege.runtime.slots import CentreSlot\n"
        "import socket\n"
        f"slot = CentreSlot.create({lengths})\n"
        "channel = Channel(socket.socket(fileno=int(sys.argv[1])))\n"
        "channel.send({'is': 'opened'}, [slot.fileno()])\n"
        "round_ = 0\n"
        "while not channel.wait(0):\n"
        "    slot.write(round_, [np.full(30_000, round_, 'f4'), np.full(20_000, round_, 'f8')])\n"
        "    round_ += 1\n"
    )
    one, other = Channel.pair()
    with ended(
        subprocess.Popen(
            [sys.executable, "-c", program, str(other.fileno())], pass_fds=[other.fileno()]
        )
    ) as process:
        other.close()
        assert one.wait(60)
        [(_, (file,))] = one.receive()
        slot = CentreSlot.attach(file, lengths)
        os.close(file)
        while slot.newest() is None:
            assert process.poll() is None
        rounds: list[int] = []
        # On a busy machine the two take turns and many copies are of the same round.
        while len(set(rounds)) < 40:
            assert process.poll() is None
            round_, copies = slot.read_newest()
            rounds.append(round_)
            for copy in copies:
                assert copy[0] == round_
                assert (copy == round_).all()
        assert rounds == sorted(rounds)
        slot.close()
        one.close()
        assert process.wait(60) == 0


def test_a_slot_for_other_arrays_is_refused(slot):
    for lengths in (
        (("float32", 1001), ("float32", 333), ("float64", 7)),
        (("float32", 1000), ("float32", 333), ("float32", 14)),
        (("float32", 1000), ("float32", 333)),
        (*LENGTHS, ("float64", 0)),
        (),
    ):
        with pytest.raises(ValueError, match=r"a slot for .*'<f4', 1000.*; expected"):
            CentreSlot.attach(slot.fileno(), lengths)


def forged(change: bytes, at: int, *, cut: int = 0, seals: int = slots._SEALS) -> int:
    """A slot's file with something wrong."""
    good = CentreSlot.create(LENGTHS)
    data = bytearray(os.pread(good.fileno(), 1 << 20, 0))
    good.close()
    data[at : at + len(change)] = change
    file = os.memfd_create("forged", os.MFD_ALLOW_SEALING)
    os.write(file, data[: len(data) - cut])
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


@pytest.mark.parametrize(
    ("words", "change", "at", "cut"),
    [
        ("does not start like one", b"X", 0, 0),
        ("version 2", b"\2", 8, 0),
        ("a slot for 4294967295 arrays", b"\xff\xff\xff\xff", 12, 0),
        ("a slot for .*<i4", b"<i4", 16, 0),
        ("a slot of 11199 bytes; expected 11200", b"", 0, 1),
        ("does not start like one", b"", 0, 11_195),
        ("a slot for 3 arrays", b"", 0, 11_180),
    ],
)
def test_a_file_that_is_no_slot_is_refused(words, change, at, cut):
    file = forged(change, at, cut=cut)
    with pytest.raises(ValueError, match=words):
        CentreSlot.attach(file, LENGTHS)
    os.close(file)


def test_a_file_that_could_shrink_under_its_readers_is_refused(tmp_path):
    for seals in (0, fcntl.F_SEAL_GROW):
        file = forged(b"", 0, seals=seals)
        with pytest.raises(ValueError, match="not sealed"):
            CentreSlot.attach(file, LENGTHS)
        os.close(file)
    file = forged(b"", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(file, 10)
    CentreSlot.attach(file, LENGTHS).close()
    (tmp_path / "x").write_bytes(os.pread(file, 1 << 20, 0))
    os.close(file)
    with (tmp_path / "x").open("rb") as plain, pytest.raises(ValueError, match="not sealed"):
        CentreSlot.attach(plain.fileno(), LENGTHS)


def test_what_is_no_file_is_refused(tmp_path):
    ends = os.pipe()
    folder = os.open(tmp_path, os.O_RDONLY)
    null = os.open("/dev/null", os.O_RDONLY)
    for file in (*ends, folder, null):
        with pytest.raises(ValueError, match="not a slot"):
            CentreSlot.attach(file, LENGTHS)
        os.close(file)


def test_what_does_not_fit_is_not_written(slot, reader):
    slot.write(0, arrays(0))
    a, b, c = arrays(5)
    for wrong in (
        [a, b],
        [a, b, c, c],
        [a[1:], b, c],
        [a, b, c.astype(np.float32)],
        [a.astype(np.float64), b, c],
        [a.reshape(10, 100), b, c],
    ):
        with pytest.raises(ValueError, match=r"arrays|shape"):
            slot.write(0, wrong)
    with pytest.raises(ValueError, match="round -1"):
        slot.write(-1, arrays(5))
    assert_same(reader.read(0), 0)
    with pytest.raises(ValueError, match="somebody else's"):
        reader.write(1, arrays(1))
    with pytest.raises(ValueError, match="somebody else's"):
        reader.fileno()
    for lengths in ((("object", 1),), (("float32", -1),), (("float32", 1),) * 65):
        with pytest.raises(ValueError, match="in a slot"):
            CentreSlot.create(lengths)


def test_arrays_that_are_not_contiguous_or_are_empty_can_be_written():
    given = [np.arange(20, dtype=np.float32)[::2], np.zeros(0, dtype=np.float64)]
    slot = CentreSlot.create(lengths_of(given))
    slot.write(3, given)
    first, second = slot.read(3)
    assert first.tolist() == list(range(0, 20, 2))
    assert second.shape == (0,)
    del first, second
    slot.close()


def test_a_closed_slot_leaves_nothing_and_says_that_it_is_closed():
    before = mapped()
    slot = CentreSlot.create(LENGTHS)
    reader = CentreSlot.attach(slot.fileno(), LENGTHS)
    assert mapped() == before + 2
    for one in (slot, reader):
        one.close()
        one.close()
        for work in (one.newest, one.read_newest, one.fileno):
            with pytest.raises(ValueError, match="closed"):
                work()
        with pytest.raises(ValueError, match="closed"):
            one.read(0)
        with pytest.raises(ValueError, match="closed"):
            one.write(0, arrays(0))
    assert mapped() == before


def test_views_outlive_the_slot_and_take_the_memory_with_them():
    before = mapped()
    slot = CentreSlot.create(LENGTHS)
    slot.write(0, arrays(3))
    reader = CentreSlot.attach(slot.fileno(), LENGTHS)
    views = reader.read(0)
    slot.close()
    reader.close()
    assert_same(views, 3)
    del views
    assert mapped() == before


def test_a_reader_keeps_the_memory_when_the_writer_has_closed():
    slot = CentreSlot.create(LENGTHS)
    slot.write(0, arrays(3))
    reader = CentreSlot.attach(slot.fileno(), LENGTHS)
    slot.close()
    assert_same(reader.read(0), 3)
    reader.close()


def test_the_file_does_not_pass_to_programs_that_are_started(slot):
    assert fcntl.fcntl(slot.fileno(), fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def test_memory_that_the_machine_refuses_is_said_in_one_line():
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(MachineError, match="11200 bytes of shared memory: File too large; "):
            CentreSlot.create(LENGTHS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_slot_says_itself_what_it_holds(slot):
    assert stated_lengths(slot.fileno()) == (("<f4", 1000), ("<f4", 333), ("<f8", 7))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"something else, long enough", "not a slot: it does not start like one"),
        (b"MNGslot\n" + bytes([1, 0, 0, 0, 99, 0, 0, 0]), "a slot of 99 arrays; expected 64"),
        (b"MNGslot\n" + bytes([1, 0, 0, 0, 2, 0, 0, 0]), "a slot of 2 arrays; expected 64"),
    ],
)
def test_what_is_no_slot_says_nothing(content, words, tmp_path):
    (tmp_path / "file").write_bytes(content)
    with (tmp_path / "file").open("rb") as file, pytest.raises(ValueError, match=words):
        stated_lengths(file.fileno())


def test_arrays_end_to_end_are_told_apart():
    arrays = [np.arange(3, dtype=np.float32), np.arange(2, dtype=np.int64)]
    lengths = lengths_of(arrays)
    payload = np.concatenate([array.view(np.uint8) for array in arrays])
    assert len(payload) == payload_bytes(lengths) == 28
    for found, wanted in zip(split(payload, lengths), arrays, strict=True):
        np.testing.assert_array_equal(found, wanted)
    with pytest.raises(ValueError, match=r"^27 bytes; expected 28$"):
        split(payload[:-1], lengths)
