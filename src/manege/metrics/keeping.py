"""Published weights in our own form, kept in the cache: safetensors, verified when read."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping

import safetensors
import safetensors.numpy
import torch
from torch import Tensor

from manege.data import cache_folder
from manege.files import blaming, make_folder, read_capped, write_atomic

CAP_BYTES = 1 << 28


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
