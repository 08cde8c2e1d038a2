"""The same pairs and step as public code usually writes them: the yardstick for ours.

Channels first; doubling, then convolution; convolution, then averaging; torch's own Adam, a
parameter at a time; the losses, penalties and spectral norms written out where they are used.
Every plain network shares the state dict of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from manege.cell import Batch, Noise, Pair
from manege.config import (
    Activation,
    ClipConstraint,
    LossName,
    PenaltyConstraint,
    R1Constraint,
    R1R2Constraint,
    SpectralConstraint,
    Training,
)
from manege.models import AugmentParams, augment
from manege.models.networks import (
    DcganDiscriminator,
    DcganGenerator,
    MlpDiscriminator,
    MlpGenerator,
    ResnetDiscriminator,
    ResnetGenerator,
)

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.LEAKY_RELU: lambda x: F.leaky_relu(x, 0.2),
    Activation.RELU: F.relu,
    Activation.SILU: lambda x: x * torch.sigmoid(x),
    Activation.TANH: torch.tanh,
}


@contextmanager
def doubles() -> Iterator[None]:
    """Networks and individuals that are made inside hold doubles, so that rounding is no excuse."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class PlainLayer(nn.Module):
    """The weight and bias of one of our layers; with a `u`, divided by its spectral norm.

    torch's spectral norm, written out, but for one thing: ours sharpens `u` once in each update of
    the discriminator, torch's in each forward pass.
    """

    def __init__(self, ours: nn.Module) -> None:
        super().__init__()
        self.weight = nn.Parameter(ours.weight.detach().clone())
        bias = getattr(ours, "bias", None)
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())
        u = getattr(ours, "u", None)
        self.register_buffer("u", None if u is None else u.detach().clone())

    @torch.no_grad()
    def power_iteration(self) -> None:
        if self.u is not None:
            matrix = self.weight.reshape(len(self.weight), -1)
            v = matrix.T @ self.u
            u = matrix @ (v / v.norm())
            self.u = u / u.norm()

    def used(self) -> Tensor:
        if self.u is None:
            return self.weight
        matrix = self.weight.reshape(len(self.weight), -1)
        v = (matrix.T @ self.u).detach()
        sigma = self.u @ matrix @ (v / v.norm())
        return self.weight / sigma


class PlainConv(PlainLayer):
    """Any of our convolutions, as the 3×3 (or 1×1) one it is."""

    def __init__(self, ours: nn.Module, stride: int = 1) -> None:
        super().__init__(ours)
        self.stride, self.padding = stride, self.weight.shape[-1] // 2

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.used(), self.bias, self.stride, self.padding)


class PlainLinear(PlainLayer):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.used(), self.bias)


class PlainRows(PlainLayer):
    def forward(self, labels: Tensor) -> Tensor:
        return self.used()[labels]


def _norm(ours: nn.BatchNorm2d) -> nn.BatchNorm2d:
    copy = nn.BatchNorm2d(ours.num_features, eps=ours.eps, momentum=0.1).to(ours.weight.dtype)
    copy.load_state_dict({k: v.clone() for k, v in ours.state_dict().items()}, strict=False)
    return copy


def _rows(ours: nn.Module) -> PlainRows | None:
    return None if ours.embed is None else PlainRows(ours.embed)


class PlainGenerator(nn.Module):
    """Table 1 with upsampling spelled out."""

    def __init__(self, ours: DcganGenerator) -> None:
        super().__init__()
        self.width, self.start = ours.width, ours.start
        self.activation = ACTIVATIONS[ours.activation]
        self.embed = _rows(ours)
        self.linear = PlainLinear(ours.linear)
        self.norm = _norm(ours.norm)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"conv": PlainConv(block.conv), "norm": _norm(block.norm)})
            for block in ours.blocks
        )
        self.out = PlainConv(ours.out)

    def forward(self, z: Tensor, labels: Tensor | None = None) -> Tensor:
        x = self.activation(self.linear(_with_rows(z, self.embed, labels)))
        x = self.norm(x.reshape(len(z), self.width, self.start, self.start))
        for block in self.blocks:
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = self.activation(block["norm"](block["conv"](x)))
        return torch.tanh(self.out(x))


class PlainResnetGenerator(nn.Module):
    """Residual blocks: norm, activation, doubling, convolution, norm, activation, convolution."""

    def __init__(self, ours: ResnetGenerator) -> None:
        super().__init__()
        self.width, self.start = ours.width, ours.start
        self.activation = ACTIVATIONS[ours.activation]
        self.embed = _rows(ours)
        self.linear = PlainLinear(ours.linear)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norms": nn.ModuleList(_norm(norm) for norm in block.norms),
                    "up": PlainConv(block.up),
                    "conv": PlainConv(block.conv),
                }
            )
            for block in ours.blocks
        )
        self.norm = _norm(ours.norm)
        self.out = PlainConv(ours.out)

    def forward(self, z: Tensor, labels: Tensor | None = None) -> Tensor:
        x = self.linear(_with_rows(z, self.embed, labels))
        x = x.reshape(len(z), self.width, self.start, self.start)
        for block in self.blocks:
            y = self.activation(block["norms"][0](x))
            y = block["up"](F.interpolate(y, scale_factor=2, mode="nearest"))
            y = block["conv"](self.activation(block["norms"][1](y)))
            x = F.interpolate(x, scale_factor=2, mode="nearest") + y
        return torch.tanh(self.out(self.activation(self.norm(x))))


