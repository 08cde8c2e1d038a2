"""List the scores there are, and check which of them two sets of pictures allow.

All of it is known before anything is drawn or computed, so that errors come at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from manege import plugins
from manege.data import PictureSet, Toy
from manege.errors import ConfigError, DataError, field
from manege.metrics.frechet import enough_for_frechet
from manege.metrics.inception import Inception
from manege.metrics.own import own_score
from manege.metrics.spaces import CLEAN, INCEPTION, LITE0, Space
from manege.metrics.weights import without_head

GROUPS: dict[str, str] = {
    "kid": "kernel distance, right for few pictures too",
    "fd": "Fréchet distance, for many pictures; in Inception's space it is FID",
    "is": "inception score, by Lite0's or Inception's thousand classes",
    "prdc": "precision, recall, density, coverage",
    "labels": "what the pictures look like to the classifier",
    "nearest": "distances to the nearest training and held-out pictures",
    "modes": "modes hit, for the toys and stacked-mnist",
}
"""The groups of scores that the option `metrics` chooses from, each with its meaning."""

FEWEST = 8
"""Fewer pictures than this in a set, or in a class, are not scored."""

FEWEST_FOR_FID = 10_000
"""Pictures that FID's authors ask for (Heusel et al. 2017)."""

SPLITS = 10
"""Splits of the pictures over which the inception score is averaged."""


@dataclass(frozen=True)
class Preconditions:
    """What is known of two sets of pictures before anything is drawn or computed."""

    generated: tuple[str, int]
    """The name of the subject, and how many of its pictures are compared."""
    reference: PictureSet
    other: PictureSet | None = None
    toy: Toy | None = None
    stacked: bool = False
    """Whether the pictures are three digits stacked."""
    kind: str | None = None
    """The kind of feature space; None while it is not known yet."""
    dimensions: int | None = None
    """The dimensions of the feature space; None while they are not known yet."""
    space: Space | None = None
    """The feature space; None while it is not open yet."""
    labeller: Space | None = None
    """The space that tells which labels pictures show; None before it is open, or without any."""
    allow_few: bool = False

    def within(self, space: Space, labeller: Space | None = None) -> Preconditions:
        """Return all that is known once the space, and the labeller if another, is open."""
        known = replace(self, kind=space.kind, dimensions=space.dimensions, space=space)
        return replace(known, labeller=labeller or (space if space.labels else None))


def check_groups(names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the names of groups, each once, or raise ConfigError; None means all that apply.

    A score of one's own has a group to itself, whose name is the reference to its function.
    """
    if names is None:
        return None
    own = {name: plugins.reference_named(name) for name in names if name and name not in GROUPS}
    chosen = tuple(dict.fromkeys(own.get(name) or name for name in names))
    if "" in chosen and len(chosen) > 1:
        given = ",".join(names)
        raise ConfigError(
            f"{field('metrics')} {given!r}: an empty name; expected some of {', '.join(GROUPS)}"
        )
    for name in filter(None, chosen):
        if plugins.is_reference(name):
            own_score(name, field("metrics"))
        elif name not in GROUPS:
            hint = ""
            if "fid" in name.lower():
                hint = f" (FID is fd with {field('features')} inception)"
            raise ConfigError(
                f"{field('metrics')} {name}: not known; expected some of {', '.join(GROUPS)}, or a "
                f"function of your own as module:name{hint}"
            )
    if chosen in ((), ("",)):
        raise ConfigError(f"{field('metrics')}: empty; expected some of {', '.join(GROUPS)}")
    return chosen


def check_facts(facts: Preconditions, groups: tuple[str, ...] | None) -> None:
    """Raise DataError for too few pictures, ConfigError for groups that cannot be computed."""
    subject, count = facts.generated
    if count < FEWEST:
        raise DataError(
            f"{subject}: {count} generated pictures, expected at least {FEWEST}; give more"
        )
    if len(facts.reference) < FEWEST:
        raise DataError(
            f"{facts.reference.name}: {len(facts.reference)} reference pictures "
            f"({facts.reference.split}), expected at least {FEWEST}; give more"
            + (f", or another {field('reference')}" if facts.other is not None else "")
        )
    for group in groups or ():
        if (reason := why_not(group, facts)) is not None:
            raise ConfigError(f"{field('metrics')} {group}: {reason}")


def why_not(group: str, facts: Preconditions) -> str | None:
    """Return why a group of scores cannot be computed, as far as is known, or None."""
    generated, labels = facts.generated[1], facts.reference.labels
    space, labeller = facts.space, facts.labeller
    match group:
        case "fd":
            sets = {"generated": generated, "reference": len(facts.reference)}
            return _too_few(facts, sets)
        case "is" if facts.kind is not None:
            if facts.kind not in (INCEPTION, LITE0):
                return f"needs {field('features')} {LITE0} or {INCEPTION}"
            if generated < SPLITS:
                return f"{generated} pictures cannot be split into {SPLITS}; give more"
            network = None if space is None else space.network
            if isinstance(network, Inception) and not network.has_head:
                return without_head()
            if facts.allow_few or generated >= fewest_for_is():
                return None
            return (
                f"{generated:,} generated pictures are too few for IS, which takes "
                f"{fewest_for_is():,}; use kid, or {field('allow_few_samples')}"
            )
        case "labels":
            if labels is None or (space is not None and labeller is None):
                return "needs labelled reference data and a feature network that knows labels"
            if labeller is not None and not set(labels) <= set(labeller.labels):
                return f"the feature network {labeller.name} knows other labels"
        case "nearest":
            if facts.toy is not None:
                return "points have no pixels"
            if facts.other is None or not len(facts.other):
                return "needs data with training and held-out pictures"
        case "modes" if facts.toy is None and not facts.stacked:
            return "only the toys ring8 and grid25, and stacked-mnist, have known modes"
    return None


def fewest_for_is() -> int:
    """Return the number of pictures below which an inception score is mostly bias."""
    return FEWEST_FOR_FID


def fewest_for_frechet(kind: str, dimensions: int) -> int:
    """Return the number of pictures in a set below which a Fréchet distance is mostly bias."""
    return FEWEST_FOR_FID if kind in (INCEPTION, CLEAN) else enough_for_frechet(dimensions)


def _too_few(facts: Preconditions, sets: Mapping[str, int]) -> str | None:
    """Return why the smallest of these sets is too small for a Fréchet distance, or None."""
    if facts.allow_few or facts.kind is None or facts.dimensions is None:
        return None
    fewest = fewest_for_frechet(facts.kind, facts.dimensions)
    which = min(sets, key=lambda name: sets[name])
    if sets[which] >= fewest:
        return None
    what = f"a Fréchet distance in {facts.dimensions} dimensions, which takes"
    if facts.kind in (INCEPTION, CLEAN):
        what = "FID, which takes"
    return (
        f"{sets[which]:,} {which} pictures are too few for {what} {fewest:,}; use kid, or "
        f"{field('allow_few_samples')}"
    )
