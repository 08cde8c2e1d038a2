from __future__ import annotations

import gzip
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.helpers.cifar_files import member, write_tar

from manege.data import archives
from manege.data.archives import unpack
from manege.errors import DataError, MachineError

CAPS = {"a": 1000, "b": 1000}
GOOD = [member("d", type=tarfile.DIRTYPE), member("d/a", b"first"), member("d/b", b"x" * 513)]


def everything_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return write_tar(tmp_path / "in" / "d.tar.gz", GOOD)


def test_the_wanted_files_come_out(archive: Path, cache: Path) -> None:
    folder = unpack(archive, "d", CAPS)
    assert folder.name == "d"
    assert folder.is_relative_to(cache / "unpacked")
    assert (folder / "a").read_bytes() == b"first"
    assert (folder / "b").read_bytes() == b"x" * 513
    assert len(list((cache / "unpacked").iterdir())) == 1


@pytest.mark.parametrize("format_", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_every_kind_of_tape_archive_is_read(tmp_path: Path, format_: int) -> None:
    with tarfile.open(tmp_path / "d.tar.gz", "w:gz", format=format_) as tar:
        # A time with a fraction takes an extended header, and so does a long name.
        for info, content in (member("d/" + "n" * 90, b"no"), *GOOD, member("d/c", b"more")):
            info.mtime = 1234.5
            tar.addfile(info, io.BytesIO(content))
    assert everything_below(unpack(tmp_path / "d.tar.gz", "d", CAPS)) == {"a", "b"}


def test_an_archive_is_unpacked_once_and_again_when_it_changes(archive: Path) -> None:
    folder = unpack(archive, "d", CAPS)
    before = (folder / "a").stat().st_mtime_ns
    assert unpack(archive, "d", CAPS) == folder
    assert (folder / "a").stat().st_mtime_ns == before
    write_tar(archive, [member("d/a", b"other"), member("d/b", b"")])
    again = unpack(archive, "d", CAPS)
    assert again != folder
    assert (again / "a").read_bytes() == b"other"


def test_what_somebody_took_away_is_unpacked_again(archive: Path) -> None:
    folder = unpack(archive, "d", CAPS)
    (folder / "a").unlink()
    assert unpack(archive, "d", CAPS) == folder
    assert (folder / "a").read_bytes() == b"first"


def info(name: str, **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, **fields)


HOSTILE: dict[str, tuple[Sequence[tuple[tarfile.TarInfo, bytes]], str]] = {
    "absolute": ([member("/tmp/manege-evil", b"x")], "/tmp/manege-evil leads out of the archive"),
    "above": ([member("../evil", b"x")], r"\.\./evil leads out"),
    "above inside": ([member("d/../../evil", b"x")], r"d/\.\./\.\./evil leads out"),
    "above to a wanted one": ([member("d/../d/a", b"x")], "leads out"),
    "backslash": ([member("..\\evil", b"x")], "leads out"),
    "symbolic link": ([info("d/link", type=tarfile.SYMTYPE, linkname="/etc")], "link is a link"),
    "wanted link": ([info("d/a", type=tarfile.SYMTYPE, linkname="/etc/passwd")], "d/a is a link"),
    "hard link": ([info("d/a", type=tarfile.LNKTYPE, linkname="/etc/passwd")], "d/a is a link"),
    "link beside": ([info("x", type=tarfile.LNKTYPE, linkname="d/a")], "x is a link"),
    "the folder a link": ([info("d", type=tarfile.SYMTYPE, linkname="/tmp")], "d is a link"),
    "pipe": ([info("d/a", type=tarfile.FIFOTYPE)], "d/a is neither a file nor a folder"),
    "device": ([info("d/x", type=tarfile.CHRTYPE, devmajor=1, devminor=5)], "d/x is neither"),
    "block device": ([info("d/a", type=tarfile.BLKTYPE)], "d/a is neither"),
    "sparse file": ([info("d/a", type=tarfile.GNUTYPE_SPARSE)], "d/a is neither"),
    "unknown kind": ([info("d/a", type=b"9")], "d/a is neither"),
    "folder for a file": ([info("d/a", type=tarfile.DIRTYPE)], "d/a is a folder, expected a file"),
    "twice": ([member("d/a", b"second")], "d/a is in it twice"),
    "too large": ([member("d/b", b"x" * 1001)], "d/b has 1001 bytes, expected at most 1000"),
}


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_archive_is_refused_and_leaves_nothing(
    tmp_path: Path, cache: Path, case: str, place: str
) -> None:
    evil, message = HOSTILE[case]
    names = set() if case == "twice" else {one.name for one, _ in evil}
    rest = [one for one in GOOD[1:] if one[0].name not in names]
    members = [*evil, *rest] if place == "before" else [*rest, *evil]
    archive = write_tar(tmp_path / "in" / "d.tar.gz", members)
    before = everything_below(tmp_path)
    with pytest.raises(DataError, match=message) as caught:
        unpack(archive, "d", CAPS)
    assert str(caught.value).startswith(f"{archive}: ")
    assert "\n" not in str(caught.value)
    assert everything_below(tmp_path) - before <= {"cache", "cache/unpacked"}
    assert not Path("/tmp/manege-evil").exists()


def header(name: str, size: bytes, kind: bytes = b"0") -> bytes:
    """A header with any size field, its checksum right."""
    block = bytearray(tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT))
    block[124:136] = size
    block[156:157] = kind
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


