"""A score: a number, its definition, and what it takes to compute it again."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from manege.metrics.estimate import Estimate

BLIND = "blind"
"""The mark of a score whose space does not see the data: it is not shown as a headline."""

_WILSON_FIXED = "Wilson, the other set held fixed"
_ORDER = "order statistics, the real set held fixed"
_BOOTSTRAP = "1,000 multinomial redraws of the generated counts"
_FRECHET = "|μ - μ'|² + tr(Σ + Σ' - 2(ΣΣ')^½)"
_POOLED = "the 2048 pooled features of Inception-v3 of 2015-12-05"
_FIRST_ORDER = "each picture's influence, first order; not its bias"
DEFINITIONS: dict[str, tuple[str, str]] = {
    "kid": ("unbiased MMD² with kernel (x·y/D + 1)³ over all pairs", "variance of the U-statistic"),
    "intra-class-kid": (
        "mean of the classes' kid, each class weighing the same",
        "their variances",
    ),
    "fd": (_FRECHET, "delete-a-block jackknife, 20 blocks; not its bias"),
    "fid": (f"{_FRECHET}, {_POOLED}; bytes, TF1's bilinear resize to 299", _FIRST_ORDER),
    "clean-fid": (f"{_FRECHET}, {_POOLED}; bytes, antialiased bicubic to 299", _FIRST_ORDER),
    "is": (
        "exp of the mean KL(labels of a picture, labels of all), mean of 10 random splits, no bias "
        "in the last layer; Inception-v3 of 2015-12-05, bytes, TF1's bilinear resize to 299",
        "normal, from the 10 splits",
    ),
    "is@lite0": (
        "exp of the mean KL(classes of a picture, classes of all), mean of 10 random splits; the "
        "thousand classes of EfficientNet-Lite0, pictures brought to 64: not the literature's",
        "normal, from the 10 splits",
    ),
    "precision": ("share of generated within a reference ball, k = 5", _WILSON_FIXED),
    "recall": ("share of reference within a generated ball, k = 5", _WILSON_FIXED),
    "density": ("reference balls round a generated picture over k, k = 5", "normal, other fixed"),
    "coverage": ("share of reference balls with a generated picture, k = 5", _WILSON_FIXED),
    "label-entropy": ("entropy of the labels found, nats", _BOOTSTRAP),
    "label-tvd": ("total variation distance of labels found to the reference's", _BOOTSTRAP),
    "label-modes": ("labels found at a tenth of their share in the reference or more", _BOOTSTRAP),
    "agreement": ("share whose label found is the one they were made for", "Wilson"),
    "nearest-train": ("median RMS pixel distance (0 to 1) to the nearest", _ORDER),
    "nearest-held-out": ("median RMS pixel distance (0 to 1) to the nearest", _ORDER),
    "nearer-to-train": (
        "share nearer to a training than to a held-out picture, as many of both; 0.5 is neutral",
        "Wilson, both real sets held fixed",
    ),
    "high-quality": ("share of points within 3 deviations of a centre", "Wilson"),
    "modes": ("centres with a tenth of their fair share of high-quality points", _BOOTSTRAP),
    "modes-covered": ("of 1,000 triples of digits those with a picture", _BOOTSTRAP),
    "modes-kl": ("KL of the triples' shares to equal ones, nats", _BOOTSTRAP),
}
"""By the name of each score: its definition, and how its interval was computed."""


@dataclass(frozen=True)
class Score:
    """One score with its interval, and what it takes to compute it again."""

    name: str
    value: float
    low: float
    high: float
    space: str
    """The feature space; scores in different spaces must not be compared."""
    space_sha256: str | None
    generated: int
    reference: int
    split: str
    """The split of the reference pictures."""
    seed: int
    definition: str
    interval: str
    label: str | None = None
    """The class it belongs to; None for all classes together."""
    floor: Estimate | None = None
    """The score of as many real pictures, of the other split, in place of the generated ones."""
    marks: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """Return the name with its space: the column it belongs to."""
        return self.name if self.space in self.name else f"{self.name}@{self.space}"

    def as_dict(self) -> dict[str, Any]:
        """Return the score as a tree for JSON."""
        return {"full_name": self.full_name, **asdict(self)}
