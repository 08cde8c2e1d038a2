"""The same pair and step as public code usually writes them: the yardstick for ours."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from manege.cell import Noise, Pair
from manege.config import ClipConstraint, Training
from manege.models import clip_, clippable, discriminator_loss, generator_loss
from manege.models.networks import DcganDiscriminator, DcganGenerator


class PlainGenerator(nn.Module):
    """Table 1 with upsampling spelled out, channels first; shares the state dict of ours."""

    def __init__(self, ours: DcganGenerator) -> None:
        super().__init__()
        self.start = ours.start
        self.linear = _copy_of(ours.linear)
        self.norm = _copy_of(ours.norm)
        self.blocks = nn.ModuleList()
        for block in ours.blocks:
            conv = nn.Conv2d(block.conv.weight.shape[1], block.conv.weight.shape[0], 3, padding=1)
            _load(conv, block.conv.state_dict())
            self.blocks.append(nn.ModuleDict({"conv": conv, "norm": _copy_of(block.norm)}))
        self.out = _copy_of(ours.out)

    def forward(self, z: Tensor) -> Tensor:
        x = F.leaky_relu(self.linear(z), 0.2).view(-1, 128, self.start, self.start)
        x = self.norm(x)
        for block in self.blocks:
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = F.leaky_relu(block["norm"](block["conv"](x)), 0.2)
        return torch.tanh(self.out(x))


class PlainDiscriminator(nn.Module):
    """Table 2, channels first."""

    def __init__(self, ours: DcganDiscriminator) -> None:
        super().__init__()
        self.widths = ours.widths
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {"conv": _copy_of(b.conv)} | ({"norm": _copy_of(b.norm)} if b.norm else {})
            )
            for b in ours.blocks
        )
        self.linear = _copy_of(ours.linear)

    def forward(self, x: Tensor, factors: Tensor | None = None) -> Tensor:
        masks = factors.split(self.widths, dim=1) if factors is not None else None
        for index, block in enumerate(self.blocks):
            x = F.leaky_relu(block["conv"](x), 0.2)
            if masks:
                x = x * masks[index][:, :, None, None]
            if "norm" in block:
                x = block["norm"](x)
        return self.linear(x.flatten(1)).squeeze(1)


@dataclass
class PlainPair:
    generator: PlainGenerator
    discriminator: PlainDiscriminator
    generator_adam: torch.optim.Adam
    discriminator_adam: torch.optim.Adam
    training: Training

    @classmethod
    def like(cls, pair: Pair, training: Training, dtype: torch.dtype = torch.float32) -> PlainPair:
        generator = PlainGenerator(pair.generator.network).to(dtype)
        discriminator = PlainDiscriminator(pair.discriminator.network).to(dtype)
        o = training.optimiser

        def adam(network: nn.Module, rate: float) -> torch.optim.Adam:
            return torch.optim.Adam(
                network.parameters(), rate, (o.beta1, o.beta2), foreach=False, fused=False
            )

        return cls(
            generator,
            discriminator,
            adam(generator, pair.generator.learning_rate),
            adam(discriminator, pair.discriminator.learning_rate),
            training,
        )

    def train_step(self, reals: list[Tensor], noise: list[Noise]) -> Tensor:
        losses = [
            self._update_discriminator(batch, one) for batch, one in zip(reals, noise, strict=False)
        ]
        return torch.stack([torch.stack(losses).mean(), self._update_generator(noise[-1])])

    def _update_discriminator(self, reals: Tensor, noise: Noise) -> Tensor:
        self.discriminator_adam.zero_grad()
        fakes = self.generator(noise.z_BZ)
        loss = discriminator_loss(
            self.training.loss,
            self.discriminator(reals, noise.real_factors_BW),
            self.discriminator(fakes.detach(), noise.fake_factors_BW),
        )
        loss.backward()
        self.discriminator_adam.step()
        if isinstance(self.training.constraint, ClipConstraint):
            clip_(clippable(self.discriminator), self.training.constraint.bound)
        return loss.detach()

    def _update_generator(self, noise: Noise) -> Tensor:
        self.generator_adam.zero_grad()
        fakes = self.generator(noise.z_BZ)
        loss = generator_loss(self.training.loss, self.discriminator(fakes, noise.fake_factors_BW))
        loss.backward()
        self.generator_adam.step()
        return loss.detach()


def _copy_of(layer: nn.Module) -> nn.Module:
    match layer:
        case nn.Linear():
            copy = nn.Linear(layer.in_features, layer.out_features)
        case nn.BatchNorm2d():
            copy = nn.BatchNorm2d(layer.num_features, eps=layer.eps, momentum=layer.momentum)
        case nn.Conv2d():
            copy = nn.Conv2d(
                layer.in_channels, layer.out_channels, 3, stride=layer.stride, padding=1
            )
        case _:
            raise TypeError(layer)
    _load(copy, layer.state_dict())
    return copy


def _load(layer: nn.Module, state: dict[str, Tensor]) -> None:
    dtype = next(iter(state.values())).dtype
    layer.to(dtype).load_state_dict({k: v.clone() for k, v in state.items()}, strict=False)
