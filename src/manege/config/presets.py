"""Named starting points; a preset is a partial configuration under all other sources."""

from __future__ import annotations

from typing import Any

DEFAULT_PRESET = "paper"
DEFAULT_CELLULAR_PRESET = "cellular-paper"

_TABLE_I: dict[str, Any] = {
    "method": "cellular",
    "rounds": 200,
    "networks": {"kind": "mlp", "activation": "tanh"},
    "training": {"loss": "bce"},
    "cellular": {},
}

PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "paper": (
        "W-CGAN of Lupo Pasini & Yin: Tables 1-2, Wasserstein loss, Adam 2e-4, 1,000 rounds",
        {"rounds": 1000, "training": {"loss": "wasserstein"}},
    ),
    "paper-dc": (
        "DC-CGAN of the same papers: Tables 1-2, binary cross-entropy, Adam 2e-4, 1,000 rounds",
        {"rounds": 1000, "training": {"loss": "bce"}},
    ),
    "cellular-paper": (
        "Lipizzaner on a 3x3 grid: Table I of the cellular paper, one loss, 200 rounds",
        _TABLE_I,
    ),
    "cellular-mustangs": (
        "the same, each generator drawing its loss anew each round",
        {
            **_TABLE_I,
            "cellular": {"objectives": ["minimax", "heuristic", "least-squares"]},
        },
    ),
}
