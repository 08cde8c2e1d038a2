"""Published weights: found on this machine, read, and kept in the cache in our own form.

What is kept is safetensors, verified when it is read.
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
    """A file of a package, found without importing it; None where there is none."""
    spec = importlib.util.find_spec(package.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / place
    return path if path.is_file() else None


def content_of(path: Path, cap: int, called: str, expected: str) -> bytes:
    """What a file of weights holds; DataError, with what it is called, when it cannot be read."""
    try:
        return read_capped(path, cap)
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{called}: cannot be read ({reason}); {expected}") from None


def digest_of(tensors: Mapping[str, Tensor], names: Iterable[str]) -> str:
    """The digest of the named tensors' numbers, whatever file they came from."""
    digest = hashlib.sha256()
    for name in names:
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().numpy().data)
    return digest.hexdigest()


def keep(kind: str, tensors: Mapping[str, Tensor], source_sha256: str) -> None:
    """Write tensors into the cache; the name carries the source's digest and the content's."""
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
    """What was kept of a source, None when nothing sound was."""
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
