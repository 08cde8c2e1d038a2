"""Generators, discriminators, losses and constraints: tensors in, tensors out.

Owns the mathematics of the networks. Draws no random number, knows no cell, file or process.
"""

from manege.models.constraints import clip_, clippable
from manege.models.layout import ALIGN, fill, layout_of, named_tensors, tensors_in
from manege.models.losses import discriminator_loss, generator_loss
from manege.models.networks import (
    Discriminator,
    Generator,
    PictureShape,
    Spec,
    build_discriminator,
    build_generator,
    initialise,
)
from manege.models.pixels import generate, to_bytes, to_floats

__all__ = [
    "ALIGN",
    "Discriminator",
    "Generator",
    "PictureShape",
    "Spec",
    "build_discriminator",
    "build_generator",
    "clip_",
    "clippable",
    "discriminator_loss",
    "fill",
    "generate",
    "generator_loss",
    "initialise",
    "layout_of",
    "named_tensors",
    "tensors_in",
    "to_bytes",
    "to_floats",
]
