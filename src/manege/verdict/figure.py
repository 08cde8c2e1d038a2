"""The verdict as a picture: every arm's mean recall, and each class's gain, with intervals."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from PIL import Image

from manege.report.charts import Whisker, whiskers

_WIDTH = 720.0
_PLAIN, _SYNTHETIC, _HELPED = "c6", "c0", "c2"


def figure_of(tree: Mapping[str, Any]) -> bytes:
    """PNG; `tree` is that of the verdict's file."""
    seeds = tree["protocol"]["seeds"]
    arms = [
        _whisker(f"{arm}  {one['title']}", one["mean_recall"], _colour(arm))
        for arm, one in tree["arms"].items()
    ]
    charts = [whiskers("Mean recall, %", f"{seeds} seeds; bars: 95 %", arms, width=_WIDTH)]
    comparison = tree["comparison"]
    if comparison is not None:
        gains = [_whisker("mean", comparison["mean_recall"], _SYNTHETIC)]
        gains += [
            _whisker(label, one, _HELPED if label in comparison["helped"] else _PLAIN)
            for label, one in comparison["recall"].items()
        ]
        note = "mean: over the best arm without synthetic pictures; a class: over the best at it"
        title = f"Gain of arm {comparison['arm']}, points"
        charts.append(whiskers(title, note, gains, width=_WIDTH))
    return _stacked([chart.png() for chart in charts])


def _whisker(label: str, estimate: Mapping[str, float], colour: str) -> Whisker:
    value, low, high = (100 * estimate[key] for key in ("value", "low", "high"))
    return Whisker(label, value, low, high, colour)


def _colour(arm: str) -> str:
    return _SYNTHETIC if arm in "def" else _PLAIN


def _stacked(blobs: list[bytes]) -> bytes:
    images = [Image.open(io.BytesIO(blob)) for blob in blobs]
    height = sum(image.height for image in images)
    sheet = Image.new("RGB", (max(image.width for image in images), height), "white")
    top = 0
    for image in images:
        sheet.paste(image, (0, top))
        top += image.height
    buffer = io.BytesIO()
    sheet.save(buffer, format="PNG")
    return buffer.getvalue()
