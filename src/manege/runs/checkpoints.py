"""A cell's commits on disk: two generations, so that a crash leaves either the old or the new one.

Owns the order of writes, renames and removals, and the fallback of reading. One process may write
a checkpoint aside and another adopt it. A file that a manifest lists is never overwritten; a file
is believed only when its SHA-256 matches the manifest and it names the same cell, run and step.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from manege.errors import CheckpointError, MachineError
from manege.failpoints import failpoint
from manege.files import (
    blaming,
    machine_error,
    read_capped,
    remove_asides,
    sync_folder,
    write_aside,
)
from manege.runs.manifest import (
    CURRENT,
    PREVIOUS,
    Commit,
    Manifest,
    Pending,
    Unreadable,
    check_owner,
    encode,
    read_manifest,
    read_manifests,
)
from manege.runs.tensors import Array, pack, unpack

_SUFFIX = ".safetensors"
_READ_ATTEMPTS = 10
_READ_PAUSE_S = 0.01


COMMIT_POINTS = (
    "commit:before",
    "commit:written",
    "commit:renamed",
    "commit:manifest-written",
    "commit:manifest-aside",
    "commit:done",
    "commit:cleaned",
)
"""Failpoints in a commit, in the order it passes them: a death at any of them must do no harm."""


@dataclass(frozen=True)
class Checkpoint:
    """A verified commit, and sentences about whatever was damaged on the way to it."""

    tensors: dict[str, Array]
    meta: dict[str, Any]
    round_: int
    step: int
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Owner:
    """The owner of commits: the cell's key and the identity of its run."""

    cell: str
    identity: str


def write_pending(
    folder: Path,
    owner: Owner,
    *,
    round_: int,
    step: int,
    tensors: Mapping[str, Array],
    meta: Mapping[str, Any],
    mark: str,
) -> Pending:
    """Write a checkpoint to disk under a name that nobody reads; `adopt` makes it a commit.

    The mark, such as "3.17", is in that name: writers with different marks never meet.
    """
    name = f"{round_}-{step}{_SUFFIX}"
    aside = f".{name}.{mark}.tmp"
    if not Pending.may_be_called(aside):
        raise ValueError(f"{aside!r} cannot be a name aside; a mark is letters, digits and dots")
    blob = pack(tensors, _description(owner, round_, step, meta))
    failpoint("commit:before")
    write_aside(folder / aside, blob, blame=folder / name)
    failpoint("commit:written")
    return Pending(aside, len(blob), hashlib.sha256(blob).hexdigest(), round_, step)


def adopt(
    folder: Path, owner: Owner, pending: Pending, *, incarnation: int, trusted: Commit | None
) -> Commit:
    """Make a checkpoint that was written aside the newest generation: name it and list it.

    It is not hashed, as its writer did that. Raises CheckpointError if it is missing or of another
    size. After any refusal the old manifest counts and nothing is left aside.
    """
    aside = folder / pending.file
    try:
        manifest = _next_manifest(folder, owner, pending, incarnation=incarnation, trusted=trusted)
        _put(aside, folder, manifest, mark=own_mark(incarnation))
    except (OSError, CheckpointError, MachineError):
        _discard(aside)
        raise
    with blaming(folder):
        sync_folder(folder)
        failpoint("commit:done")
        _sweep(folder, manifest)
    failpoint("commit:cleaned")
    return manifest.generations[0]


def load_from(folder: Path, owner: Owner) -> tuple[Checkpoint, Commit] | None:
    """Return the newest commit that verifies; None if there never was one.

    Damage is a warning while an older generation is sound, else a CheckpointError is raised.
    """
    for _ in range(_READ_ATTEMPTS):
        before = _stamp(folder)
        try:
            found = _load_once(folder, owner)
        except CheckpointError:
            if _settled(folder, before):
                raise
        else:
            if found is None or not found[0].warnings or _settled(folder, before):
                return found
        time.sleep(_READ_PAUSE_S)
    return _load_once(folder, owner)


