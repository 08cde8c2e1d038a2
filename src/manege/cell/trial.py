"""Tries a loss and networks from outside the package before training: one step on made-up pictures.

Refuses, by name and in one line, what would otherwise break a run, or its promise that the same
seed gives the same bits.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from manege.cell.individual import Individual
from manege.cell.state import new_pair
from manege.cell.step import Batch, Pair, Streams, draw_noise, noises_in_step, train_step
from manege.config import OwnNetworks, RunConfig, stream
from manege.errors import ConfigError, field
from manege.models import (
    FrozenFeatures,
    OwnDiscriminator,
    PictureShape,
    build_discriminator,
    build_generator,
    layout_of,
    loss_of,
    seeded,
)
from manege.plugins import PartError, is_reference, told

_BATCH = 4
_BEYOND = 1.001
"""How far pictures may reach: a little rounding beyond 1."""


def try_parts(config: RunConfig, shape: PictureShape, features: FrozenFeatures | None) -> list[str]:
    """Try the run's own loss and networks, and return a line about what they are, if any.

    Raises ConfigError if one fails, draws from a generator that nobody seeds, or makes what the
    other parts cannot take.
    """
    spec, loss = config.networks, config.training.loss
    if is_reference(loss):
        with _nothing_drawn_unseen(loss):
            _try_loss(loss)
    if not isinstance(spec, OwnNetworks):
        return []
    with _nothing_drawn_unseen(spec.kind):
        return [_try_networks(config, spec, shape, features)]


def _try_loss(reference: str) -> None:
    """Raise PartError unless both losses are finite numbers with gradients at the fakes."""
    loss = loss_of(reference)
    for which in ("discriminator", "generator"):
        real_B = torch.linspace(-1, 2, _BATCH).requires_grad_()
        fake_B = torch.linspace(-2, 1, _BATCH).requires_grad_()
        with seeded(0):
            if which == "discriminator":
                value = loss.discriminator(real_B, fake_B)
            else:
                value = loss.of_generator(real_B, fake_B)
        if not bool(torch.isfinite(value)):
            raise PartError(
                f"{reference}: {which}'s loss of ordinary logits is {float(value.detach())}"
            )
        slope = None
        if value.requires_grad:
            (slope,) = torch.autograd.grad(value, fake_B, allow_unused=True)
        if slope is None or not bool(torch.isfinite(slope).all()):
            raise PartError(
                f"{reference}: {which}'s loss has {'no' if slope is None else 'no finite'} "
                "gradient by the fake pictures' logits, and nothing could learn from it"
            )


def _try_networks(
    config: RunConfig, spec: OwnNetworks, shape: PictureShape, features: FrozenFeatures | None
) -> str:
    """Build the pair as a cell does and take one step; return a line about it."""
    reference, training = spec.kind, config.training
    _same_each_time(spec, shape, judges=features is None)
    streams = Streams(lambda purpose: stream(config.seed, cell="", purpose=f"trial {purpose}"))
    pair = new_pair(
        spec,
        shape,
        training,
        torch.device("cpu"),
        streams.open("init generator"),
        streams.open("init discriminator"),
        features=features,
    )
    judge = pair.discriminator.network
    kind = training.constraint.kind
    if isinstance(judge, OwnDiscriminator) and judge.normalises and kind in ("gp", "r1", "r1r2"):
        raise ConfigError(
            f"training.constraint: {kind} penalises each picture's own gradient, which the "
            f"BatchNorm of {reference}'s discriminator mixes with its batch's; use GroupNorm "
            f"there, or {field('constraint')} none"
        )
    own: dict[str, Individual[Any]] = {"generator": pair.generator}
    if isinstance(judge, OwnDiscriminator):
        own["discriminator"] = pair.discriminator
    constants = {which: _constants(one.network) for which, one in own.items()}
    members = {which: _names(one.network) for which, one in own.items()}
    z_BZ = torch.from_numpy(
        streams.open("z").standard_normal((_BATCH, pair.generator.network.latent), dtype=np.float32)
    )
    _draw_twice(reference, pair, z_BZ)
    _step(config, pair, shape, streams, reference)
    for which, one in own.items():
        _unchanged(reference, which, one, constants[which], members[which])
    judged = f"discriminator {_weights(judge):,}"
    if not isinstance(judge, OwnDiscriminator):
        judged = "its discriminator is not used, as critic features judge"
    return f"networks {reference}: generator {_weights(pair.generator.network):,} weights, {judged}"


def _same_each_time(spec: OwnNetworks, shape: PictureShape, *, judges: bool) -> None:
    """Raise PartError if networks built from one seed differ, as by numpy's random numbers."""
    builders = [("generator", build_generator)]
    if judges:
        builders.append(("discriminator", build_discriminator))  # type: ignore[arg-type]
    for which, build in builders:
        one, other = (build(spec, shape).state_dict() for _ in range(2))
        for name, tensor in one.items():
            same = name in other and torch.equal(tensor, other[name])
            if not same and not bool(torch.isnan(tensor.float()).any()):
                raise PartError(
                    f"{spec.kind}: the {which}'s {name.removeprefix('module.')} differs between "
                    "two networks built from the same seed; draw from torch's generator alone"
                )


