"""A stranger's loss and pair: GroupNorm, BatchNorm, dropout, noise, tied weights, odd buffers."""

import os
import time

import torch
from torch import nn
from torch.nn.functional import softplus
from torch.nn.utils.parametrizations import spectral_norm

import manege


def _judge(real, fake):
    # Draws of its own: torch's generator is seeded for every step.
    return softplus(-real).mean() + softplus(fake - 0.01 * torch.rand(()).item()).mean()


smoothed = manege.Loss(_judge, lambda fake: softplus(-fake).mean())
paired = manege.Loss(
    lambda real, fake: softplus(fake - real).mean(),
    lambda real, fake: softplus(real - fake).mean(),
    needs_real=True,
)
steps = 0


def _breaks(real, fake):
    global steps
    steps += 1
    if steps > int(os.environ.get("BREAKS_AT", "1000000")):
        raise ValueError("enough of it")
    while steps > int(os.environ.get("HANGS_AT", "1000000")):
        time.sleep(0.1)
    return _judge(real, fake)


breaking = manege.Loss(_breaks, lambda fake: softplus(-fake).mean())


class Drawer(nn.Module):
    def __init__(self, latent, width, shape):
        super().__init__()
        self.width, self.start = width, shape.size // 4
        self.first = nn.Linear(latent, width * self.start**2)
        self.mix = nn.Conv2d(width, width, 1)
        self.again = nn.Conv2d(width, width, 1)
        self.again.weight = self.mix.weight
        self.body = nn.Sequential(
            nn.GroupNorm(2, width),
            nn.ReLU(),
            nn.ConvTranspose2d(width, width, 4, 2, 1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.ConvTranspose2d(width, shape.channels, 4, 2, 1),
            nn.Tanh(),
        )
        self.register_buffer("frequencies", torch.randn(width, 1, 1))
        self.register_buffer("order", torch.arange(width).flip(0))
        self.register_buffer("mask", torch.ones(width, dtype=torch.bool))

    def forward(self, z):
        x = self.first(z).view(-1, self.width, self.start, self.start)
        x = self.again(self.mix(x)) * self.frequencies
        x = x[:, self.order] * self.mask[:, None, None]
        return self.body(x + 0.01 * torch.randn_like(x))


class Pair:
    def __init__(self, width: int = 4, latent: int = 8) -> None:
        self.width, self.latent = width, latent

    def generator(self, shape):
        return Drawer(self.latent, self.width, shape)

    def discriminator(self, shape):
        return nn.Sequential(
            spectral_norm(nn.Conv2d(shape.channels, self.width, 3, 2, 1)),
            nn.LeakyReLU(0.2),
            nn.Dropout(0.1),
            nn.Flatten(),
            nn.Linear(self.width * (shape.size // 2) ** 2, 1),
            nn.Flatten(0),
        )
