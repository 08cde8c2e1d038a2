"""The order in which a cell sees its pictures: one seeded permutation a round.

Positions only: nothing here knows what lies at them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from manege.config import stream

Positions = npt.NDArray[np.int64]


def round_order(
    count: int, *, seed: int, cell: str, round_: int, attempt: int = 0
) -> npt.NDArray[np.int64]:
    """Return the permutation of ``count`` positions that this cell, round and attempt follow."""
    source = stream(seed, cell=cell, purpose="batches", round_=round_, attempt=attempt)
    return source.permutation(count).astype(np.int64, copy=False)


def batch_at(order: Positions, index: int, batch: int) -> Positions:
    """Return the ``index``-th batch, of ``min(batch, n)`` positions; begin anew past the end.

    Every batch has the same length, so BatchNorm never meets a last batch of one.
    """
    count = len(order)
    width = min(batch, count)
    return order[np.arange(index * width, (index + 1) * width) % count]


def batches_in(count: int, batch: int) -> int:
    """Return how many batches make one pass, in which every position comes at least once."""
    return -(-count // min(batch, count))
