"""Keeps decoded pictures and what is derived from them on disk: a key's array and description.

An entry is written aside, synced and renamed, its description last, so a reader sees a whole
entry or none, and two writers of one entry leave one of two equal results. No entry is handed out
whose content was not hashed: a damaged one is no entry, and is made again. Nothing here knows where
pictures come from. Every kind of entry has a folder of its own; entries are bytes, and whoever
keeps floats views them as such.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from manege.errors import MachineError
from manege.files import user_path

_FORMAT = 1
_STALE_S = 24 * 3600
_ASIDE = ".tmp-"
_PICTURES = "pictures"

_verified: dict[Path, tuple[object, ...]] = {}
"""The state of each file, and its digest, when this process or one it was forked from hashed it."""


@dataclass(frozen=True)
class Entry:
    """A complete entry: where its array lies and what the description says of it."""

    path: Path
    shape: tuple[int, ...]
    sha256: str
    """The digest of the array's content, without the file's header."""

    def open(self) -> npt.NDArray[np.uint8]:
        """Return the array, mapped copy-on-write: reading touches only the pages that are used."""
        # An empty file part cannot be mapped.
        if 0 in self.shape:
            return np.empty(self.shape, dtype=np.uint8)
        array: npt.NDArray[np.uint8] = np.load(self.path, mmap_mode="c", allow_pickle=False)
        return array

    def mark_used(self) -> None:
        """Set the file's time, by which :func:`trim` goes; a read-only cache is left as it is."""
        with contextlib.suppress(OSError):
            os.utime(self.path)


def cache_folder() -> Path:
    """Return the folder MANEGE_CACHE, else ``manege`` in the user's cache folder."""
    if own := os.environ.get("MANEGE_CACHE"):
        return user_path(own).absolute()
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rules say that a relative path is to be ignored.
    if Path(xdg).is_absolute():
        return Path(xdg) / "manege"
    try:
        return Path.home() / ".cache" / "manege"
    except RuntimeError as error:
        raise MachineError(
            "no home folder to keep decoded pictures in; set MANEGE_CACHE to a folder"
        ) from error


def _to_stderr(text: str) -> None:
    sys.stderr.write(f"warning: {text}\n")


_warn: Callable[[str], object] = _to_stderr


def warn_by(warn: Callable[[str], object]) -> None:
    """Send lines about damaged entries to a function: a worker's standard error is a log."""
    global _warn
    _warn = warn


def key(*parts: Any) -> str:
    """Return the entry's name: a hash of everything its content depends on."""
    spelled = json.dumps([_FORMAT, *parts], separators=(",", ":"))
    return hashlib.blake2b(spelled.encode("ascii"), digest_size=20).hexdigest()


def find(key: str, kind: str = _PICTURES) -> Entry | None:
    """Return the entry of that key, its content verified; None if there is none to use.

    The caller then makes it; a warning says so if there is one that is damaged. Content is hashed
    once, and again when the file changes.
    """
    try:
        return read(key, kind)
    except (FileNotFoundError, NotADirectoryError):
        return None
    # Damage makes readers throw whatever its meaning comes to.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        _warn(f"{_paths(key, kind)[0]}: cannot be used ({reason}); made again")
        return None


def read(key: str, kind: str) -> Entry:
    """Return the entry of that key, its content verified; raise whatever is wrong with it."""
    told = description(key, kind)
    entry = Entry(_paths(key, kind)[0], tuple(told["shape"]), str(told["sha256"]))
    _verify(entry, told["file_bytes"])
    return entry


def description(key: str, kind: str) -> dict[str, Any]:
    """Return an entry's description, which nothing has verified; raise OSError or ValueError."""
    told = json.loads(_paths(key, kind)[1].read_bytes())
    if not isinstance(told, dict):
        raise ValueError("its description is none")
    return told


def store(
    key: str,
    shape: tuple[int, ...],
    names: Sequence[str],
    blocks: Iterable[npt.NDArray[np.uint8]],
    kind: str = _PICTURES,
) -> Entry:
    """Write the entry from consecutive blocks along the first axis; memory holds one block.

    What ``blocks`` raises passes through and leaves nothing behind.

    Args:
        key: what :func:`key` made.
        shape: the shape of the whole array; its first number is the rows of all blocks together.
        names: the names of the rows, for people who read the description.
        blocks: bytes; floats are given viewed as bytes, and viewed back after opening.
        kind: the folder that such entries share.
    """
    with _new_array(kind) as aside:
        digest, file_bytes = _write_array(aside, shape, blocks, kind)
        told = {"shape": shape, "sha256": digest, "file_bytes": file_bytes}
        array = _adopt(key, kind, aside, {**told, "count": len(names), "names": list(names)})
        return Entry(array, shape, digest)


def store_by_content(
    blocks: Iterable[npt.NDArray[np.uint8]],
    kind: str,
    name: Callable[[str], tuple[str, dict[str, Any]]],
) -> tuple[str, bool]:
    """Write an entry whose key follows from its content, unless there is one.

    Returns the key, and whether the entry is new.

    What ``blocks`` and ``name`` raise passes through and leaves nothing behind.

    Args:
        blocks: rows of bytes, which the array holds one after the other; memory holds one.
        kind: the folder that such entries share.
        name: given the SHA-256 of all bytes, returns the key and what the description adds.
    """
    with _new_array(kind) as aside:
        digest, file_bytes, shape = _write_row(aside, blocks)
        key, more = name(digest)
        told = {"shape": shape, "sha256": digest, "file_bytes": file_bytes, **more}
        is_new = not holds(key, kind, told)
        if is_new:
            _adopt(key, kind, aside, told)
        return key, is_new


