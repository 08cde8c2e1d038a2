"""Pictures of given latents, the latents of drawn pictures, and the way between two of them.

Shape legend: N pictures, Z numbers of a latent, T steps, S side, C channels, B batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from manege import device
from manege.config import shown, stream
from manege.errors import ConfigError, field
from manege.models import Generator, build_generator, fill, generate

if TYPE_CHECKING:
    from manege.sampler.model import Component, Model

CHUNK = 32
"""The number of pictures generated at once, always: a batch of another size gives other bits."""
_FIRST_BIASES = ("linear.bias", "body.layers.0.bias")
"""Where a conditional network's label lies once it is built in: `models.with_label`."""


class Latents(NamedTuple):
    """What a generator makes pictures of: ``model.generate(*latents)`` draws them."""

    z: np.ndarray
    """N×Z, float32."""
    label: str
    """The label of all of them."""
    u: np.ndarray
    """N numbers from [0, 1), each of which chooses its picture's generator."""


def drawn_chunk(component: Component, latent: int, seed: int, chunk: int) -> np.ndarray:
    """Return the latents of pictures chunk·B … of one generator, B×Z."""
    purpose = "sample" if component.cell is None else f"sample {component.cell}"
    rng = stream(seed, cell=component.label, purpose=purpose, step=chunk)
    return rng.standard_normal((CHUNK, latent), dtype=np.float32)


def shares(weights: Iterable[float]) -> list[float]:
    """Return weights divided by their sum."""
    given = [*weights]
    total = sum(given)
    return [weight / total for weight in given]


def by_chance(weights: Iterable[float], uniform_N: np.ndarray) -> np.ndarray:
    """Return, for each number from [0, 1), a position, in proportion to the weights."""
    # By inverse distribution function, so that no place depends on how many follow.
    edges = np.cumsum(shares(weights))
    edges[-1] = 1.0
    return np.searchsorted(edges, uniform_N, side="right")


def latents_of(
    model: Model, label: str, indices: Sequence[int], owner_N: np.ndarray, seed: int
) -> Latents:
    """Return the latents of a label's pictures with these numbers.

    Args:
        model: the one that draws them.
        label: of all of them.
        indices: their numbers within the label.
        owner_N: which of the label's generators draws each picture, from the first up to the last.
        seed: that they are drawn with.
    """
    components = model.components_of(label)
    widths = [latent_width(model, component) for component in components]
    edges = np.cumsum([0.0, *shares(component.weight for component in components)])
    z_NZ = np.zeros((len(indices), max(widths)), np.float32)
    u_N = np.empty(len(indices))
    chunks: dict[tuple[int, int], np.ndarray] = {}
    for place, index in enumerate(indices):
        owner = int(owner_N[index])
        before = index if len(components) == 1 else int((owner_N[:index] == owner).sum())
        chunk, row = divmod(before, CHUNK)
        if (owner, chunk) not in chunks:
            found = drawn_chunk(components[owner], widths[owner], seed, chunk)
            chunks[owner, chunk] = found
        z_NZ[place, : widths[owner]] = chunks[owner, chunk][row]
        u_N[place] = (edges[owner] + edges[owner + 1]) / 2
    return Latents(z_NZ, label, u_N)


def latent_width(model: Model, component: Component) -> int:
    """Return how many numbers a component's latents have."""
    return build_generator(component.networks, model.shape).latent


