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
    """The permutation of ``count`` positions that belongs to this cell, round and attempt."""
    source = stream(seed, cell=cell, purpose="batches", round_=round_, attempt=attempt)
    return source.permutation(count).astype(np.int64, copy=False)


def batch_at(order: Positions, index: int, batch: int) -> Positions:
    """The ``index``-th batch of ``min(batch, n)`` positions; past the end the order starts again.

    Every batch has the same length, so BatchNorm never meets a last batch of one.
    """
    count = len(order)
    width = min(batch, count)
    return order[np.arange(index * width, (index + 1) * width) % count]


def batches_in(count: int, batch: int) -> int:
    """Batches that make one pass: every position is in at least one of them."""
    return -(-count // min(batch, count))