def _draw_twice(reference: str, pair: Pair, z_BZ: Tensor) -> None:
    """Raise PartError unless the generator draws finite pictures in [-1, 1], the same each time."""
    network = pair.generator.network
    network.eval()
    with torch.no_grad():
        drawn, again = network(z_BZ), network(z_BZ)
    network.train()
    if not bool(torch.isfinite(drawn).all()):
        raise PartError(f"{reference}: generator.forward gave numbers that are not finite")
    if float(drawn.abs().max()) > _BEYOND:
        raise PartError(
            f"{reference}: generator.forward gave numbers from {float(drawn.min()):.3g} to "
            f"{float(drawn.max()):.3g}, expected pictures in [-1, 1]; end with tanh"
        )
    if not torch.equal(drawn, again):
        raise PartError(f"{reference}: generator.forward gave two results for the same latents")


def _step(
    config: RunConfig, pair: Pair, shape: PictureShape, streams: Streams, reference: str
) -> None:
    """Take one training step on made-up pictures."""
    training = config.training
    form = (_BATCH, shape.channels, shape.size, shape.size)
    numbers = 2 * streams.open("pictures").random(form, dtype=np.float32) - 1
    # As real ones lie in memory: channels last.
    pictures = torch.from_numpy(numbers).to(memory_format=torch.channels_last)
    passes = noises_in_step(pair, training)
    noise = [draw_noise(pair, _BATCH, streams, training) for _ in range(passes)]
    try:
        losses = train_step(pair, [Batch(pictures)] * training.n_critic, noise, training)
    except ConfigError:
        raise
    except Exception as error:
        raise PartError(told(error, reference, "a first training step")) from error
    if not bool(torch.isfinite(losses).all()):
        raise PartError(
            f"{reference}: after a first step the losses are {losses.tolist()}, expected finite "
            "numbers; look at what the discriminator returns"
        )


def _unchanged(
    reference: str,
    which: str,
    individual: Individual[Any],
    constants: dict[str, Tensor],
    names: set[str],
) -> None:
    """Raise PartError if a step left the network with other parts, or other constants."""
    network = individual.network
    if new := sorted(_names(network) ^ names):
        raise PartError(
            f"{reference}: the {which}'s {new[0].removeprefix('module.')} comes or goes in "
            "forward; make all parameters and buffers in __init__"
        )
    for name, tensor in _constants(network).items():
        if not torch.equal(tensor, constants[name]):
            raise PartError(
                f"{reference}: forward changes the {which}'s buffer "
                f"{name.removeprefix('module.')}, which is {tensor.dtype}; a checkpoint keeps "
                "float32 alone: use float32, or leave it constant"
            )
    try:
        individual.check_views()
    except RuntimeError as error:
        raise PartError(
            f"{reference}: in the {which} {str(error).replace(' module.', ' ')}; change it in "
            "place (copy_, mul_) instead of putting another tensor there"
        ) from None


def _constants(network: nn.Module) -> dict[str, Tensor]:
    """Return copies of the buffers that no record holds."""
    return {
        name: owner._buffers[attribute].clone()  # type: ignore[union-attr]
        for name, owner, attribute in layout_of(network).constants
    }


def _names(network: nn.Module) -> set[str]:
    return {
        name
        for members in (network.named_parameters, network.named_buffers)
        for name, _ in members(remove_duplicate=False)
    }


def _weights(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@contextmanager
def _nothing_drawn_unseen(reference: str) -> Iterator[None]:
    """Raise PartError if Python's or numpy's global generator is drawn from inside."""
    python, numbers = random.getstate(), _numpy_state()
    yield
    drew = [] if random.getstate() == python else ["Python's random"]
    if _numpy_state() != numbers:
        drew.append("numpy.random")
    if drew:
        raise PartError(
            f"{reference}: draws from {drew[0]}, whose numbers are others after a restart; draw "
            "from torch's own generator (torch.rand, torch.randn), which is seeded for each step"
        )


def _numpy_state() -> tuple[bytes, int]:
    state = np.random.get_state(legacy=False)["state"]  # noqa: NPY002 - it is only watched.
    return state["key"].tobytes(), state["pos"]
