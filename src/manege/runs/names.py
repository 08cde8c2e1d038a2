"""Names folders: safe on every file system, one folder for each cell, one number for each run."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from pathlib import Path

_PLAIN = re.compile(r"[a-z0-9_][a-z0-9._-]{0,63}")
_HASHED = re.compile(r".*-[0-9a-f]{8}")
_NUMBERED = re.compile(r"\.?([0-9]{4,9})(-.*)?")


def cell_folder(key: str) -> str:
    """Return the cell's folder name: a plain key itself, else a slug with a hash of the key.

    Capital letters count as not plain, so that a disk that ignores case cannot mix two cells; so
    does a key that looks hashed, or it could name another cell's folder.
    """
    if _PLAIN.fullmatch(key) and not _HASHED.fullmatch(key):
        return key
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{slug(key, otherwise='cell')}-{digest}"


def slug(text: str, *, otherwise: str) -> str:
    """Return the text as lower-case ASCII letters, digits and single hyphens: 1 to 48 of them."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain)[:48].strip("-") or otherwise


def make_numbered(parent: Path, name: str) -> Path:
    """Make a new folder ``parent/NNNN-name`` whose number no other run there has.

    The hidden folder ``.NNNN`` claims a number: two processes with different names would both
    succeed in making 0007-a and 0007-b. It becomes the run by a rename.
    """
    number = max(_numbers(parent), default=0) + 1
    while True:
        claim = parent / f".{number:04d}"
        try:
            claim.mkdir()
        except FileExistsError:
            number += 1
            continue
        # While we hold the claim nobody else can finish one of this number; before, they could.
        if any(parent.glob(f"{number:04d}-*")):
            claim.rmdir()
            number += 1
            continue
        return claim.rename(parent / f"{number:04d}-{slug(name, otherwise='run')}")


def _numbers(parent: Path) -> list[int]:
    found = (_NUMBERED.fullmatch(entry.name) for entry in parent.iterdir())
    return [int(match[1]) for match in found if match]
