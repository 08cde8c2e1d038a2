"""CPU seconds of opening 50,000 decoded pictures of 32x32 in colour: verified, and once more.

    python benchmarks/opening.py

The pictures are noise, in a cache of their own that is removed afterwards.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time

import numpy as np

from manege.data import cache

CLASSES, EACH, SIDE = 10, 5_000, 32
TIMES = 7


def main() -> None:
    """Print both, each the median of several processes."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MANEGE_CACHE"] = folder
        rng = np.random.default_rng(0)
        shape = (EACH, SIDE, SIDE, 3)
        for label in range(CLASSES):
            pictures = rng.integers(0, 256, shape, dtype=np.uint8)
            cache.store(cache.key(label), shape, [""] * EACH, [pictures])
        measured = [_in_a_process() for _ in range(TIMES)]
    verified, again = (statistics.median(times) for times in zip(*measured, strict=True))
    print(f"{CLASSES * EACH:,} pictures, {CLASSES * EACH * SIDE**2 * 3 / 1e6:.0f} MB")
    print(f"verified {verified:.3f} CPU s, once more {again:.3f} CPU s")


def _in_a_process() -> tuple[float, float]:
    """What a process that has seen nothing takes, and takes again."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, f"{_open_all()} {_open_all()}".encode())
        os._exit(0)
    os.wait()
    first, second = os.read(read, 100).split()
    os.close(read)
    os.close(write)
    return float(first), float(second)


def _open_all() -> float:
    before = time.process_time()
    if any(cache.find(cache.key(label)) is None for label in range(CLASSES)):
        sys.exit("an entry is not there")
    return time.process_time() - before


if __name__ == "__main__":
    main()
