"""The combined sampler as one plain `nn.Module`: needs torch, and nothing else.

`manege export` writes a copy of this file as ``model.py`` beside the weights.

Shape legend: N pictures, Z numbers of a latent, S side, C channels.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Tanh(nn.Module):
    """Tanh by way of the sigmoid, as it was in training: they differ by 2e-7."""

    def forward(self, x: Tensor) -> Tensor:
        """Return tanh x."""
        return 2 * torch.sigmoid(2 * x) - 1


class FirstMap(nn.Module):
    """Numbers as a small map: its channels lie last in memory, so that the bits are training's."""

    def __init__(self, channels: int, side: int) -> None:
        super().__init__()
        self.channels, self.side = channels, side

    def forward(self, x: Tensor) -> Tensor:
        """Return N×C×side×side maps."""
        maps = x.view([-1, self.channels, self.side, self.side])
        return maps.contiguous(memory_format=torch.channels_last)


class Residual(nn.Module):
    """Layers beside the input, which is doubled in side as they double it."""

    def __init__(self, layers: list[list[Any]]) -> None:
        super().__init__()
        self.body = nn.Sequential(*map(layer, layers))

    def forward(self, x: Tensor) -> Tensor:
        """Return the maps, twice as large."""
        y: Tensor = self.body(x)
        return y + F.interpolate(x, scale_factor=2.0, mode="nearest")


LAYERS: dict[str, Any] = {
    one.__name__: one
    for one in (
        nn.BatchNorm2d,
        nn.Conv2d,
        nn.ConvTranspose2d,
        nn.LeakyReLU,
        nn.Linear,
        nn.ReLU,
        nn.SiLU,
        nn.Unflatten,
        FirstMap,
        Residual,
        Tanh,
    )
}
"""The layers that a description may name."""


def layer(description: list[Any]) -> nn.Module:
    """Return the layer of ``[name, argument, …]``."""
    name, *arguments = description
    built: nn.Module = LAYERS[name](*arguments)
    return built


class Network(nn.Module):
    """One generator, or several that differ in the first layer's bias alone: a row for each.

    Such are the labels of a conditional network: a label's part of the first layer is constant.
    """

    latent: int

    def __init__(self, description: dict[str, Any]) -> None:
        super().__init__()
        self.latent = description["latent"]
        width: int = description["width"]
        self.first = nn.Linear(self.latent, width, bias=False)
        self.bias = nn.Parameter(torch.empty(description["rows"], width))
        self.rest = nn.Sequential(*map(layer, description["layers"]))

    def forward(self, z: Tensor, row: Tensor) -> Tensor:
        """Return N×C×S×S pictures in [-1, 1]; `row` says for each whose bias is used."""
        pictures: Tensor = self.rest(self.first(z[:, : self.latent]) + self.bias[row])
        return pictures