def listed_in(folder: Path) -> Manifest | None:
    """Return the manifest that counts, without opening its files; None if nothing was committed."""
    problems = []
    for manifest in read_manifests(folder):
        if isinstance(manifest, Manifest):
            return manifest
        problems.append(manifest)
    if not any(problem.exists for problem in problems):
        return None
    raise _hopeless(folder, [problem.why for problem in problems])


def _load_once(folder: Path, owner: Owner) -> tuple[Checkpoint, Commit] | None:
    problems: list[str] = []
    committed = False
    for manifest in read_manifests(folder):
        if isinstance(manifest, Unreadable):
            problems.append(manifest.why)
            committed |= manifest.exists
            continue
        committed = True
        check_owner(
            folder,
            cell=owner.cell,
            identity=owner.identity,
            found=(manifest.cell, manifest.identity),
        )
        for generation in manifest.generations:
            try:
                tensors, meta = _read(folder, owner, generation)
            except ValueError as error:
                problems.append(str(error))
                continue
            # The manifest before lists one of the same files: its damage is told once.
            told = dict.fromkeys(problems)
            warnings = tuple(f"{problem}; {_instead(generation)}" for problem in told)
            found = Checkpoint(tensors, meta, generation.round_, generation.step, warnings)
            return found, generation
    if committed:
        raise _hopeless(folder, problems)
    return None


