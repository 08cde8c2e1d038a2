"""The options of `manege evaluate`, and the checks that need no file to be opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from manege.data import Split
from manege.errors import ConfigError, field
from manege.metrics import CLASSIFIER, CLEAN, INCEPTION, LITE0, RANDOM, check_groups

SPACES = (
    "auto, lite0, classifier, random, inception, inception-clean, mnist-logits, mnist-logits=FILE, "
    "or the scorer/ folder of a run"
)


@dataclass(frozen=True)
class EvaluationOptions:
    """The options of an evaluation; the defaults are the command's."""

    metrics: tuple[str, ...] | None = None
    """Groups of scores to compute, or functions of one's own; all groups when None."""
    samples: int | None = None
    per_class: bool = False
    features: str = "auto"
    """auto, lite0, classifier, random, inception, inception-clean, mnist-logits[=FILE], or a folder
    with a scorer."""
    inception_weights: Path | None = None
    """Inception's published weights; when None, the first place that has them."""
    feature_weights: Path | None = None
    """EfficientNet-Lite0's published weights; when None, the first place that has them."""
    classes: tuple[str, ...] | None = None
    size: int | None = None
    channels: int | None = None
    reference: str | None = None
    """The split to compare with: held-out (also when None) or train."""
    seed: int = 0
    allow_few_samples: bool = False
    data_root: str | None = None

    def check(self) -> None:
        """Raise ConfigError if an option is invalid or options conflict, whatever is compared."""
        check_groups(self.metrics)
        if self.samples is not None and self.samples < 1:
            raise ConfigError(f"{field('samples')} {self.samples}: expected at least 1")
        if self.reference not in (None, *(split.value for split in Split)):
            raise ConfigError(f"{field('reference')} {self.reference}: expected held-out or train")
        if self.per_class and self.metrics is not None and "kid" not in self.metrics:
            raise ConfigError(
                f"{field('per_class')}: of the scores only kid is computed for each class; add it "
                f"to {field('metrics')}, or leave {field('per_class')} out"
            )
        kind, equals, _ = self.features.partition("=")
        if equals and kind in ("auto", LITE0, CLASSIFIER, RANDOM, INCEPTION, CLEAN):
            raise ConfigError(f"{field('features')} {self.features}: expected {SPACES}")
        if self.inception_weights is not None and kind not in (INCEPTION, CLEAN):
            raise ConfigError(
                f"{field('inception_weights')} {self.inception_weights}: only "
                f"{field('features')} inception and inception-clean use it; add one of them, or "
                "leave it out"
            )
        if "is" in (self.metrics or ()) and kind not in ("auto", LITE0, INCEPTION):
            raise ConfigError(
                f"{field('metrics')} is: needs {field('features')} {LITE0} or {INCEPTION}"
            )
        twice = [label for label in self.classes or () if (self.classes or ()).count(label) > 1]
        if twice:
            raise ConfigError(f"{field('classes')}: {twice[0]!r} is named twice; name each once")

    @property
    def split(self) -> Split:
        """Return the split of the data to compare with."""
        return Split(self.reference or Split.HELD_OUT.value)


class Scoring(TypedDict, total=False):
    """The options of `evaluate` and `compare`; those left out are the command's."""

    metrics: Sequence[str] | None
    samples: int | None
    per_class: bool
    features: str
    inception_weights: str | Path | None
    feature_weights: str | Path | None
    classes: Sequence[str] | None
    size: int | None
    channels: int | None
    reference: str | None
    seed: int
    allow_few_samples: bool
    data_root: str | None
