"""The manifest: which checkpoint files of a cell count, newest first, sealed by a digest.

Owns its format and the fallback from manifest.json to manifest.prev.json; opens no checkpoint.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from manege.errors import CheckpointError
from manege.files import machine_error, read_capped
from manege.runs.jsontext import canonical, parse_object, readable

CURRENT = "manifest.json"
PREVIOUS = "manifest.prev.json"

_FORMAT = 1
_CAP_BYTES = 1 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class CheckpointFile:
    """A checkpoint by its name in the cell's folder, as manifests and messages state it."""

    _told_as: ClassVar[str]
    _pattern: ClassVar[re.Pattern[str]]

    file: str
    bytes: int
    sha256: str
    round_: int
    step: int

    def to_json(self) -> dict[str, Any]:
        """Return a tree for JSON, which `from_json` reads."""
        return {
            self._told_as: self.file,
            "bytes": self.bytes,
            "sha256": self.sha256,
            "round": self.round_,
            "step": self.step,
        }

    @classmethod
    def may_be_called(cls, name: str) -> bool:
        """Return whether a file of this kind may have the name."""
        return cls._pattern.fullmatch(name) is not None

    @classmethod
    def from_json(cls, tree: Any) -> Self:
        """Return the checkpoint in a tree of `to_json`; raise ValueError for any other tree."""
        expected = {cls._told_as, "bytes", "sha256", "round", "step"}
        if not isinstance(tree, dict) or tree.keys() != expected:
            raise ValueError(f"{tree!r} has not the fields {', '.join(sorted(expected))}")
        return cls(
            # A path that leads out of the folder is no checkpoint of this cell.
            _text(tree[cls._told_as], cls._pattern),
            _count(tree["bytes"]),
            _text(tree["sha256"], _SHA256),
            _count(tree["round"]),
            _count(tree["step"]),
        )


class Commit(CheckpointFile):
    """A committed checkpoint, which counts where a manifest lists it."""

    _told_as = "file"
    _pattern = re.compile(r"[0-9]+-[0-9]+(\.[0-9]+)*\.safetensors")


class Pending(CheckpointFile):
    """A checkpoint written aside, which is no commit until adopted."""

    _told_as = "aside"
    _pattern = re.compile(r"\.[0-9A-Za-z][0-9A-Za-z._-]*\.tmp")


@dataclass(frozen=True)
class Manifest:
    """What a cell has committed; at most two generations, newest first."""

    cell: str
    identity: str
    generations: tuple[Commit, ...]


@dataclass(frozen=True)
class Unreadable:
    """A manifest that cannot be used: a sentence saying why, and whether there is a file at all."""

    why: str
    exists: bool


def encode(manifest: Manifest) -> bytes:
    """Return the content of a manifest's file, with its digest."""
    body = {
        "format": _FORMAT,
        "cell": manifest.cell,
        "identity": manifest.identity,
        "generations": [generation.to_json() for generation in manifest.generations],
    }
    return readable(body | {"digest": _digest(body)})


def read_manifest(path: Path) -> Manifest | Unreadable:
    """Return the manifest in the file, or why there is none to trust.

    Raises CheckpointError for a sound one of another format: it is not damaged, we are too old.
    """
    try:
        return _decode(read_capped(path, _CAP_BYTES), path)
    except FileNotFoundError:
        return Unreadable(f"{path} is missing", exists=False)
    except PermissionError as error:
        raise machine_error(path, error) from error
    except (OSError, ValueError) as error:
        return Unreadable(f"{path} is damaged ({error})", exists=True)


def read_manifests(folder: Path) -> Iterator[Manifest | Unreadable]:
    """Yield the current manifest, then the one before, each read only when asked for."""
    for name in (CURRENT, PREVIOUS):
        yield read_manifest(folder / name)


def check_owner(folder: Path, *, cell: str, identity: str, found: tuple[Any, Any]) -> None:
    """Raise CheckpointError if the (cell, identity) found in a file are another's."""
    found_cell, found_identity = found
    if found_identity != identity:
        raise CheckpointError(
            f"{folder} belongs to another run (identity {found_identity!r}, expected "
            f"{identity!r}); continue with the configuration it was made with, or use another "
            "run directory"
        )
    if found_cell != cell:
        raise CheckpointError(
            f"{folder} belongs to another cell ({found_cell!r}, expected {cell!r}); put the "
            "folder back where it came from"
        )


def _decode(data: bytes, path: Path) -> Manifest:
    body = parse_object(data)
    if body.pop("digest", None) != _digest(body):
        raise ValueError("its digest differs from its content")
    if body.get("format") != _FORMAT:
        raise CheckpointError(
            f"{path} has format {body.get('format')!r}, expected {_FORMAT}; continue this run with "
            "the version of manege that wrote it"
        )
    try:
        manifest = Manifest(
            cell=_text(body["cell"]),
            identity=_text(body["identity"]),
            generations=tuple(Commit.from_json(tree) for tree in body["generations"]),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"a field is missing or of the wrong kind: {error}") from error
    # Stricter than the digest, which does not see white space: one content has one spelling.
    if encode(manifest) != data:
        raise ValueError("it is not spelt as manege spells it")
    return manifest


def _text(value: Any, pattern: re.Pattern[str] | None = None) -> str:
    if not isinstance(value, str) or (pattern and not pattern.fullmatch(value)):
        raise ValueError(f"{value!r} is not what it should be")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(canonical(body)).hexdigest()