def pictures_at(
    model: Model, z: Any, label: str | Sequence[str] | None, u: Any, on: torch.device
) -> tuple[np.ndarray, list[str]]:
    """Return the pictures at some latents, N×S×S×C bytes, and the label of each."""
    z_NZ = _numbers("z", z)
    if z_NZ.ndim != 2 or not len(z_NZ):
        raise ConfigError(f"z: found {_found(z)}, expected an array of N latents, N x numbers")
    u_N = None if u is None else _uniform(u, len(z_NZ))
    labels, u_N = _labels_of(model, label, u_N, len(z_NZ))
    asked = [part for one in dict.fromkeys(labels) for part in model.components_of(one)]
    width = max(latent_width(model, component) for component in asked)
    if z_NZ.shape[1] != width:
        raise ConfigError(f"z: found {_found(z)}, expected N x {width}")
    size, channels = model.shape.size, model.shape.channels
    pictures_NSSC = np.empty((len(z_NZ), size, size, channels), np.uint8)
    for one in dict.fromkeys(labels):
        components = model.components_of(one)
        if len(components) > 1 and u_N is None:
            raise ConfigError(
                f"label {one!r}: drawn by {len(components)} generators, found no u; give u, a "
                "number from [0, 1) for each latent, that chooses among them"
            )
        own_N = np.array([each == one for each in labels])
        weights = [component.weight for component in components]
        owner_N = by_chance(weights, np.zeros(len(z_NZ)) if u_N is None else u_N)
        for place, component in enumerate(components):
            wanted_N = own_N & (owner_N == place)
            if wanted_N.any():
                generator = model.generator(component, on)
                pictures_NSSC[wanted_N] = chunked(generator, z_NZ[wanted_N, : generator.latent])
    return pictures_NSSC, labels


def _labels_of(
    model: Model, label: str | Sequence[str] | None, u_N: np.ndarray | None, count: int
) -> tuple[list[str], np.ndarray | None]:
    """Return the label of each latent, and the numbers that are left to choose its generator."""
    if label is None and len(model.labels) > 1:
        if u_N is None:
            raise ConfigError(
                f"{field('label')}: found none and {len(model.labels)} labels; give one, one for "
                "each latent, or u to draw them by p(y)"
            )
        probabilities = [*model.probabilities.values()]
        chosen_N = by_chance(probabilities, u_N)
        low_N = (np.cumsum(probabilities) - probabilities)[chosen_N]
        left_N = (u_N - low_N) / np.array(probabilities)[chosen_N]
        return [model.labels[k] for k in chosen_N], left_N.clip(0, np.nextafter(1, 0))
    if label is None or isinstance(label, str):
        one = model.labels[0] if label is None else label
        model.components_of(one)
        return [one] * count, u_N
    labels = [str(one) for one in label]
    if len(labels) != count:
        raise ConfigError(
            f"{field('label')}: found {len(labels)} labels, expected one for all, or one for each "
            f"of {count} latents"
        )
    for one in dict.fromkeys(labels):
        model.components_of(one)
    return labels, u_N


def chunked(generator: Generator, z_NZ: np.ndarray) -> np.ndarray:
    """Return a generator's pictures at some latents, made in batches of B: the bits of sampling."""
    chunks = []
    # One thread: two would change a convolution's bits.
    with device.threads(1):
        for start in range(0, len(z_NZ), CHUNK):
            z_BZ = np.zeros((CHUNK, z_NZ.shape[1]), np.float32)
            own = z_NZ[start : start + CHUNK]
            z_BZ[: len(own)] = own
            chunks.append(generate(generator, z_BZ)[: len(own)])
    return np.concatenate(chunks)


class End(NamedTuple):
    """One end of a way: a generator, and a latent of it."""

    component: Component
    z_Z: np.ndarray
    said: str
    """What errors call it."""


def end_of(model: Model, name: str, label: str, given: Any, drawn: Latents | None) -> End:
    """Return an end, from the number of a drawn picture or from a latent.

    Args:
        model: whose generators draw the way.
        name: what errors call the argument.
        label: of the end.
        given: a number, or a latent.
        drawn: the latent of that number, where it is one.
    """
    components = model.components_of(label)
    if drawn is not None:
        weights = [component.weight for component in components]
        component = components[int(by_chance(weights, drawn.u)[0])]
        return End(component, drawn.z[0], f"picture {given} of label {label!r}")
    z_Z = _numbers(name, given)
    if len(components) > 1:
        raise ConfigError(
            f"{name}: found a latent, expected the number of a picture: label {label!r} is drawn "
            f"by {len(components)} generators, and a latent alone says nothing of which"
        )
    width = latent_width(model, components[0])
    if z_Z.shape != (width,):
        raise ConfigError(
            f"{name}: found {_found(given)}, expected a latent of {width} numbers, or the number "
            "of a picture"
        )
    return End(components[0], z_Z, f"the latent {name}")