class PlainMlpGenerator(nn.Module):
    def __init__(self, ours: MlpGenerator) -> None:
        super().__init__()
        self.shape = ours.shape
        self.embed = _rows(ours)
        self.body = _PlainBody(ours.body)

    def forward(self, z: Tensor, labels: Tensor | None = None) -> Tensor:
        x = torch.tanh(self.body(_with_rows(z, self.embed, labels)))
        return x.reshape(len(z), self.shape.channels, self.shape.size, self.shape.size)


class _PlainBody(nn.Module):
    """Linear layers with the activation between them."""

    def __init__(self, ours: nn.Module) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[ours.activation]
        self.layers = nn.ModuleList(PlainLinear(layer) for layer in ours.layers)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](x)
        for layer in self.layers[1:]:
            x = layer(self.activation(x))
        return x


def _with_rows(z: Tensor, embed: PlainRows | None, labels: Tensor | None) -> Tensor:
    return z if embed is None else torch.cat([z, embed(labels)], 1)


class _PlainJudge(nn.Module):
    """A discriminator's end: a linear layer, and the label's row projected on the features."""

    def __init__(self, ours: nn.Module) -> None:
        super().__init__()
        self.linear = PlainLinear(ours.linear)
        self.embed = _rows(ours)

    def judge(self, features: Tensor, labels: Tensor | None) -> Tensor:
        logits = self.linear(features)[:, 0]
        if self.embed is not None:
            logits = logits + torch.einsum("bw,bw->b", self.embed(labels), features)
        return logits


class PlainDiscriminator(_PlainJudge):
    """Table 2."""

    def __init__(self, ours: DcganDiscriminator) -> None:
        super().__init__(ours)
        self.widths = ours.widths
        self.activation = ACTIVATIONS[ours.blocks[0].activation]
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {"conv": PlainConv(block.conv, stride=2)}
                | ({} if block.norm is None else {"norm": _norm(block.norm)})
            )
            for block in ours.blocks
        )

    def forward(
        self, x: Tensor, factors: Tensor | None = None, labels: Tensor | None = None
    ) -> Tensor:
        masks = factors.split(self.widths, dim=1) if factors is not None else None
        for index, block in enumerate(self.blocks):
            x = self.activation(block["conv"](x))
            if masks:
                x = x * masks[index][:, :, None, None]
            if "norm" in block:
                x = block["norm"](x)
        return self.judge(x.flatten(1), labels)


class PlainResnetDiscriminator(_PlainJudge):
    """Residual blocks: activation, convolution, activation, convolution, averaging."""

    def __init__(self, ours: ResnetDiscriminator) -> None:
        super().__init__(ours)
        self.activation = ACTIVATIONS[ours.activation]
        self.blocks = nn.ModuleList(
            nn.ModuleDict({name: PlainConv(getattr(block, name)) for name in _DOWN})
            for block in ours.blocks
        )

    def forward(
        self, x: Tensor, factors: Tensor | None = None, labels: Tensor | None = None
    ) -> Tensor:
        assert factors is None
        for index, block in enumerate(self.blocks):
            y = self.activation(x) if index else x
            y = block["pool"](self.activation(block["conv"](y)))
            x = F.avg_pool2d(block["skip"](x), 2) + F.avg_pool2d(y, 2)
        return self.judge(self.activation(x).sum((2, 3)), labels)


_DOWN = ("conv", "pool", "skip")


class PlainMlpDiscriminator(_PlainJudge):
    def __init__(self, ours: MlpDiscriminator) -> None:
        super().__init__(ours)
        self.activation = ACTIVATIONS[ours.activation]
        self.body = _PlainBody(ours.body)

    def forward(
        self, x: Tensor, factors: Tensor | None = None, labels: Tensor | None = None
    ) -> Tensor:
        assert factors is None
        return self.judge(self.activation(self.body(x.flatten(1))), labels)


_PLAIN: dict[type[nn.Module], type[nn.Module]] = {
    DcganGenerator: PlainGenerator,
    DcganDiscriminator: PlainDiscriminator,
    ResnetGenerator: PlainResnetGenerator,
    ResnetDiscriminator: PlainResnetDiscriminator,
    MlpGenerator: PlainMlpGenerator,
    MlpDiscriminator: PlainMlpDiscriminator,
}


def plain(ours: nn.Module) -> nn.Module:
    """A plain network with the same weights and buffers, of the same type of numbers."""
    return _PLAIN[type(ours)](ours)


