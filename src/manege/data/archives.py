"""Takes files out of a published .tar.gz, once, into the cache.

Owns what may come out of an archive: files that are known by name, from one known folder, up to a
known size. Whatever else a tape archive can say (links, devices, ways out of the folder, terabytes
of zeros) is refused. Never asks tarfile to write anything: the names of the files are ours.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import secrets
import shutil
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO

from manege.data import cache
from manege.data.arrays import decoding, stamp
from manege.data.labels import printable
from manege.errors import DataError
from manege.files import sync_folder

_KIND = "unpacked"
_ASIDE = ".tmp-"
_STALE_S = 24 * 3600
_CHUNK = 1 << 20
_BLOCK = 512
"""Bytes of a block: a header, or a part of a file, whose content is filled up to whole blocks."""
_MOST_BYTES = 512 << 20
"""The most bytes that an archive may unzip to: CIFAR's hold 185 MB."""
_MOST_EXTENDED = 1 << 20
_EXTENDED = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
"""Members that only describe the next file (an exact time, a long name); none of ours needs it."""
_AGAIN = "get the archive again"


def unpack(archive: Path, folder: str, caps: Mapping[str, int]) -> Path:
    """Return the folder in the cache with those files of the archive; unpack them if needed.

    Args:
        archive: a .tar.gz; a changed one is unpacked again.
        folder: the one folder of the archive that has the files.
        caps: the files' names, and how many bytes each may have at most.
    """
    home = cache.cache_folder() / _KIND
    target = home / cache.key(stamp(archive)) / folder
    if _whole(target, caps):
        return target
    with cache.machine_faults(_KIND + " archives"):
        home.mkdir(parents=True, exist_ok=True)
        _sweep(home)
        aside = home / f"{_ASIDE}{secrets.token_hex(8)}"
        try:
            (aside / folder).mkdir(parents=True)
            _write_members(archive, aside / folder, folder, caps)
            _put(aside, target, caps)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return target


def _put(aside: Path, target: Path, caps: Mapping[str, int]) -> None:
    """Give an unpacked folder its name, unless another process was faster."""
    if target.parent.exists() and not _whole(target, caps):
        # Somebody took files away; a folder can only be put where none is.
        shutil.rmtree(target.parent)
    try:
        aside.rename(target.parent)
    except OSError:
        if not _whole(target, caps):
            raise


def _whole(folder: Path, caps: Mapping[str, int]) -> bool:
    return all((folder / name).is_file() for name in caps)


def _write_members(archive: Path, into: Path, folder: str, caps: Mapping[str, int]) -> None:
    """Write the wanted files; check every other member and pass over it."""
    wanted = {f"{folder}/{name}": name for name in caps}
    written: set[str] = set()
    with _opened(archive) as file:
        stream = _Unzipped(archive, file)
        for member in _members(archive, stream):
            name = wanted.get(member.name)
            if name is None:
                stream.skip(member.size)
            elif member.isdir():
                raise _refused(archive, member, "is a folder, expected a file")
            elif name in written:
                raise _refused(archive, member, "is in it twice")
            elif member.size > caps[name]:
                raise _refused(
                    archive, member, f"has {member.size} bytes, expected at most {caps[name]}"
                )
            else:
                _write(into / name, stream, member.size)
                written.add(name)
            stream.skip(-member.size % _BLOCK)
        # To the end, for the checksum of all stands there.
        stream.drain()
    missing = [member for member, name in wanted.items() if name not in written]
    if missing:
        raise DataError(f"{archive}: {', '.join(missing)} not in it; {_AGAIN}")
    sync_folder(into)


def _members(archive: Path, stream: _Unzipped) -> Iterator[tarfile.TarInfo]:
    """Yield the archive's files and folders, with the stream at the content of each."""
    while True:
        block = stream.read(_BLOCK)
        # An archive ends with blocks of zeros.
        if not any(block):
            return
        try:
            member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except (tarfile.HeaderError, ValueError) as error:
            raise DataError(f"{archive}: damaged, no tape archive ({error}); {_AGAIN}") from error
        if member.size < 0:
            raise _refused(archive, member, f"has {member.size} bytes")
        if member.type in _EXTENDED:
            if member.size > _MOST_EXTENDED:
                raise _refused(archive, member, f"is described with {member.size} bytes")
            stream.skip(member.size + -member.size % _BLOCK)
            continue
        _check(archive, member)
        yield member


def _check(archive: Path, member: tarfile.TarInfo) -> None:
    """Refuse a member that no honest archive of pictures has, wanted or not."""
    if not (member.isdir() or member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)):
        kind = "a link" if member.islnk() or member.issym() else "neither a file nor a folder"
        raise _refused(archive, member, f"is {kind}")
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\\" in member.name:
        raise _refused(archive, member, "leads out of the archive's folder")
    if member.isdir() and member.size:
        raise _refused(archive, member, "is a folder with content")
    # Python 3.11.4 brought a filter of its own: a second opinion, should ours have missed a way.
    if hasattr(tarfile, "data_filter"):
        try:
            tarfile.data_filter(member, str(cache.cache_folder()))
        except tarfile.FilterError as error:
            raise _refused(archive, member, f"is refused by tarfile ({error})") from error


def _refused(archive: Path, member: tarfile.TarInfo, what: str) -> DataError:
    name = printable(member.name)[:100]
    return DataError(f"{archive}: {name} {printable(what)}; not the published archive, {_AGAIN}")


def _write(path: Path, stream: _Unzipped, size: int) -> None:
    with path.open("xb") as file:
        while size:
            chunk = stream.read(min(size, _CHUNK))
            file.write(chunk)
            size -= len(chunk)
        file.flush()
        os.fsync(file.fileno())


class _Unzipped:
    """The archive's content, read once from front to back, up to a limit."""

    def __init__(self, archive: Path, file: IO[bytes]) -> None:
        self._archive = archive
        self._file = file
        self._left = _MOST_BYTES

    def read(self, size: int) -> bytes:
        """Return exactly so many bytes; raise DataError if the archive ends before."""
        content = self._some(size)
        while len(content) < size:
            more = self._some(size - len(content))
            if not more:
                raise DataError(f"{self._archive}: the archive breaks off; {_AGAIN}")
            content += more
        return content

    def skip(self, size: int) -> None:
        """Read and drop exactly so many bytes."""
        while size:
            size -= len(self.read(min(size, _CHUNK)))

    def drain(self) -> None:
        """Read and drop all that is left."""
        while self._some(_CHUNK):
            pass

    def _some(self, size: int) -> bytes:
        with _faults(self._archive):
            content = self._file.read(size)
        self._left -= len(content)
        if self._left < 0:
            raise DataError(
                f"{self._archive}: unzips to more than {_MOST_BYTES >> 20} MiB, which no published "
                f"archive does; {_AGAIN}"
            )
        return content


def _opened(archive: Path) -> IO[bytes]:
    with _faults(archive):
        return gzip.open(archive, "rb")  # type: ignore[return-value]


def _faults(archive: Path) -> contextlib.AbstractContextManager[None]:
    return decoding(archive, "damaged gzip file", _AGAIN)


def _sweep(home: Path) -> None:
    """Remove what killed processes left: anything a day old, as unpacking takes less."""
    for path in home.glob(f"{_ASIDE}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_S:
                shutil.rmtree(path, ignore_errors=True)