def way(model: Model, a: End, b: End, steps: int, on: torch.device) -> np.ndarray:
    """Return the pictures on the way from one end to the other, T×S×S×C bytes; both ends count.

    Between the labels of a conditional network its row goes straight from one to the other, which
    its first layer's bias follows: the labels are built into that.
    """
    z_TZ = spherical(a.z_Z, b.z_Z, steps)
    generator = model.generator(a.component, on)
    if a.component == b.component:
        return chunked(generator, z_TZ)
    name, row_a, row_b = _rows(model, a, b)
    tensors = {key: tensor.detach() for key, tensor in generator.state_dict().items()}
    pictures = []
    for z_Z, t in zip(z_TZ, np.linspace(0, 1, steps), strict=True):
        fill(generator, {**tensors, name: torch.lerp(row_a.to(on), row_b.to(on), float(t))})
        pictures.append(chunked(generator, z_Z[None]))
    return np.concatenate(pictures)


def _rows(model: Model, a: End, b: End) -> tuple[str, Tensor, Tensor]:
    """Return the tensor in which two generators of a conditional network differ, and both."""
    here, there = (
        model.generator(end.component, torch.device("cpu")).state_dict() for end in (a, b)
    )
    odd = [
        name
        for name in {**here, **there}
        if name not in here or name not in there or not torch.equal(here[name], there[name])
    ]
    first = next((name for name in _FIRST_BIASES if name in here), "")
    if a.component.networks != b.component.networks or not set(odd) <= {first}:
        raise ConfigError(
            f"{a.said} and {b.said}: drawn by networks of their own ({a.component.name}; "
            f"{b.component.name}), between which no way leads; choose two of one generator, or "
            "labels of one conditional network (method conditional)"
        )
    return first, here[first], there[first]


def spherical(a_Z: np.ndarray, b_Z: np.ndarray, steps: int) -> np.ndarray:
    """Return the way from one latent to another at an even angle, T×Z, float32.

    The latents that a generator learnt with lie close to a sphere: normal numbers have a length of
    nearly √Z. The straight way leads through its inside, where none of them lay.
    """
    a, b = a_Z.astype(np.float64), b_Z.astype(np.float64)
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    cosine = float(np.clip(a @ b / lengths, -1, 1)) if lengths else 1.0
    angle, t_T1 = np.arccos(cosine), np.linspace(0, 1, steps)[:, None]
    if angle > np.pi - _NEARLY:
        raise ConfigError(
            "opposite latents: the way between them may lead anywhere; give one in between first"
        )
    if angle < _NEARLY:  # The sphere is flat here.
        z_TZ = (1 - t_T1) * a + t_T1 * b
    else:
        z_TZ = (np.sin((1 - t_T1) * angle) * a + np.sin(t_T1 * angle) * b) / np.sin(angle)
    z_TZ[0], z_TZ[-1] = a, b
    return z_TZ.astype(np.float32)


_NEARLY = 1e-4


def _numbers(name: str, given: Any) -> np.ndarray:
    """Return latents as float32, of a tensor or of whatever numpy takes."""
    array = given.detach().cpu().numpy() if isinstance(given, Tensor) else given
    try:
        array = np.asarray(array)
    except ValueError:  # Rows of different lengths.
        raise ConfigError(f"{name}: found {_found(given)}, expected an array of numbers") from None
    if array.dtype.kind != "f":
        raise ConfigError(f"{name}: found {_found(given)}, expected floats (float32)")
    if not np.isfinite(array).all():
        raise ConfigError(f"{name}: found numbers that are not finite in {_found(given)}")
    return array.astype(np.float32)


def _uniform(given: Any, count: int) -> np.ndarray:
    u_N = np.asarray(given.detach().cpu().numpy() if isinstance(given, Tensor) else given)
    if u_N.dtype.kind not in "fi" or u_N.shape != (count,):
        raise ConfigError(f"u: found {_found(given)}, expected {count} numbers, one a latent")
    if not ((u_N >= 0) & (u_N < 1)).all():
        raise ConfigError("u: found numbers outside [0, 1); draw them uniformly from there")
    return u_N.astype(np.float64)


def _found(given: Any) -> str:
    """Return how a message shows an array: its type, shape and dtype, never its numbers."""
    dtype = getattr(given, "dtype", None)
    return shown(given) + (f" and dtype {dtype}" if dtype is not None else "")
