"""Compute slow features part by part; the cache keeps each part as soon as it is done.

A stopped computation goes on where it was, and pictures that were seen before cost nothing. The key
depends on the pictures, not on who asks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import torch

from manege import device, machine
from manege.data import cache
from manege.metrics.inception import Inception

KIND = "inception-features"
MOST_BYTES = 4 << 30
"""Bytes that features may take in the cache, 8 kB a picture; the longest unused go first."""

REVISION = 1
"""Change it whenever the network's or the resizes' arithmetic changes: it is part of the key."""

PART = 256
BATCH = 16


def inception_features(
    network: Inception,
    name: str,
    pictures_NSSC: np.ndarray,
    progress: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """Return Inception's features, N×2048 float32, computed with all cores.

    Args:
        network: what computes them.
        name: the network's, with its digest.
        pictures_NSSC: bytes.
        progress: called now and then with (done, in all).
    """
    count = len(pictures_NSSC)
    features_ND = np.empty((count, network.dimensions), dtype=np.float32)
    computed = False
    for start in range(0, count, PART):
        part = np.array(pictures_NSSC[start : start + PART], order="C")
        key = cache.key(KIND, REVISION, name, part.shape, hashlib.sha256(part.data).hexdigest())
        entry = cache.find(key, kind=KIND)
        if entry is None:
            rows = _computed(network, part, start, count, progress).view(np.uint8)
            entry = cache.store(key, rows.shape, (), [rows], kind=KIND)
            computed = True
        entry.mark_used()
        features_ND[start : start + PART] = entry.open().view(np.float32)
        if progress is not None:
            progress(start + len(part), count)
    if computed:
        cache.trim(KIND, MOST_BYTES)
    return features_ND


def _computed(
    network: Inception,
    part: np.ndarray,
    before: int,
    total: int,
    progress: Callable[[int, int], None] | None,
) -> np.ndarray:
    rows = np.empty((len(part), network.dimensions), dtype=np.float32)
    device.keep_memory()
    with device.threads(machine.cores()), torch.inference_mode():
        for start in range(0, len(part), BATCH):
            batch = torch.from_numpy(part[start : start + BATCH])
            rows[start : start + BATCH] = network.features(batch).numpy()
            if progress is not None:
                progress(before + start + len(batch), total)
    return rows
