"""Named starting points; a preset is a partial configuration under all other sources."""

from __future__ import annotations

from typing import Any

DEFAULT_PRESET = "modern"
DEFAULT_CELLULAR_PRESET = "cellular-paper"

ON_PIXELS = {"modern": "modern-pixels"}
"""A preset whose critics see features, and the one for where they cannot, or should not."""

_TABLE_I: dict[str, Any] = {
    "method": "cellular",
    "rounds": 200,
    "networks": {"kind": "mlp", "activation": "tanh"},
    "training": {"loss": "bce"},
    # A mutation of the mixture a round and none after the last: docs/fidelity.md says why.
    "cellular": {"mixture": {"steps": 1, "final_steps": 0}},
}

PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "modern": (
        "what won by measurement: discriminators on pretrained features, hinge loss, spectral "
        "norms, averaged weights, the best by score",
        {
            "rounds": 1000,
            "networks": {"kind": "pyramid"},
            "critic": {"kind": "features", "colour_head": 20.0},
            "training": {
                "loss": "hinge",
                "constraint": {"kind": "spectral"},
                "optimiser": {
                    "generator_lr": 2e-3,
                    "discriminator_lr": 4e-3,
                    "beta1": 0.0,
                    "beta2": 0.99,
                },
                "batch": 32,
                "ema": 0.995,
                "flip": None,
                "augment": {"kind": "few"},
                "attempts": 3,
            },
            "score": {"metric": "kid"},
        },
    ),
    "modern-pixels": (
        "what won among discriminators on pixels: relativistic loss, R1 + R2, averaged weights, "
        "the best by score; where there are no weights, and for points",
        {
            "rounds": 1000,
            "networks": {
                "kind": "dcgan",
                "generator_width": 32,
                "batchnorm_eps": 1e-5,
                "discriminator_width": 32,
                "discriminator_batchnorm": False,
                "dropout": 0.0,
            },
            "training": {
                "loss": "relativistic",
                "constraint": {"kind": "r1r2", "gamma": 0.1},
                "optimiser": {
                    "generator_lr": 8e-4,
                    "discriminator_lr": 1.6e-3,
                    "beta1": 0.0,
                    "beta2": 0.99,
                },
                "batch": 32,
                "ema": 0.999,
                "flip": None,
                "attempts": 3,
            },
            "score": {"metric": "kid"},
        },
    ),
    "paper": (
        "W-CGAN of Lupo Pasini & Yin: Tables 1-2, Wasserstein loss, Adam 2e-4, 1,000 rounds",
        {"rounds": 1000, "training": {"loss": "wasserstein"}},
    ),
    "paper-dc": (
        "DC-CGAN of the same papers: Tables 1-2, binary cross-entropy, Adam 2e-4, 1,000 rounds",
        {"rounds": 1000, "training": {"loss": "bce"}},
    ),
    "cellular-paper": (
        "Lipizzaner on a 3x3 grid: Table I of the cellular paper, one loss, no safety added",
        _TABLE_I,
    ),
    "cellular-mustangs": (
        "the same, each generator drawing its loss anew each round",
        {
            **_TABLE_I,
            "cellular": {
                **_TABLE_I["cellular"],
                "objectives": ["minimax", "heuristic", "least-squares"],
            },
        },
    ),
    "cellular-reference": (
        "after the public Lipizzaner, without its defects: LeakyReLU, learning rates that change "
        "with each batch",
        {
            **_TABLE_I,
            "networks": {"kind": "mlp", "activation": "leaky_relu"},
            "cellular": {**_TABLE_I["cellular"], "mutation": {"kind": "batch"}},
        },
    ),
    "cellular-modern": (
        "what won by measurement on a grid: LeakyReLU, R1, faster Adam, offspring always replace",
        {
            "method": "cellular",
            "rounds": 100,
            "networks": {"kind": "mlp", "activation": "leaky_relu"},
            "training": {
                "loss": "bce",
                "constraint": {"kind": "r1", "gamma": 0.5},
                "optimiser": {
                    "generator_lr": 2e-3,
                    "discriminator_lr": 2e-3,
                    "beta1": 0.0,
                    "beta2": 0.99,
                },
                "batch": 64,
                "batches_per_round": 500,
                "attempts": 3,
            },
            "cellular": {"skip": 0, "replacement": "always", "fitness_samples": 256},
        },
    ),
}
