"""Generators, discriminators, losses and constraints: tensors in, tensors out.

Owns the mathematics of the networks. Draws no random number, knows no cell, file or process.
"""

from manege.models.augment import AugmentParams, augment, draw_augmentation
from manege.models.chain import ManualMLP
from manege.models.constraints import (
    clip_,
    clippable,
    gradient_penalty,
    power_iteration_,
    squared_gradients,
)
from manege.models.critic import (
    FeatureDiscriminator,
    FrozenFeatures,
    build_feature_discriminator,
    fed_side,
)
from manege.models.layout import ALIGN, fill, layout_of, named_tensors, tensors_in
from manege.models.lite0 import Lite0
from manege.models.losses import Loss, loss_of, objective_loss
from manege.models.networks import (
    Discriminator,
    Generator,
    PictureShape,
    Spec,
    build_discriminator,
    build_generator,
    initialise,
    with_label,
)
from manege.models.own import OwnDiscriminator, seeded
from manege.models.pixels import generate, to_bytes, to_floats

__all__ = [
    "ALIGN",
    "AugmentParams",
    "Discriminator",
    "FeatureDiscriminator",
    "FrozenFeatures",
    "Generator",
    "Lite0",
    "Loss",
    "ManualMLP",
    "OwnDiscriminator",
    "PictureShape",
    "Spec",
    "augment",
    "build_discriminator",
    "build_feature_discriminator",
    "build_generator",
    "clip_",
    "clippable",
    "draw_augmentation",
    "fed_side",
    "fill",
    "generate",
    "gradient_penalty",
    "initialise",
    "layout_of",
    "loss_of",
    "named_tensors",
    "objective_loss",
    "power_iteration_",
    "seeded",
    "squared_gradients",
    "tensors_in",
    "to_bytes",
    "to_floats",
    "with_label",
]