def _read(
    folder: Path, owner: Owner, generation: Commit
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the tensors and meta of a generation; raise ValueError if it is damaged."""
    path = folder / generation.file
    blob = _verified_bytes(path, generation)
    try:
        tensors, said = unpack(blob)
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error})") from error
    check_owner(
        path,
        cell=owner.cell,
        identity=owner.identity,
        found=(said.get("cell"), said.get("identity")),
    )
    place = (said.get("round"), said.get("step"))
    if place != (generation.round_, generation.step) or not isinstance(said.get("meta"), dict):
        raise ValueError(f"{path} is damaged (it says round, step {place})")
    return tensors, said["meta"]


def _verified_bytes(path: Path, generation: Commit) -> bytes:
    """Return the file's bytes after verifying their hash; raise ValueError if they are damaged."""
    try:
        blob = read_capped(path, generation.bytes)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing") from None
    except PermissionError as error:
        raise machine_error(path, error) from error
    except OSError as error:
        raise ValueError(f"{path} is damaged ({error})") from error
    if len(blob) != generation.bytes:
        raise ValueError(
            f"{path} is damaged (it has {len(blob)} bytes, expected {generation.bytes})"
        )
    if hashlib.sha256(blob).hexdigest() != generation.sha256:
        raise ValueError(f"{path} is damaged (its SHA-256 differs from the manifest's)")
    return blob


def _usable(folder: Path, owner: Owner) -> list[Commit]:
    """Return all generations listed; raise CheckpointError if another's or no list is sound."""
    found = list(read_manifests(folder))
    sound = [manifest for manifest in found if isinstance(manifest, Manifest)]
    broken = [manifest for manifest in found if isinstance(manifest, Unreadable)]
    if not sound and any(manifest.exists for manifest in broken):
        raise _hopeless(folder, [manifest.why for manifest in broken])
    for manifest in sound:
        check_owner(
            folder,
            cell=owner.cell,
            identity=owner.identity,
            found=(manifest.cell, manifest.identity),
        )
    return list(dict.fromkeys(g for manifest in sound for g in manifest.generations))


def _first_sound(folder: Path, old: list[Commit], trusted: Commit | None) -> tuple[Commit, ...]:
    """Return the newest sound generation, or none: a damaged one must not displace a good one."""
    for generation in old:
        if generation == trusted:
            return (generation,)
        try:
            _verified_bytes(folder / generation.file, generation)
        except ValueError:
            continue
        return (generation,)
    return ()


def _unlisted_name(old: list[Commit], round_: int, step: int, incarnation: int) -> str:
    listed = {generation.file for generation in old}
    return next(name for name in _names(round_, step, incarnation) if name not in listed)


def _names(round_: int, step: int, incarnation: int) -> Iterator[str]:
    yield f"{round_}-{step}{_SUFFIX}"
    yield f"{round_}-{step}.{incarnation}{_SUFFIX}"
    for number in count(2):
        yield f"{round_}-{step}.{incarnation}.{number}{_SUFFIX}"


def own_mark(incarnation: int) -> str:
    """Return a mark that no other process has, nor another start of the run."""
    return f"{incarnation}.{os.getpid()}"


def _next_manifest(
    folder: Path, owner: Owner, pending: Pending, *, incarnation: int, trusted: Commit | None
) -> Manifest:
    old = _usable(folder, owner)
    _check_aside(folder / pending.file, pending.bytes)
    name = _unlisted_name(old, pending.round_, pending.step, incarnation)
    new = Commit(name, pending.bytes, pending.sha256, pending.round_, pending.step)
    return Manifest(owner.cell, owner.identity, (new, *_first_sound(folder, old, trusted)))


def _check_aside(aside: Path, size: int) -> None:
    try:
        found = aside.lstat()
    except FileNotFoundError:
        raise _unadoptable(aside, "is missing") from None
    except OSError as error:
        raise machine_error(aside, error) from error
    if not stat.S_ISREG(found.st_mode):
        raise _unadoptable(aside, "is not a regular file")
    if found.st_size != size:
        raise _unadoptable(aside, f"has {found.st_size} bytes, expected {size}")


def _put(aside: Path, folder: Path, manifest: Manifest, *, mark: str) -> None:
    """Give the newest generation and the manifest their names; on failure neither has its name."""
    path = folder / manifest.generations[0].file
    try:
        with blaming(path):
            aside.replace(path)
        failpoint("commit:renamed")
        _install(folder, folder / f".{CURRENT}.{mark}.tmp", manifest)
    except (OSError, MachineError):
        # The old manifest still counts; the space may be what the next attempt needs.
        _discard(path)
        raise


def _install(folder: Path, aside: Path, manifest: Manifest) -> None:
    write_aside(aside, encode(manifest), blame=folder)
    failpoint("commit:manifest-written")
    current = folder / CURRENT
    try:
        with blaming(current):
            # A damaged one must not take the place of a sound one before it.
            if isinstance(read_manifest(current), Manifest):
                current.replace(folder / PREVIOUS)
            failpoint("commit:manifest-aside")
            aside.replace(current)
    except MachineError:
        _discard(aside)
        raise


def _discard(path: Path) -> None:
    # A disk that became read-only refuses this too; its first refusal is the one to tell.
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _sweep(folder: Path, manifest: Manifest) -> None:
    listed = {generation.file for generation in manifest.generations}
    for path in folder.glob(f"*{_SUFFIX}"):
        if path.name not in listed:
            path.unlink(missing_ok=True)
    remove_asides(folder)


def _description(owner: Owner, round_: int, step: int, meta: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "cell": owner.cell,
        "identity": owner.identity,
        "round": round_,
        "step": step,
        "meta": dict(meta),
    }


def _instead(generation: Commit) -> str:
    return f"used {generation.file} of round {generation.round_}, step {generation.step} instead"


def _hopeless(folder: Path, problems: list[str]) -> CheckpointError:
    return CheckpointError(
        f"{folder} holds no checkpoint that can be trusted: {', '.join(dict.fromkeys(problems))}; "
        "restore it from a copy, or delete the folder to train this cell anew"
    )


def _unadoptable(aside: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{aside} {why}, so it cannot become a checkpoint; the one before it stands: resume the "
        "run to go on from there"
    )


def _settled(folder: Path, before: tuple[int, int] | None) -> bool:
    """Return whether no commit by another process can be what looked like damage.

    It could if the manifest has changed since, or is away for the moment between two renames.
    """
    return before is not None and before == _stamp(folder)


def _stamp(folder: Path) -> tuple[int, int] | None:
    try:
        found = (folder / CURRENT).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
