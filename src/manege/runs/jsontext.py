"""Reads and writes this package's JSON; refuses NaN and infinities in what others may read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def canonical(value: Any) -> bytes:
    """Return the one spelling of a value that digests are made of: sorted keys, no space, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def readable(value: Any) -> bytes:
    """Return an indented file for people, ending in a newline; non-finite numbers become null."""
    return (json.dumps(finite(value), indent=2, allow_nan=False) + "\n").encode()


def finite(value: Any) -> Any:
    """Return the value with numpy numbers made Python's and non-finite floats made None."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def parse_object(text: bytes) -> dict[str, Any]:
    """Return the JSON object in the text; raise ValueError for anything else, however broken."""
    try:
        value = json.loads(text.decode("utf-8"), parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"a JSON {type(value).__name__} instead of an object")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
