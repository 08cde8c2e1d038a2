"""Named starting points; a preset is a partial configuration under all other sources."""

from __future__ import annotations

from typing import Any

DEFAULT_PRESET = "paper"

PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "paper": (
        "W-CGAN of Lupo Pasini & Yin: Tables 1-2, Wasserstein loss, Adam 2e-4, 1,000 rounds",
        {"rounds": 1000, "training": {"loss": "wasserstein"}},
    ),
    "paper-dc": (
        "DC-CGAN of the same papers: Tables 1-2, binary cross-entropy, Adam 2e-4, 1,000 rounds",
        {"rounds": 1000, "training": {"loss": "bce"}},
    ),
}
