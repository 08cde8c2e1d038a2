"""Decoded pictures, and what is derived from them, on disk: an array and a description a key.

An entry is written aside, synced and renamed, its description last, so a reader sees a whole
entry or none, and two writers of one entry leave one of two equal results. Nothing here knows
where pictures come from; nothing is ever read back but by mapping. Every kind of entry has a
folder of its own; entries are bytes, and whoever keeps floats views them as such.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
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


@dataclass(frozen=True)
class Entry:
    """A complete entry: where its array lies and what the description says of it."""

    path: Path
    shape: tuple[int, ...]
    sha256: str
    """Of the array's content, without the file's header."""

    def open(self) -> npt.NDArray[np.uint8]:
        """The array, mapped copy-on-write: reading it touches only the pages that are used."""
        # An empty file part cannot be mapped.
        if 0 in self.shape:
            return np.empty(self.shape, dtype=np.uint8)
        array: npt.NDArray[np.uint8] = np.load(self.path, mmap_mode="c", allow_pickle=False)
        return array

    def verified(self) -> npt.NDArray[np.uint8] | None:
        """The array in memory; None when it is not what was stored."""
        content = np.array(self.open())
        return content if hashlib.sha256(content.data).hexdigest() == self.sha256 else None

    def mark_used(self) -> None:
        """Let :func:`trim` know; a cache that may only be read is left as it is."""
        with contextlib.suppress(OSError):
            os.utime(self.path)


def cache_folder() -> Path:
    """MANEGE_CACHE, else ``manege`` in the user's cache folder."""
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


def key(*parts: Any) -> str:
    """The entry's name: a hash of everything its content depends on."""
    spelled = json.dumps([_FORMAT, *parts], separators=(",", ":"))
    return hashlib.blake2b(spelled.encode("ascii"), digest_size=20).hexdigest()


def find(key: str, kind: str = _PICTURES) -> Entry | None:
    """The complete entry of that key, None when there is none or it is damaged."""
    array, description = _paths(key, kind)
    try:
        told = json.loads(description.read_bytes())
        if array.stat().st_size != told["file_bytes"]:
            return None
        entry = Entry(array, tuple(told["shape"]), str(told["sha256"]))
        whole = entry.open().shape == entry.shape
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return entry if whole else None


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
        shape: of the whole array; its first number is the rows that the blocks have together.
        names: of the rows, for people who read the description.
        blocks: bytes; floats are given viewed as bytes, and viewed back after opening.
        kind: the folder that such entries share.
    """
    array, description = _paths(key, kind)
    with machine_faults(kind), contextlib.ExitStack() as stack:
        array.parent.mkdir(parents=True, exist_ok=True)
        _sweep(array.parent)
        array_aside = stack.enter_context(_aside(array.parent))
        digest, file_bytes = _write_array(array_aside, shape, blocks, kind)
        told = {
            "shape": shape,
            "sha256": digest,
            "file_bytes": file_bytes,
            "count": len(names),
            "names": list(names),
        }
        description_aside = stack.enter_context(_aside(array.parent))
        with description_aside.open("xb") as file:
            file.write(json.dumps(told).encode("ascii"))
            _sync(file)
        # Both are safe on disk by now, so nothing but the machine's end comes between these two.
        array_aside.replace(array)
        description_aside.replace(description)
    return Entry(array, shape, digest)


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


def _write_array(
    path: Path, shape: tuple[int, ...], blocks: Iterable[npt.NDArray[np.uint8]], kind: str
) -> tuple[str, int]:
    digest = hashlib.sha256()
    written = 0
    with path.open("xb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            content = np.ascontiguousarray(block).data
            digest.update(content)
            file.write(content)
            written += block.shape[0]
        if written != shape[0]:
            raise ValueError(f"{written} {kind} were made where {shape[0]} were promised")
        _sync(file)
        return digest.hexdigest(), file.tell()


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
    """Remove what killed writers left; a living one does not take a day."""
    for path in folder.glob(f"{_ASIDE}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_S:
                path.unlink()


@contextlib.contextmanager
def machine_faults(kind: str) -> Iterator[None]:
    """Any OSError inside comes out as a MachineError: such entries cannot be kept."""
    try:
        yield
    except OSError as error:
        what = "decoded pictures" if kind == _PICTURES else kind
        raise MachineError(
            f"{cache_folder()}: {what} cannot be kept there "
            f"({error.strerror or error}); free some space or set MANEGE_CACHE to another folder"
        ) from error
