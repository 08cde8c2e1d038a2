"""Check whether a feature space can tell these data from what is plainly not like them.

A score is worth what its space sees. So real pictures that the space has not seen are compared to
pictures that everybody would call wrong: shuffled pixels, a strong blur, one picture repeated,
uniform noise, what an untrained generator draws, and what the run's own generator drew in its first
rounds. The last matter most: noise that training drew against such features fools a space that
uniform noise does not. Where one of them is not clearly worse than real pictures, the space is
blind for these data, and its numbers are no headline.

Shape legend: N and M rows of features; pictures are N×S×S×C, S their side, C channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from manege.config import stream
from manege.errors import field
from manege.metrics.estimate import Estimate
from manege.metrics.kid import kid
from manege.metrics.neighbours import balls, coverage
from manege.metrics.spaces import CLASSIFIER, LITE0, POINTS, RANDOM, Space

RULE = 1
"""Change it whenever the rule or a control changes: cached results are then computed anew."""
MOST = 256
"""Pictures of each kind at most: real ones on either side, and each control."""
FEWEST = 8
"""With fewer real pictures on either side no check is made."""
MARGIN = 2.0
"""A control's KID must surely be above that of real pictures by so many halves of its interval."""
NEIGHBOURS = 5
FRESH_GENERATOR, EARLY_GENERATOR = "an untrained generator", "the run's early generator"
"""The names of the controls that generators' pictures make."""

_BLUR = 4
"""A blurred pixel is the mean over a square of a quarter of the side, twice."""


@dataclass(frozen=True)
class Control:
    """The scores of one control, or of real pictures, in a space."""

    kid: Estimate
    coverage: Estimate
    pictures: int


@dataclass(frozen=True)
class Check:
    """The outcome of the check of one space."""

    space: str
    real: Control
    controls: Mapping[str, Control]
    blind: tuple[str, ...]
    """The controls that are not clearly worse than real pictures."""

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome as a tree for JSON."""
        return {"rule": RULE, **asdict(self), "told": told(self.space, self.blind)}


def told(space: str, blind: tuple[str, ...]) -> str | None:
    """Return one line on what a blind space does not see and what to use instead, or None."""
    if not blind:
        return None
    return (
        f"{space} is blind for these data: it does not tell real pictures from "
        f"{' or '.join(blind)}; use {instead(space)}"
    )


def instead(space: str) -> str:
    """Return the options that replace a blind space by others."""
    if space.startswith((CLASSIFIER, RANDOM)):
        return f"{field('features')} lite0, or {field('features')} inception"
    return f"{field('features')} {'inception' if space.startswith(LITE0) else 'lite0'}"


def check(
    space: Space,
    train: np.ndarray,
    held_out: np.ndarray,
    drawn: Mapping[str, np.ndarray],
    *,
    made: bool = True,
    fewest: int = FEWEST,
) -> Check | None:
    """Compare controls with real pictures in a space; return None where there are too few pictures.

    Args:
        space: where to look.
        train: pictures that training sees; of many some are enough.
        held_out: those that it does not.
        drawn: what generators drew before they had learnt, by the control's name.
        made: whether to look at shuffled pixels, a blur and so on too.
        fewest: real pictures on either side that it takes.
    """
    reference, real = train, held_out
    # A network that was not trained on these data has seen neither: then all stand for both, which
    # tells more where few are held out.
    if space.trained_on is None or len(real) < fewest:
        every = np.concatenate([reference, real])
        reference, real = every[0::2], every[1::2]
    reference, real = _thinned(reference), _thinned(real)
    if min(len(reference), len(real)) < fewest:
        return None
    wrong = _made(real) if made else {}
    wrong |= {name: _thinned(some) for name, some in drawn.items() if len(some) >= FEWEST}
    if not wrong:
        return None
    reference_MD = space.features(reference)
    radius_M = balls(reference_MD, NEIGHBOURS)

    def look(pictures: np.ndarray) -> Control:
        # As many as there are real ones, else coverage would be another number.
        some = pictures[: len(real)]
        rows_ND = space.features(some)
        covered = coverage(rows_ND, reference_MD, radius_M)
        return Control(kid(rows_ND, reference_MD), covered, len(some))

    found = {name: look(pictures) for name, pictures in wrong.items()}
    own = look(real)
    worse = _covers_less if space.kind == POINTS else _worse
    blind = tuple(name for name, one in found.items() if not worse(one, own))
    return Check(space.name, own, found, blind)


def _worse(control: Control, real: Control) -> bool:
    """Return whether a control is clearly worse than real pictures: further off, covering less."""
    bound = real.kid.value + MARGIN * (real.kid.high - real.kid.value)
    return control.kid.low > bound and control.coverage.value < real.coverage.value


def _covers_less(control: Control, real: Control) -> bool:
    """Return the same for points, without KID: it knows three moments and takes grids for noise."""
    return control.coverage.high < real.coverage.low


def _thinned(pictures_NSSC: np.ndarray) -> np.ndarray:
    """Return at most MOST of the pictures, evenly spaced: sets list them class after class."""
    count = len(pictures_NSSC)
    rows = np.linspace(0, count - 1, min(count, MOST)).astype(np.int64)
    return pictures_NSSC[rows]


def _made(real_NSSC: np.ndarray) -> dict[str, np.ndarray]:
    """Make pictures that everybody would call wrong from real ones; points get fewer controls."""
    count, side, _, channels = real_NSSC.shape
    rng = stream(0, cell="", purpose="controls")
    noise = rng.integers(0, 256, real_NSSC.shape, dtype=np.uint8)
    wrong = {
        "one picture repeated": np.repeat(real_NSSC[:1], count, axis=0),
        "uniform noise": noise,
    }
    if side > 1:
        order_NP = np.argsort(rng.random((count, side * side)), axis=1)
        flat_NPC = real_NSSC.reshape(count, side * side, channels)
        shuffled = np.take_along_axis(flat_NPC, order_NP[..., None], axis=1)
        wrong["shuffled pixels"] = shuffled.reshape(real_NSSC.shape)
        wrong["a strong blur"] = _blurred(real_NSSC)
    return wrong


def _blurred(pictures_NSSC: np.ndarray) -> np.ndarray:
    x = torch.from_numpy(np.ascontiguousarray(pictures_NSSC)).permute(0, 3, 1, 2).float()
    reach = max(1, x.shape[-1] // _BLUR // 2)
    for _ in range(2):
        x = F.avg_pool2d(F.pad(x, (reach,) * 4, mode="replicate"), 2 * reach + 1, stride=1)
    found: np.ndarray = x.round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()
    return found
