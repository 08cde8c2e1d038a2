"""Packs arrays and their description into one safetensors blob, the same bytes for equal content.

Refuses what cannot come back bit for bit. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

Array = np.ndarray[Any, np.dtype[Any]]

_DTYPES = frozenset(
    f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)
) | frozenset({"bool", "float16", "float32", "float64"})


def pack(tensors: Mapping[str, Array], description: Mapping[str, Any]) -> bytes:
    """Return the blob; raise TypeError or ValueError for what it cannot hold.

    The description may hold NaN and infinities: a loss may be one, and only `unpack` reads it.
    """
    text = json.dumps(description, sort_keys=True, separators=(",", ":"))
    ready = {name: _ready(name, tensors[name]) for name in sorted(tensors)}
    return bytes(save(ready, {"meta": text}))


def unpack(blob: bytes) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the writable arrays and the description; raise ValueError if the blob is not ours."""
    try:
        found = load(blob)
        # safetensors gives metadata from files only; `load` has checked this header's bounds.
        header = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
        description = json.loads(header["__metadata__"]["meta"])
    except (SafetensorError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not a checkpoint of manege: {error}") from error
    if not isinstance(description, dict):
        raise ValueError("not a checkpoint of manege: its description is not an object")
    return {name: np.require(found[name], requirements="W") for name in sorted(found)}, description


def _ready(name: str, array: Array) -> Array:
    array = np.asarray(array)
    if name == "__metadata__":
        raise ValueError("no tensor can be named __metadata__: safetensors keeps that name")
    if array.dtype.name not in _DTYPES:
        raise TypeError(f"tensor {name!r} is {array.dtype}, expected one of {sorted(_DTYPES)}")
    # safetensors copies the raw memory: strides would be lost without a word.
    return np.asarray(array, order="C")