class Sampler(nn.Module):
    """Draws pictures from latents: p(x) = Σ p(x | y) p(y), each label from its own generators."""

    labels: list[str]
    latent: int
    """How many numbers a latent has; a generator that takes fewer takes the first of them."""
    size: int
    channels: int
    low: Tensor
    """Where a label's stretch of [0, 1) begins, and where the whole does."""
    high: Tensor
    """Where it ends."""
    edges: Tensor
    """Where each generator's part of [0, 1) ends, but for the last."""
    first: Tensor
    last: Tensor
    network: Tensor
    row: Tensor

    def __init__(
        self, description: dict[str, Any], networks: list[nn.Module] | None = None
    ) -> None:
        """Build it without weights: ``load_state_dict(weights, assign=True)`` gives it such.

        Args:
            description: the tree of ``model.json``.
            networks: the modules (z, row) → pictures, where they are not made of `LAYERS`.
        """
        super().__init__()
        self.labels, self.latent = description["labels"], description["latent"]
        self.size = description["picture"]["size"]
        self.channels = description["picture"]["channels"]
        if networks is None:
            with torch.device("meta"):  # Neither memory nor random numbers for what is replaced.
                networks = [Network(one) for one in description["networks"]]
        self.networks = nn.ModuleList(networks)
        generators = description["generators"]
        # A label's generators follow each other, so that a label is a stretch of [0, 1).
        owners = [self.labels.index(one["label"]) for one in generators]
        first = [owners.index(number) for number in range(len(self.labels))]
        last = [first[number] + owners.count(number) - 1 for number in range(len(self.labels))]
        shares = [one["share"] for one in generators]
        ends = torch.tensor(shares, dtype=torch.float64, device="cpu").cumsum(0)
        starts = ends - ends.new_tensor(shares)
        self.mixed = len(generators) > len(self.labels)
        # The last entry is that of label -1: any label, by p(y).
        lows, highs = [starts[k] for k in first], [ends[k] for k in last]
        self._keep("low", torch.stack([*lows, starts[0]]).float())
        self._keep("high", torch.stack([*highs, ends[-1]]).float())
        self._keep("edges", ends[:-1].float())
        self._keep("first", _whole([*first, 0]))
        self._keep("last", _whole([*last, len(generators) - 1]))
        self._keep("network", _whole([one["network"] for one in generators]))
        self._keep("row", _whole([one["row"] for one in generators]))

    def _keep(self, name: str, tensor: Tensor) -> None:
        self.register_buffer(name, tensor, persistent=False)

    def choose(self, count: int, label: Tensor | None, u: Tensor | None) -> Tensor:
        """Return for each picture the number of the generator that draws it, of all there are."""
        if label is None:
            if u is None and len(self.labels) > 1:
                raise ValueError("several labels: give label, or u to draw labels by p(y)")
            label = torch.full([count], -1, dtype=torch.long, device=self.low.device)
        if u is None:
            if self.mixed:
                raise ValueError("a mixture of generators: give u, numbers in [0, 1), to choose")
            if len(self.labels) > 1 and bool((label < 0).any()):
                raise ValueError("label -1 is drawn by p(y): give u, numbers in [0, 1), for it")
            u = torch.zeros([count], device=self.low.device)
        low = self.low[label]
        place = low + u * (self.high[label] - low)
        owner = (place[:, None] >= self.edges).sum(1)
        # Rounding must not lead to another label.
        return torch.minimum(torch.maximum(owner, self.first[label]), self.last[label])

    def forward(self, z: Tensor, label: Tensor | None = None, u: Tensor | None = None) -> Tensor:
        """Return N×C×S×S pictures in [-1, 1].

        Args:
            z: N×Z latents, drawn from the standard normal distribution.
            label: N whole numbers, positions in `labels`; -1 is any label, by p(y). All are -1
                when None.
            u: N numbers from [0, 1), drawn uniformly: they choose among the generators of a label,
                and the label where it is -1. None where there is no choice.
        """
        owner = self.choose(z.shape[0], label, u)
        network, row = self.network[owner], self.row[owner]
        if len(self.networks) == 1:
            alone: Tensor = self.networks[0](z, row)
            return alone
        pictures = torch.zeros(
            [z.shape[0], self.channels, self.size, self.size], dtype=z.dtype, device=z.device
        )
        for number, one in enumerate(self.networks):
            own = (network == number).nonzero().squeeze(1)
            # A latent more than there are, whose picture is dropped: no layer sees an empty batch.
            own_z = torch.cat([z[own], torch.zeros_like(z[:1])])
            own_row = torch.cat([row[own], torch.zeros_like(row[:1])])
            pictures = pictures.index_copy(0, own, one(own_z, own_row)[:-1])
        return pictures


def _whole(numbers: list[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.long, device="cpu")


def load(folder: str | Path, weights: dict[str, Tensor] | None = None) -> Sampler:
    """Return the sampler in a folder with ``model.json``, ready to draw.

    Args:
        folder: where it lies.
        weights: its state dict; that of ``weights.pt`` in the folder when None.
    """
    folder = Path(folder)
    if weights is None:
        weights = torch.load(folder / "weights.pt", map_location="cpu", weights_only=True)
    sampler = Sampler(json.loads((folder / "model.json").read_text(encoding="utf-8")))
    sampler.load_state_dict(weights, assign=True)
    return sampler.eval()
