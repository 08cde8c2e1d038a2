"""Networks from outside the package: plain modules, made to look like ours.

Owns how a factory is called, what its modules must be, and how their errors are told. The
author's own initialisation counts: modules are built from a seed, with torch's generator lent to
them and given back as it was.

Shape legend: B batch, Z latent, C channels, S side.
"""

from __future__ import annotations

import inspect
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from manege.config import OwnNetworks, told_parameters
from manege.errors import ConfigError
from manege.models.networks import Discriminator, Generator, PictureShape
from manege.plugins import PartError, blamed, load

_FIRST = 0
"""The seed of what a record fills: only what no record holds keeps the values it has."""

Which = Literal["generator", "discriminator"]


class OwnGenerator(Generator):
    """A module of somebody else's whose `forward(z)` gives B×C×S×S pictures."""

    own = True

    def __init__(self, spec: OwnNetworks, shape: PictureShape, seed: int = _FIRST) -> None:
        super().__init__()
        self.embed = None
        self.again: Callable[[int], OwnGenerator] = partial(OwnGenerator, spec, shape)
        """Builds another one, from a seed."""
        self.reference, self.shape = spec.kind, shape
        self.latent, self.module = _build(spec, shape, "generator", seed)
        self.train()

    def forward(self, z_BZ: Tensor, labels_B: Tensor | None = None) -> Tensor:
        """Draw B×C×S×S pictures."""
        shape = (len(z_BZ), self.shape.channels, self.shape.size, self.shape.size)
        return _passed(self, z_BZ, shape, "pictures B×C×S×S")

    def to_empty(self, **_: Any) -> Self:
        """Return it as it is: it has storage from the start, and constants that nobody fills."""
        return self


class OwnDiscriminator(Discriminator):
    """A module of somebody else's whose `forward(x)` gives B logits."""

    own = True
    mixes = True
    """Real and fake pictures always come in batches of their own: it may have BatchNorm."""

    def __init__(self, spec: OwnNetworks, shape: PictureShape, seed: int = _FIRST) -> None:
        super().__init__()
        self.embed = None
        self.again: Callable[[int], OwnDiscriminator] = partial(OwnDiscriminator, spec, shape)
        """Builds another one, from a seed."""
        self.reference = spec.kind
        _, self.module = _build(spec, shape, "discriminator", seed)
        self.train()

    @property
    def normalises(self) -> bool:
        """Whether it has BatchNorm."""
        return any(isinstance(one, _BatchNorm) for one in self.modules())

    def forward(
        self, x_BCSS: Tensor, factors_BW: Tensor | None = None, labels_B: Tensor | None = None
    ) -> Tensor:
        """Return B values."""
        return _passed(self, x_BCSS.contiguous(), (len(x_BCSS),), "a logit for each picture, B")

    def to_empty(self, **_: Any) -> Self:
        """Return it as it is: it has storage from the start, and constants that nobody fills."""
        return self


OwnNetwork = OwnGenerator | OwnDiscriminator


def initialise_own(network: OwnNetwork, rng: np.random.Generator) -> None:
    """Fill a network's parameters and float buffers as its author does, from a stream's seed."""
    fresh = network.again(int(rng.integers(2**63)))
    for one, other in (
        (network.named_parameters, fresh.named_parameters),
        (network.named_buffers, fresh.named_buffers),
    ):
        found = dict(other(remove_duplicate=False))
        for name, tensor in one(remove_duplicate=False):
            if name not in found or found[name].shape != tensor.shape:
                raise PartError(
                    f"{network.reference}: built twice, its {name} is another one; a network's "
                    "parts must be the same each time"
                )
            if tensor.dtype == torch.float32:
                tensor.copy_(found[name])


@contextmanager
def seeded(seed: int | None, *devices: torch.device) -> Iterator[None]:
    """Let code draw from torch's generators as if they began at a seed; restore them after.

    With None nothing changes, for code that draws nothing.
    """
    if seed is None:
        yield
        return
    generators = [torch.default_generator]
    gpus = {device.index or 0 for device in devices if device.type == "cuda"}
    generators += [torch.cuda.default_generators[gpu] for gpu in sorted(gpus)]
    states = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(seed)
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def _passed(network: OwnNetwork, given: Tensor, shape: tuple[int, ...], what: str) -> Tensor:
    """Return what the module makes of a batch, once it has the shape that it must have."""
    module = network.module
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
        traced: Tensor = module(given)
        return traced
    # A training step seeds its draws itself; apart from that they are a function of the input.
    seed = None if network.training else zlib.crc32(given[:1].detach().cpu().numpy().tobytes())
    which = "generator" if isinstance(network, OwnGenerator) else "discriminator"
    with blamed(network.reference, f"{which}.forward"), seeded(seed, given.device):
        version = given._version
        made = module(given)
    if given._version != version:
        raise PartError(
            f"{network.reference}: {which}.forward changes what it is given in place, and others "
            "use it too; begin with a copy (an activation without inplace=True)"
        )
    if not isinstance(made, Tensor):
        raise PartError(
            f"{network.reference}: {which}.forward returned a {type(made).__name__}, expected "
            f"{what}: a tensor of shape {shape}"
        )
    if tuple(made.shape) != shape or made.dtype != given.dtype:
        raise PartError(
            f"{network.reference}: {which}.forward returned {made.dtype} of shape "
            f"{tuple(made.shape)} for {given.dtype} of shape {tuple(given.shape)}, expected "
            f"{given.dtype} of shape {shape}: {what}"
        )
    learns = network.training and torch.is_grad_enabled()
    if learns and not made.requires_grad and next(module.parameters()).requires_grad:
        raise PartError(
            f"{network.reference}: {which}.forward returned what has no gradient, so that nothing "
            "could learn; look for detach, .data or no_grad"
        )
    return made