def holds(key: str, kind: str, told: dict[str, Any]) -> bool:
    """Return whether there is an entry of that key, verified, whose description says all that."""
    if find(key, kind) is None:
        return False
    # As it is read back: without tuples.
    told = json.loads(json.dumps(told))
    return told.items() <= description(key, kind).items()


def trim(kind: str, most_bytes: int) -> None:
    """Remove the entries of a kind that were used longest ago, until the others fit."""
    arrays = []
    for path in (cache_folder() / kind).glob("*.npy"):
        with contextlib.suppress(OSError):
            arrays.append((path.stat().st_mtime_ns, path.stat().st_size, path))
    total = sum(size for _, size, _ in arrays)
    for _, size, path in sorted(arrays):
        if total <= most_bytes:
            return
        with contextlib.suppress(OSError):
            # The description first: an array without one is no entry.
            path.with_suffix(".json").unlink(missing_ok=True)
            path.unlink()
        total -= size


def _paths(key: str, kind: str) -> tuple[Path, Path]:
    stem = cache_folder() / kind / key
    return stem.with_suffix(".npy"), stem.with_suffix(".json")


def _verify(entry: Entry, file_bytes: int) -> None:
    """Raise if anything is wrong with the entry's array, unless it was verified before."""
    with entry.path.open("rb") as file:
        state = os.fstat(file.fileno())
        # Nobody can set the time of the last change of a file's state.
        times = (state.st_mtime_ns, state.st_ctime_ns)
        seen = (state.st_ino, state.st_size, *times, entry.shape, entry.sha256)
        if _verified.get(entry.path) == seen:
            return
        if state.st_size != file_bytes:
            raise ValueError(f"{state.st_size} bytes, expected {file_bytes}")
        if _header(file) != (entry.shape, False, np.dtype(np.uint8)):
            raise ValueError("its header is another array's")
        # Read, not mapped: a disk's fault is an error then, and not the end of the process.
        found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != entry.sha256:
            raise ValueError(f"SHA-256 {found[:12]}..., expected {entry.sha256[:12]}...")
    _verified[entry.path] = seen


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order and type from the array's header; leave the file at its content."""
    with warnings.catch_warnings():
        # What numpy only warns of was not written by us.
        warnings.simplefilter("error")
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError("its header is of another version")
        shape, by_column, dtype = np.lib.format.read_array_header_1_0(file)
    return shape, by_column, dtype


@contextlib.contextmanager
def _new_array(kind: str) -> Iterator[Path]:
    """Give a name aside for an entry's array; free it in the end, whatever came of it."""
    folder = cache_folder() / kind
    with machine_faults(kind):
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        with _aside(folder) as aside:
            yield aside


def _adopt(key: str, kind: str, aside: Path, told: dict[str, Any]) -> Path:
    """Give an array that is safe on disk its name, and its description beside it; return it."""
    array, description = _paths(key, kind)
    with _aside(array.parent) as description_aside:
        with description_aside.open("xb") as file:
            file.write(json.dumps(told).encode("ascii"))
            _sync(file)
        # Both are safe on disk by now, so nothing but the machine's end comes between these two.
        aside.replace(array)
        description_aside.replace(description)
    return array


def _write_array(
    path: Path, shape: tuple[int, ...], blocks: Iterable[npt.NDArray[np.uint8]], kind: str
) -> tuple[str, int]:
    digest = hashlib.sha256()
    written = 0
    with path.open("xb") as file:
        _write_header(file, shape)
        for block in blocks:
            content = np.ascontiguousarray(block).data
            digest.update(content)
            file.write(content)
            written += block.shape[0]
        if written != shape[0]:
            raise ValueError(f"{written} {kind} were made where {shape[0]} were promised")
        _sync(file)
        return digest.hexdigest(), file.tell()


def _write_row(path: Path, blocks: Iterable[npt.NDArray[np.uint8]]) -> tuple[str, int, tuple[int]]:
    """Write bytes of which nobody knows how many will come; return digest, size and shape."""
    digest = hashlib.sha256()
    with path.open("xb") as file:
        _write_header(file, (0,))
        before = file.tell()
        for block in blocks:
            content = np.ascontiguousarray(block).data
            digest.update(content)
            file.write(content)
        end = file.tell()
        file.seek(0)
        # numpy leaves room in a header for the first axis to grow.
        _write_header(file, (end - before,))
        assert file.tell() == before
        _sync(file)
        return digest.hexdigest(), end, (end - before,)


def _write_header(file: IO[bytes], shape: tuple[int, ...]) -> None:
    np.lib.format.write_array_header_1_0(
        file, {"descr": "|u1", "fortran_order": False, "shape": shape}
    )


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


@contextlib.contextmanager
def _aside(folder: Path) -> Iterator[Path]:
    # Not tempfile: it makes files private, and a cache may be shared.
    path = folder / f"{_ASIDE}{secrets.token_hex(8)}"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    """Remove what killed writers left: anything a day old, as writing takes less."""
    for path in folder.glob(f"{_ASIDE}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_S:
                path.unlink()


@contextlib.contextmanager
def machine_faults(kind: str) -> Iterator[None]:
    """Turn any OSError inside into a MachineError, which says that entries cannot be kept."""
    try:
        yield
    except OSError as error:
        what = "decoded pictures" if kind == _PICTURES else kind
        raise MachineError(
            f"{cache_folder()}: {what} cannot be kept there "
            f"({error.strerror or error}); free some space or set MANEGE_CACHE to another folder"
        ) from error
