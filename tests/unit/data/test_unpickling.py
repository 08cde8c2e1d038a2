from __future__ import annotations

import io
import os
import pickle
import struct
import time
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.cifar_files import (
    DTYPE,
    EMPTY,
    array,
    batch,
    cifar10_part,
    integer,
    many,
    pickled,
    text,
)
from tests.helpers.samples import noise

from manege.data import unpickling
from manege.data.unpickling import read_pickle
from manege.errors import DataError, MachineError

CAP = 4 << 20


def written(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "batch"
    path.write_bytes(content)
    return path


def refusal(tmp_path: Path, content: bytes) -> str:
    """The one line that the file is refused with."""
    path = written(tmp_path, content)
    with pytest.raises(DataError) as caught:
        read_pickle(path, CAP)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.endswith("get the file again")
    assert "\n" not in message
    assert len(message) < len(str(path)) + 200
    return message


def test_what_python_2_wrote_is_read(tmp_path: Path) -> None:
    part = cifar10_part(0)
    told = read_pickle(written(tmp_path, batch(part)), CAP)
    assert sorted(told) == [b"batch_label", b"data", b"filenames", b"labels"]
    assert told[b"batch_label"] == b"one of one"
    assert told[b"labels"] == part.labels["labels"]
    assert told[b"filenames"][3] == b"picture_3.png"
    assert told[b"data"].dtype == np.uint8
    np.testing.assert_array_equal(told[b"data"], part.pixels)


def test_the_real_reading_is_that_of_pickle(real_data: Path) -> None:
    path = real_data / "cifar-10-batches-py" / "test_batch"
    told = read_pickle(path, 64 << 20)
    assert told[b"labels"][:5] == [3, 8, 8, 0, 6]
    assert told[b"batch_label"] == b"testing batch 1 of 1"
    assert told[b"data"].shape == (10_000, 3072)


def test_a_text_may_be_remembered_and_come_again(tmp_path: Path) -> None:
    content = pickled({"a": text("word") + b"q\x02", "b": b"h\x02", "c": b"j\x02\0\0\0"})
    told = read_pickle(written(tmp_path, content), CAP)
    assert told == {b"a": b"word", b"b": b"word", b"c": b"word"}


# Calls.


class Creates:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("wrap", [lambda evil: evil, lambda evil: {"data": evil, "labels": [1]}])
def test_an_object_that_creates_a_file_creates_none(tmp_path: Path, protocol: int, wrap) -> None:
    trace = tmp_path / "trace"
    content = pickle.dumps(wrap(Creates(trace)), protocol)
    refusal(tmp_path, content)
    # The second wall stands alone too.
    with pytest.raises(unpickling._Refused, match="it asks for"):
        unpickling._Unpickler(io.BytesIO(content), encoding="bytes").load()
    assert not trace.exists()


EVIL = {
    "os.system": b"cos\nsystem\nU\x0btouch trace\x85R",
    "posix.system": b"cposix\nsystem\nU\x04true\x85R",
    "subprocess.call": b"csubprocess\ncall\nU\x04true\x85R",
    "builtins.eval": b"cbuiltins\neval\nU\x011\x85R",
    "__builtin__.eval": b"c__builtin__\neval\nU\x011\x85R",
    "builtins.getattr": b"cbuiltins\ngetattr\ncnumpy\nndarray\nU\x07__new__\x86R",
    "builtins.bytearray": b"cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R",
    "builtins.object": b"cbuiltins\nobject\n",
    "_codecs.encode": b"c_codecs\nencode\nU\x01xU\x06latin1\x86R",
    "copyreg._reconstructor": b"ccopyreg\n_reconstructor\n",
    "numpy.load": b"cnumpy\nload\nU\x0b/etc/passwd\x85R",
    "numpy.fromfile": b"cnumpy\nfromfile\nU\x0b/etc/passwd\x85R",
    "numpy.memmap": b"cnumpy\nmemmap\nU\x05trace\x85R",
    "numpy.save": b"cnumpy\nsave\nU\x05traceK\x01\x86R",
    "numpy.frombuffer": b"cnumpy\nfrombuffer\nU\x01x\x85R",
    "numpy.core.multiarray.scalar": b"cnumpy.core.multiarray\nscalar\n",
    "numpy.core.multiarray.fromfile": b"cnumpy.core.multiarray\nfromfile\n",
    "numpy._core.multiarray._reconstruct": b"cnumpy._core.multiarray\n_reconstruct\n",
    "numpy.ndarray.tofile": b"cnumpy\nndarray.tofile\n",
    "numpy.ndarray.__class__": b"cnumpy\nndarray.__class__\n",
    "numpy.dtype.__init__": b"cnumpy\ndtype.__init__\n",
    "numpy.core.multiarray._reconstruct.__globals__": (
        b"cnumpy.core.multiarray\n_reconstruct.__globals__\n"
    ),
    "manege.data.unpickling._Array": b"cmanege.data.unpickling\n_Array\n)R",
}


@pytest.mark.parametrize("name", EVIL)
def test_a_name_that_the_files_do_not_need_is_not_given(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = pickled({"data": EVIL[name]})
    # The last one has an instruction too many, and does not come so far.
    if b")" not in EVIL[name]:
        assert f"it asks for {name}"[:72] in refusal(tmp_path, content)
    with pytest.raises(unpickling._Refused, match="it asks for"):
        unpickling._Unpickler(io.BytesIO(content), encoding="bytes").load()
    assert [path.name for path in tmp_path.iterdir()] in ([], ["batch"])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("STACK_GLOBAL", b"\x80\x04U\x02osU\x06system\x93."),
        ("INST", b"(U\x04trueios\nsystem\n."),
        ("OBJ", b"(cos\nsystem\nU\x04trueo."),
        ("NEWOBJ", b"\x80\x02cnumpy\nndarray\n)\x81."),
        ("PERSID", b"P1\n."),
        ("BINPERSID", b"U\x01xQ."),
        ("EXT1", b"\x80\x02\x82\x01."),
        ("DUP", b"\x80\x02]2\x86."),
        ("BYTEARRAY8", b"\x80\x05\x96\x00\x00\x00\x00\x00\x00\x00\x00."),
        ("NEXT_BUFFER", b"\x80\x05\x97."),
        ("FRAME", b"\x80\x04\x95\x01\x00\x00\x00\x00\x00\x00\x00."),
    ],
)
def test_an_instruction_that_the_files_do_not_need_is_not_run(
    tmp_path: Path, name: str, content: bytes
) -> None:
    found = refusal(tmp_path, content)
    assert name in found or "EMPTY_TUPLE" in found


