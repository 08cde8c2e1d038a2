"""Every random number's origin: a stream a (seed, cell, round, step, attempt, purpose).

Streams are numpy's Philox with a 128-bit key. torch's CPU generator keeps only 32 bits of its
seed, so streams would collide in long runs, and its draws depend on the device; numpy's do not.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence


def stream(
    seed: int,
    *,
    cell: str,
    purpose: str,
    round_: int = 0,
    step: int = 0,
    attempt: int = 0,
) -> np.random.Generator:
    """A fresh generator at the start of its stream.

    Args:
        seed: the run's seed.
        cell: the cell's key: a label's name or a grid coordinate, never a rank or an index, so
            that adding a class reseeds no other.
        purpose: what the numbers are for; two purposes never share numbers.
        round_: the round, from 1; 0 for what happens before the first.
        step: the step within the round.
        attempt: how often the watchdog has rolled this cell back; a restart does not count.
    """
    # Length-prefixed text, so that no two different tuples spell the same bytes.
    parts = (cell, purpose, *(str(n) for n in (seed, round_, step, attempt)))
    spelled = "".join(f"{len(part)}:{part}" for part in parts)
    digest = hashlib.blake2b(spelled.encode(), digest_size=16, person=b"manege-stream").digest()
    # numpy takes any source of keys; its stubs know of its own one alone.
    return np.random.Generator(np.random.Philox(_Key(digest)))  # type: ignore[arg-type]


class _Key(ISeedSequence):
    """Hands Philox its key: given `key=`, it asks the system for entropy first and drops it."""

    def __init__(self, digest: bytes) -> None:
        self._digest = digest

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        """The key."""
        return np.frombuffer(self._digest, np.dtype(dtype).newbyteorder("<"), n_words)
