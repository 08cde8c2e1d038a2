"""Turns a model's generators into one plain module: ordinary layers, the same pictures.

Generators that differ in the first layer's bias alone, as the labels of a conditional network do,
become one network with a row for each.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from manege.config import Activation
from manege.models import Generator
from manege.models.layers import SLOPE, spread_kernel
from manege.models.networks import (
    DcganGenerator,
    MapGenerator,
    MlpGenerator,
    PyramidGenerator,
    ResnetGenerator,
    UpResidual,
)
from manege.sampler.plain import Network, Sampler
from manege.version import __version__

if TYPE_CHECKING:
    from manege.sampler.model import Model

SAMPLER_FORMAT = "manege sampler 1"
"""What ``model.json`` of an export says that needs no manege."""

_Layer = tuple[list[Any], dict[str, Tensor]]
"""A layer as ``model.json`` describes it, and its tensors."""


@dataclass
class _Part:
    """A network of the sampler: its module, and what ``model.json`` says of it."""

    description: dict[str, Any]
    module: nn.Module | None = None
    """Of layers that are no part of manege; None where the description says it all."""
    state: dict[str, Tensor] = field(default_factory=dict)
    rows: list[Tensor] = field(default_factory=list)

    def built(self) -> nn.Module:
        """Return the module, with its weights."""
        if self.module is not None:
            return self.module
        self.description["rows"] = len(self.rows)
        with torch.device("meta"):
            network = Network(self.description)
        network.load_state_dict({**self.state, "bias": torch.stack(self.rows)}, assign=True)
        return network


def module_of(model: Model, label: str | None = None) -> tuple[Sampler, dict[str, Any]]:
    """Return a sampler of the whole model, or of one label, and its description."""
    labels = model.labels if label is None else (label,)
    components = [component for one in labels for component in model.components_of(one)]
    total = sum(component.weight for component in components)
    parts: dict[str, _Part] = {}
    generators = []
    for component in components:
        part, bias = _part(model.generator(component, torch.device("cpu")))
        key = component.sha256 if part.module is not None else _digest(part)
        part = parts.setdefault(key, part)
        generators.append(
            {
                "label": component.label,
                "cell": component.cell,
                "share": component.weight / total,
                "network": list(parts).index(key),
                "row": len(part.rows),
                "trained": dict(component.trained),
            }
        )
        if bias is not None:
            part.rows.append(bias)
    built = [part.built() for part in parts.values()]
    description = {
        "format": SAMPLER_FORMAT,
        "manege": __version__,
        "model": model.digest,
        "labels": list(labels),
        "latent": max(part.description["latent"] for part in parts.values()),
        "picture": {"size": model.shape.size, "channels": model.shape.channels},
        "generators": generators,
        "networks": [part.description for part in parts.values()],
    }
    return Sampler(description, built).eval(), description


def _digest(part: _Part) -> str:
    """Return the digest of all but the rows: equal where two differ in the first bias alone."""
    found = hashlib.sha256(json.dumps(part.description).encode())
    for name, tensor in part.state.items():
        found.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def _part(generator: Generator) -> tuple[_Part, Tensor | None]:
    """Return a generator in ordinary layers, and the bias of its first; its own, if it is foreign.

    A generator from a module outside manege stays as it is.
    """
    match generator:
        case DcganGenerator():
            first, layers = generator.linear, _dcgan(generator)
        case PyramidGenerator():
            first, layers = generator.linear, _pyramid(generator)
        case ResnetGenerator():
            first, layers = generator.linear, _resnet(generator)
        case MlpGenerator():
            first, layers = generator.body.dense()[0], _mlp(generator)
        case _:
            return _Part({"latent": generator.latent}, _Foreign(generator)), None
    description = {
        "latent": generator.latent,
        "width": first.out_features,
        "layers": [described for described, _ in layers],
    }
    state = {"first.weight": first.weight.detach(), **_joined("rest", layers)}
    return _Part(description, state=state), first.bias.detach()


class _Foreign(nn.Module):
    def __init__(self, generator: Generator) -> None:
        super().__init__()
        self.generator, self.latent = generator, generator.latent

    def forward(self, z: Tensor, row: Tensor) -> Tensor:
        pictures: Tensor = self.generator(z[:, : self.latent])
        return pictures


def _joined(prefix: str, layers: list[_Layer]) -> dict[str, Tensor]:
    """Return the tensors of layers that follow each other, by their names in the whole."""
    return {
        f"{prefix}.{place}.{name}": tensor.detach().contiguous()
        for place, (_, tensors) in enumerate(layers)
        for name, tensor in tensors.items()
    }


def _dcgan(generator: DcganGenerator) -> list[_Layer]:
    act = _activation(generator.activation)
    layers = [act, _map(generator), _norm(generator.norm)]
    for block in generator.blocks:
        layers += [_doubling(block.conv), _norm(block.norm), act]
    return [*layers, _convolution(generator.out), _TANH]


def _pyramid(generator: PyramidGenerator) -> list[_Layer]:
    act = _activation(generator.activation)
    layers = [_map(generator), _norm(generator.norm), act]
    for conv, norm in zip(generator.convs, generator.norms, strict=True):
        layers += [_doubling(conv), _norm(norm), act]
    return [*layers, _convolution(generator.out), _TANH]


def _resnet(generator: ResnetGenerator) -> list[_Layer]:
    act = _activation(generator.activation)
    blocks = [_residual(block) for block in generator.blocks if isinstance(block, UpResidual)]
    return [
        _map(generator), *blocks, _norm(generator.norm), act, _convolution(generator.out), _TANH
    ]  # fmt: skip


def _residual(block: UpResidual) -> _Layer:
    act, (before, after) = _activation(block.activation), block.norms
    body = [_norm(before), act, _doubling(block.up), _norm(after), act, _convolution(block.conv)]
    return ["Residual", [described for described, _ in body]], _joined("body", body)


def _mlp(generator: MlpGenerator) -> list[_Layer]:
    act, shape = _activation(generator.body.activation), generator.shape
    layers = []
    for one in generator.body.dense()[1:]:
        linear = ["Linear", one.in_features, one.out_features]
        layers += [act, (linear, {"weight": one.weight, "bias": one.bias})]
    return [*layers, _TANH, (["Unflatten", 1, [shape.channels, shape.size, shape.size]], {})]


_TANH: _Layer = (["Tanh"], {})


def _activation(activation: Activation) -> _Layer:
    match activation:
        case Activation.LEAKY_RELU:
            return ["LeakyReLU", SLOPE], {}
        case Activation.RELU:
            return ["ReLU"], {}
        case Activation.SILU:
            return ["SiLU"], {}
        case Activation.TANH:
            return _TANH


def _map(generator: MapGenerator) -> _Layer:
    return ["FirstMap", generator.width, generator.start], {}


def _norm(norm: Any) -> _Layer:
    tensors = {
        "weight": norm.weight,
        "bias": norm.bias,
        "running_mean": norm.running_mean,
        "running_var": norm.running_var,
        "num_batches_tracked": torch.zeros((), dtype=torch.long),
    }
    return ["BatchNorm2d", norm.num_features, norm.eps], tensors


def _doubling(conv: Any) -> _Layer:
    """Doubling and convolution as one transposed convolution, as `UpsampleConv` computes it."""
    outputs, inputs = conv.weight.shape[:2]
    kernel = spread_kernel(conv.weight.detach())
    return ["ConvTranspose2d", inputs, outputs, 4, 2, 1], {"weight": kernel, "bias": conv.bias}


def _convolution(conv: Any) -> _Layer:
    described = ["Conv2d", conv.in_channels, conv.out_channels, 3, 1, 1]
    return described, {"weight": conv.weight, "bias": conv.bias}