@pytest.mark.parametrize(
    "evil",
    [
        # A name is changed, called as it is not, or filled.
        b"cnumpy\nndarray\n}U\x01aK\x01sb",
        b"cnumpy\nndarray\nN}U\x08__call__K\x01s\x86b",
        b"cnumpy.core.multiarray\n_reconstruct\nN}U\x0c__defaults__Ns\x86b",
        b"cnumpy\ndtype\nN}U\x08__call__Ns\x86b",
        b"cnumpy\nndarray\nK\x01\x85R",
        b"cnumpy\nndarray\n(K\x01e",
        b"cnumpy\nndarray\nU\x01aK\x01s",
        b"cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R",
        b"cnumpy\ndtype\nU\x02u1K\x01K\x01\x87R",
        b"cnumpy\ndtype\ncnumpy\nndarray\n\x85R",
        b"cnumpy.core.multiarray\n_reconstruct\nK\x00K\x00\x85U\x01b\x87R",
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nM\x00\x10\x85U\x01b\x87R",
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01O\x87R",
    ],
)
def test_the_names_do_only_what_the_files_do_with_them(tmp_path: Path, evil: bytes) -> None:
    refusal(tmp_path, pickled({"data": evil}))
    # Nothing of it stays behind for the next file.
    test_what_python_2_wrote_is_read(tmp_path)


# Arrays.

PIXELS = noise(0, 2, 12)


def dtype_of(code: bytes, order: bytes = b"|") -> bytes:
    head = b"cnumpy\ndtype\n" + text(code) + b"K\x00K\x01\x87R(K\x03" + text(order)
    return head + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"


@pytest.mark.parametrize(
    "data",
    [
        EMPTY,
        EMPTY + b"Nb",
        EMPTY + b"}b",
        EMPTY + b"(K\x01tb",
        EMPTY + b"(K\x01K\x02K\x0c\x86" + DTYPE + b"\x89]tb",
        EMPTY + b"(K\x01K\x02K\x0c\x86" + DTYPE + b"\x89Ntb",
        EMPTY + b"(K\x01K\x02K\x0c\x86N\x89" + text(PIXELS.tobytes()) + b"tb",
        EMPTY + b"(K\x01K\x02K\x0c\x86" + DTYPE + b"N" + text(PIXELS.tobytes()) + b"tb",
        array(PIXELS, dtype=dtype_of(b"O8")),
        array(PIXELS, dtype=dtype_of(b"O")),
        array(PIXELS, dtype=dtype_of(b"f4", b"<")),
        array(PIXELS, dtype=dtype_of(b"i1")),
        array(PIXELS, dtype=dtype_of(b"V1")),
        array(PIXELS, dtype=dtype_of(b"u1", b"O")),
        array(PIXELS, dtype=b"cnumpy\ndtype\n"),
        array(PIXELS, shape=integer(24) + b"\x85"),
        array(PIXELS, shape=integer(2) + integer(3) + integer(4) + b"\x87"),
        array(PIXELS, shape=integer(2) + integer(11) + b"\x86"),
        array(PIXELS, shape=integer(-2) + integer(-12) + b"\x86"),
        array(PIXELS, shape=integer(2**31 - 1) + integer(2**31 - 1) + b"\x86"),
        array(PIXELS, shape=text("2") + text("12") + b"\x86"),
        array(PIXELS[:0], shape=integer(0) + integer(12) + b"\x86"),
    ],
)
def test_an_array_of_anything_but_rows_of_bytes_is_refused(tmp_path: Path, data: bytes) -> None:
    assert "array" in refusal(tmp_path, pickled({"data": data}))