NEGATIVE = b"\xff" * 11 + b"\x00"
HUGE = b"\x80" + b"\0" * 3 + b"\x7f" + b"\xff" * 7


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header("d/a", NEGATIVE), "d/a has -256 bytes"),
        (header("d/x", NEGATIVE), "d/x has -256 bytes"),
        (header("d/a", HUGE), r"d/a has \d+ bytes, expected at most 1000"),
        (header("d/x", HUGE), "the archive breaks off"),
        (header("d/x", HUGE, b"x"), "is described with"),
        (header("d/x", NEGATIVE, b"x"), "d/x has -256 bytes"),
        (header("d/x", b"%011o\0" % 512, b"5") + bytes(512), "d/x is a folder with content"),
        (header("d/x", b"00000000zzz\0"), "damaged, no tape archive"),
        (header("d/a", b"%011o\0" % 600) + bytes(512), "the archive breaks off"),
        (header("d/a", b"%011o\0" % 0)[:300], "the archive breaks off"),
        (b"", "the archive breaks off"),
        (b"hello" * 200, r"damaged, no tape archive \(invalid header\)"),
        (bytes(1024), "d/a, d/b not in it"),
    ],
)
def test_lying_headers_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "d.tar.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match=message):
        unpack(path, "d", CAPS)


def test_an_endless_description_ends(tmp_path: Path) -> None:
    # tarfile would read each into memory, and one inside the other.
    path = tmp_path / "d.tar.gz"
    path.write_bytes(gzip.compress(header("d/x", b"%011o\0" % 0, b"x") * 20_000, 1))
    with pytest.raises(DataError, match="the archive breaks off"):
        unpack(path, "d", CAPS)


@pytest.mark.parametrize("name", ["d/other", "d/a"])
def test_a_bomb_stops_at_the_cap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(archives, "_MOST_BYTES", 2 << 20)
    bomb = member(name, bytes(8 << 20))
    archive = write_tar(tmp_path / "d.tar.gz", [bomb, *GOOD])
    with pytest.raises(DataError, match=r"d\.tar\.gz: unzips to more than 2 MiB"):
        unpack(archive, "d", {"a": 100 << 20, "b": 1000})
    path = tmp_path / "tail.tar.gz"
    path.write_bytes(gzip.compress(gzip.decompress(write_tar(archive, GOOD).read_bytes())))
    with path.open("ab") as file:
        file.write(gzip.compress(bytes(8 << 20)))
    with pytest.raises(DataError, match="unzips to more than 2 MiB"):
        unpack(path, "d", CAPS)


def test_a_damaged_archive_is_named(archive: Path, tmp_path: Path) -> None:
    whole = archive.read_bytes()
    for length in range(0, len(whole), 7):
        archive.write_bytes(whole[:length])
        with pytest.raises(
            DataError, match=r"in/d\.tar\.gz: (damaged gzip|the archive breaks off)"
        ):
            unpack(archive, "d", CAPS)
    # Behind gzip's own header, in which a name stands that nobody needs.
    for place in range(20, len(whole), 7):
        changed = bytearray(whole)
        changed[place] ^= 0x55
        archive.write_bytes(bytes(changed))
        with pytest.raises(DataError, match=r"in/d\.tar\.gz: "):
            unpack(archive, "d", CAPS)
    archive.write_bytes(b"<html>404</html>")
    with pytest.raises(DataError, match=r"damaged gzip file \(Not a gzipped file"):
        unpack(archive, "d", CAPS)


def test_a_wanted_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for members in (GOOD[:2], [GOOD[1], member("e/b", b"")], [GOOD[1], member("./d/b", b"")]):
        archive = write_tar(tmp_path / "d.tar.gz", members)
        with pytest.raises(DataError, match="d/b not in it; get the archive again"):
            unpack(archive, "d", CAPS)


def test_a_broken_off_unpacking_leaves_nothing_half_made(
    archive: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = archives._write

    def interrupted(path: Path, *args: object) -> None:
        if path.name == "b":
            raise KeyboardInterrupt
        real(path, *args)

    with monkeypatch.context() as patch:
        patch.setattr(archives, "_write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            unpack(archive, "d", CAPS)
    assert list((cache / "unpacked").iterdir()) == []
    assert (unpack(archive, "d", CAPS) / "b").is_file()


def test_a_killed_unpacking_is_not_taken_for_a_whole_one(archive: Path, cache: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from manege.data import archives\n"
        "archives._put = lambda *args: os.kill(os.getpid(), signal.SIGKILL)\n"
        "archives.unpack(Path(sys.argv[1]), 'd', {'a': 1000, 'b': 1000})\n"
    )
    assert subprocess.run([sys.executable, "-c", code, archive]).returncode == -signal.SIGKILL
    (left,) = (cache / "unpacked").iterdir()
    assert left.name.startswith(".tmp-")
    # A living process may be at it still; after a day none is.
    folder = unpack(archive, "d", CAPS)
    assert left.is_dir()
    yesterday = time.time() - 25 * 3600
    os.utime(left, (yesterday, yesterday))
    shutil.rmtree(folder)
    unpack(archive, "d", CAPS)
    assert not left.exists()


def test_two_at_once_leave_one(archive: Path, cache: Path, monkeypatch) -> None:
    both = threading.Barrier(2)
    real = archives._put

    def together(*args: object) -> None:
        both.wait(10)
        real(*args)

    monkeypatch.setattr(archives, "_put", together)
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(unpack(archive, "d", CAPS))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert found[0] == found[1]
    assert everything_below(found[0]) == {"a", "b"}
    assert len(list((cache / "unpacked").iterdir())) == 1


def test_a_place_that_cannot_be_written_is_a_machine_fault(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MANEGE_CACHE", str(tmp_path / "file"))
    with pytest.raises(MachineError, match="file: unpacked archives cannot be kept there"):
        unpack(archive, "d", CAPS)
    archive.unlink()
    with pytest.raises(DataError, match=r"d\.tar\.gz: not found"):
        unpack(archive, "d", CAPS)
