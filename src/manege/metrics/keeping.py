"""Find published weights on this machine, read them, and cache them in our own format.

The cached files are safetensors, verified when they are read.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path

import safetensors
import safetensors.numpy
import torch
from torch import Tensor

from manege.data import cache_folder
from manege.errors import DataError
from manege.files import blaming, make_folder, read_capped, write_atomic

CAP_BYTES = 1 << 28


def packaged(package: str, place: str) -> Path | None:
    """Return a file of an installed package, found without importing it, or None."""
    spec = importlib.util.find_spec(package.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / place
    return path if path.is_file() else None


def content_of(path: Path, cap: int, called: str, expected: str) -> bytes:
    """Return the bytes of a file of weights, or raise DataError that says what was expected."""
    try:
        return read_capped(path, cap)
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{called}: cannot be read ({reason}); {expected}") from None


def digest_of(tensors: Mapping[str, Tensor], names: Iterable[str]) -> str:
    """Return the digest of the named tensors' numbers, whatever file they came from."""
    digest = hashlib.sha256()
    for name in names:
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().numpy().data)
    return digest.hexdigest()


def keep(kind: str, tensors: Mapping[str, Tensor], source_sha256: str) -> None:
    """Write tensors into the cache; the file's name has the digests of source and content."""
    arrays = {name: tensor.contiguous().numpy() for name, tensor in tensors.items()}
    # One entry only: safetensors writes several in any order, and the digest would differ.
    told = {"source_sha256": source_sha256}
    blob = bytes(safetensors.numpy.save(arrays, metadata=told))
    own = hashlib.sha256(blob).hexdigest()
    folder = cache_folder() / kind
    with blaming(folder):
        make_folder(folder)
    write_atomic(folder / f"{source_sha256}-{own}.safetensors", blob)


def kept(kind: str, source_sha256: str) -> dict[str, Tensor] | None:
    """Return the tensors cached for a source, or None when there is no intact file."""
    for path in (cache_folder() / kind).glob(f"{source_sha256}-*.safetensors"):
        try:
            blob = read_capped(path, CAP_BYTES)
            if hashlib.sha256(blob).hexdigest() != path.stem.partition("-")[2]:
                raise ValueError("its SHA-256 differs")
            arrays = safetensors.numpy.load(blob)
            return {name: torch.from_numpy(array) for name, array in arrays.items()}
        except (OSError, ValueError, KeyError, safetensors.SafetensorError):
            with contextlib.suppress(OSError):  # Somebody else's cache, or no file at all.
                path.unlink()
    return None
