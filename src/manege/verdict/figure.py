"""The verdict as a picture: every arm's mean recall, and each class's gain, with intervals."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from PIL import Image

from manege.report.sections.verdict import drawings_of


def figure_of(tree: Mapping[str, Any]) -> bytes:
    """PNG; `tree` is that of the verdict's file."""
    blobs = [drawing.png() for drawing in drawings_of(tree)]
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