@dataclass
class PlainPair:
    generator: nn.Module
    discriminator: nn.Module
    generator_adam: torch.optim.Adam
    discriminator_adam: torch.optim.Adam
    training: Training

    @classmethod
    def like(cls, pair: Pair, training: Training) -> PlainPair:
        generator, discriminator = plain(pair.generator.network), plain(pair.discriminator.network)
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

    def train_step(self, reals: list[Batch], noise: list[Noise]) -> Tensor:
        losses = [
            self._update_discriminator(batch, one) for batch, one in zip(reals, noise, strict=False)
        ]
        return torch.stack(
            [torch.stack(losses).mean(), self._update_generator(reals[-1], noise[-1])]
        )

    def _update_discriminator(self, batch: Batch, noise: Noise) -> Tensor:
        constraint, labels = self.training.constraint, batch.labels_B
        self.discriminator_adam.zero_grad()
        fakes = _changed(self.generator(noise.z_BZ, labels), noise.fake_changes).detach()
        reals = _changed(batch.pictures, noise.real_changes).detach()
        if isinstance(constraint, SpectralConstraint):
            for layer in self.discriminator.modules():
                if isinstance(layer, PlainLayer):
                    layer.power_iteration()
        if isinstance(constraint, R1Constraint | R1R2Constraint):
            reals.requires_grad_()
        if isinstance(constraint, R1R2Constraint):
            fakes.requires_grad_()
        real = self.discriminator(reals, noise.real_factors_BW, labels)
        fake = self.discriminator(fakes, noise.fake_factors_BW, labels)
        loss = _discriminator_loss(self.training.loss, real, fake)
        if isinstance(constraint, PenaltyConstraint):
            mix = noise.mix_B[:, None, None, None]
            between = (mix * reals + (1 - mix) * fakes).requires_grad_()
            value = self.discriminator(between, noise.real_factors_BW, labels)
            norms = _gradients(value, between).norm(2, dim=1)
            loss = loss + constraint.weight * ((norms - 1) ** 2).mean()
        if isinstance(constraint, R1Constraint | R1R2Constraint):
            loss = loss + constraint.gamma / 2 * _gradients(real, reals).pow(2).sum(1).mean()
        if isinstance(constraint, R1R2Constraint):
            loss = loss + constraint.gamma / 2 * _gradients(fake, fakes).pow(2).sum(1).mean()
        loss.backward()
        self.discriminator_adam.step()
        if isinstance(constraint, ClipConstraint):
            for module in self.discriminator.modules():
                if isinstance(module, PlainLayer):  # And so no BatchNorm.
                    for parameter in module.parameters():
                        parameter.data.clamp_(-constraint.bound, constraint.bound)
        return loss.detach()

    def _update_generator(self, batch: Batch, noise: Noise) -> Tensor:
        labels = batch.labels_B
        self.generator_adam.zero_grad()
        fakes = _changed(self.generator(noise.z_BZ, labels), noise.fake_changes)
        fake = self.discriminator(fakes, noise.fake_factors_BW, labels)
        real = None
        if self.training.loss is LossName.RELATIVISTIC:
            reals = _changed(batch.pictures, noise.real_changes)
            real = self.discriminator(reals, noise.real_factors_BW, labels)
        loss = _generator_loss(self.training.loss, fake, real)
        loss.backward()
        self.generator_adam.step()
        return loss.detach()


def _changed(pictures: Tensor, changes: AugmentParams | None) -> Tensor:
    return pictures if changes is None else augment(pictures, changes)


def _gradients(value: Tensor, pictures: Tensor) -> Tensor:
    """A row for each picture."""
    (found,) = torch.autograd.grad(value, pictures, torch.ones_like(value), create_graph=True)
    return found.reshape(len(pictures), -1)


def _discriminator_loss(loss: LossName, real: Tensor, fake: Tensor) -> Tensor:
    ones, zeros = torch.ones_like(real), torch.zeros_like(fake)
    bce = F.binary_cross_entropy_with_logits
    match loss:
        case LossName.BCE | LossName.MINIMAX:
            return bce(real, ones) + bce(fake, zeros)
        case LossName.LEAST_SQUARES:
            return 0.5 * F.mse_loss(real, ones) + 0.5 * F.mse_loss(fake, zeros)
        case LossName.HINGE:
            return torch.clamp(1 - real, min=0).mean() + torch.clamp(1 + fake, min=0).mean()
        case LossName.RELATIVISTIC:
            return bce(real - fake, ones)
        case LossName.WASSERSTEIN:
            return -torch.mean(real) + torch.mean(fake)


def _generator_loss(loss: LossName, fake: Tensor, real: Tensor | None) -> Tensor:
    ones, zeros = torch.ones_like(fake), torch.zeros_like(fake)
    bce = F.binary_cross_entropy_with_logits
    match loss:
        case LossName.BCE:
            return bce(fake, ones)
        case LossName.MINIMAX:
            return -bce(fake, zeros)
        case LossName.LEAST_SQUARES:
            return 0.5 * F.mse_loss(fake, ones)
        case LossName.HINGE | LossName.WASSERSTEIN:
            return -torch.mean(fake)
        case LossName.RELATIVISTIC:
            return bce(fake - real, ones)