def test_an_array_of_objects_is_refused_however_it_is_written(tmp_path: Path) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        refusal(tmp_path, pickle.dumps({b"data": np.array([[os.system]])}, protocol))


# Damage, and files that ask for too much.


def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    whole = batch(cifar10_part(0, each=1))
    for length in [*range(0, 400, 7), *range(400, len(whole), 997), len(whole) - 1]:
        refusal(tmp_path, whole[:length])
    assert "it ends at byte" in refusal(tmp_path, whole + b"x")


def test_random_bytes_are_refused(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for _ in range(150):
        refusal(tmp_path, random.bytes(int(random.integers(0, 300))))


def test_a_file_with_any_byte_changed_is_read_or_refused(tmp_path: Path) -> None:
    whole = pickled({"labels": many([1, 2, 300, -5]), "data": array(PIXELS), "n": text("a")})
    random = np.random.default_rng(1)
    for place in range(len(whole)):
        for value in random.integers(0, 256, 2):
            changed = bytearray(whole)
            changed[place] = value
            try:
                told = read_pickle(written(tmp_path, bytes(changed)), CAP)
            except DataError:
                continue
            for one in told.values():
                assert type(one) in (bytes, list, int, tuple, np.ndarray, type(None), bool, dict)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02T\xff\xff\xff\x7fabc.",
        b"\x80\x02T\xff\xff\xff\xffabc.",
        b"\x80\x02U\xffabc.",
        b"\x80\x02X\xff\xff\xff\x7fabc.",
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
        b"\x80\x05\x96\xff\xff\xff\xff\x01\0\0\0abc.",
        b"\x80\x02\x8b\xff\xff\xff\x7fabc.",
        b"\x80\x02]r\xff\xff\xff\xff.",
        b"\x80\x02]r\xff\xff\xff\x0f.",
        b"\x80\x02]q\xff.",
        b"\x80\x02]p99999999999\n.",
        b"I" + b"9" * 100_000 + b"\n.",
    ],
)
def test_a_claim_of_gigabytes_is_answered_at_once(tmp_path: Path, content: bytes) -> None:
    start = time.monotonic()
    refusal(tmp_path, content)
    assert time.monotonic() - start < 1


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02" + b"]" * 500_000 + b"a" * 499_999 + b".",
        b"\x80\x02N" + b"\x85" * 1_000_000 + b".",
        # The hash of a tuple goes as deep as the tuple does, without asking for the stack.
        b"\x80\x02}N" + b"\x85" * 1_000_000 + b"Ns.",
        b"\x80\x02" + b"(" * 1_500_000 + b".",
        b"\x80\x02" + b"}U\x01a" * 300_000 + b"N" + b"s" * 300_000 + b".",
        # Each tuple has the one before twice: to hash the last takes years.
        b"\x80\x02}N" + b"".join(b"\x85q%ch%c\x86" % (n, n) for n in range(1, 25)) + b"Ns.",
    ],
    ids=["lists", "tuples", "keys", "marks", "dicts", "doubled"],
)
def test_deep_nesting_ends_neither_stack_nor_patience(tmp_path: Path, content: bytes) -> None:
    refusal(tmp_path, content)


def test_what_is_shallow_enough_to_run_does_no_harm(tmp_path: Path) -> None:
    nested = b"N" + b"\x85" * 50
    refusal(tmp_path, b"\x80\x02}" + nested + b"Ns.")
    read_pickle(written(tmp_path, pickled({"a": nested})), CAP)


@pytest.mark.parametrize(
    "content", [b"N.", b"K\x01.", b"].", b"}K\x01Ns.", b"}NNs.", EMPTY + b".", b"cnumpy\ndtype\n."]
)
def test_what_is_no_dict_of_names_is_refused(tmp_path: Path, content: bytes) -> None:
    assert "no dict of named values" in refusal(tmp_path, content)


def test_a_file_over_the_cap_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DataError, match=r"batch: it has 1099511627776 bytes, at most 4194304"):
        read_pickle(path, CAP)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="not a regular file"):
        read_pickle(tmp_path / "pipe", CAP)
    with pytest.raises(DataError, match="not found"):
        read_pickle(tmp_path / "none", CAP)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(MachineError, match="cannot be read"):
        read_pickle(tmp_path / "loop", CAP)


def test_a_million_instructions_are_the_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpickling, "_MOST_INSTRUCTIONS", 1000)
    ints = b"](" + b"".join(b"J" + struct.pack("<i", place) for place in range(1000)) + b"e"
    assert "more than 1,000 instructions" in refusal(tmp_path, pickled({"labels": ints}))
