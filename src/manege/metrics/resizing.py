"""Resizing as FID's protocols want it, by a matrix that is applied to rows and to columns.

Shape legend: S side before, T side after.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

_CUBIC = -0.5
"""Parameter of Keys's kernel, as in Pillow."""


@lru_cache(maxsize=8)
def bilinear_tf1(side: int, target: int) -> np.ndarray:
    """Return T×S as in TensorFlow 1: first pixel on first, no antialiasing, single precision."""
    place_T = np.arange(target, dtype=np.float32) * np.float32(side / target)
    low_T = np.minimum(place_T.astype(np.int64), side - 1)
    high_T = np.minimum(low_T + 1, side - 1)
    part_T = place_T - low_T.astype(np.float32)
    matrix_TS = np.zeros((target, side), dtype=np.float32)
    rows = np.arange(target)
    matrix_TS[rows, low_T] += 1 - part_T
    matrix_TS[rows, high_T] += part_T
    return matrix_TS


@lru_cache(maxsize=8)
def bicubic(side: int, target: int) -> np.ndarray:
    """Return T×S as Pillow's BICUBIC: centres on centres, and antialiased where it shrinks."""
    scale = side / target
    stretch = max(1.0, scale)
    centre_T1 = ((np.arange(target) + 0.5) * scale)[:, None]
    # Pillow cuts the kernel at whole pixels.
    first_T1 = np.maximum(0, np.floor(centre_T1 - 2 * stretch + 0.5))
    last_T1 = np.minimum(side, np.floor(centre_T1 + 2 * stretch + 0.5))
    pixel_S = np.arange(side)
    weight_TS = _keys((pixel_S + 0.5 - centre_T1) / stretch)
    weight_TS *= (pixel_S >= first_T1) & (pixel_S < last_T1)
    weight_TS /= weight_TS.sum(1, keepdims=True)
    return weight_TS.astype(np.float32)


def _keys(x: np.ndarray) -> np.ndarray:
    """Evaluate Keys's cubic convolution kernel (1981), of support 2."""
    x = np.abs(x)
    near = ((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1
    far = _CUBIC * (((x - 5) * x + 8) * x - 4)
    kernel: np.ndarray = np.where(x < 1, near, np.where(x < 2, far, 0.0))
    return kernel