def _build(
    spec: OwnNetworks, shape: PictureShape, which: Which, seed: int
) -> tuple[int, nn.Module]:
    """Call the factory and then its method; return the latents' width and the module."""
    reference = spec.kind
    factory = load(reference, "networks.kind")
    if not callable(factory):
        raise ConfigError(
            f"networks.kind: {reference} is a {type(factory).__name__}, expected a class or a "
            "function that makes networks"
        )
    given = _arguments(factory, spec)
    with seeded(seed), torch.device("cpu"):
        with blamed(reference, "the factory"):
            pair = factory(**given)
            names = ("generator", "discriminator", "latent")
            missing = [name for name in names if not hasattr(pair, name)]
        if missing:
            raise ConfigError(
                f"networks.kind: what {reference} makes (a {type(pair).__name__}) has no "
                f"{missing[0]}; expected generator(shape), discriminator(shape) and latent"
            )
        with blamed(reference, which):
            module = getattr(pair, which)(shape)
    latent = pair.latent
    if type(latent) is not int or latent < 1:
        raise ConfigError(f"{reference}: latent is {latent!r}, expected a whole number from 1 up")
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"{reference}: {which}(shape) returned a {type(module).__name__}, expected a "
            "torch.nn.Module"
        )
    if (problem := _problem(module)) is not None:
        raise ConfigError(f"{reference}: the {which}'s {problem}")
    _uncount(module)
    return latent, module


def _problem(module: nn.Module) -> str | None:
    """Return why a module's weights could not be kept in a record, or None."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    for name, parameter in parameters.items():
        if is_lazy(parameter):
            return f"{name} is lazy: it has no size before its first use; give its layer a size"
        if parameter.dtype != torch.float32:
            return f"{name} is {parameter.dtype}, expected torch.float32; use .float()"
        if parameter.device.type != "cpu":
            return f"{name} is on {parameter.device}; leave it on the CPU, manege moves it"
        if not parameter.requires_grad:
            return (
                f"{name} wants no gradient (requires_grad is False), and every parameter is "
                "trained; make what is frozen a buffer (register_buffer)"
            )
    for name, buffer in module.named_buffers():
        if is_lazy(buffer):
            return f"{name} is lazy: it has no size before its first use; give its layer a size"
    if not parameters:
        return "module has no parameters, expected some to train"
    weights = [one for one in parameters.values() if one.ndim > 1] or [*parameters.values()]
    if not any(bool(one.detach().any()) for one in weights):
        return "weights are all 0 when it is built, and would stay so; initialise them"
    return None


def _uncount(module: nn.Module) -> None:
    """Take BatchNorm's counter of batches away where it decides nothing: it is no float."""
    for one in module.modules():
        if isinstance(one, _BatchNorm) and one.momentum is not None:
            one.num_batches_tracked = None


def _arguments(factory: Callable[..., Any], spec: OwnNetworks) -> dict[str, Any]:
    """Return the factory's keyword arguments, as its annotations want them."""
    model = _model_of(factory, spec.kind)
    try:
        checked = model.model_validate(spec.parameters)
    except ValidationError as error:
        raise ConfigError(told_parameters(error, "networks", model, spec.parameters)) from None
    # Only what was given: defaults are the factory's own.
    return {name: getattr(checked, name) for name in spec.parameters}


def _model_of(factory: Callable[..., Any], reference: str) -> type[BaseModel]:
    """Return a model of the parameters of a class or a function."""
    if isinstance(factory, type) and issubclass(factory, BaseModel):
        strict: type[BaseModel] = type(
            "Parameters",
            (factory,),
            {"model_config": ConfigDict(extra="forbid"), "__module__": factory.__module__},
        )
        return strict
    with blamed(reference, "the factory's signature"):
        signature = inspect.signature(factory, eval_str=True)
    fields: dict[str, Any] = {}
    open_ended = False
    for name, one in signature.parameters.items():
        if one.kind is one.VAR_KEYWORD:
            open_ended = True
        elif one.kind in (one.POSITIONAL_ONLY, one.VAR_POSITIONAL):
            if one.default is one.empty and one.kind is one.POSITIONAL_ONLY:
                raise ConfigError(
                    f"{reference}: its parameter {name} has no keyword; remove the / after it"
                )
        else:
            annotation = Any if one.annotation is one.empty else one.annotation
            fields[name] = (annotation, ... if one.default is one.empty else one.default)
    config = ConfigDict(
        extra="allow" if open_ended else "forbid",
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )
    with blamed(reference, "the factory's signature"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # A parameter may have the name of a method of pydantic's.
        return create_model("Parameters", __config__=config, **fields)
