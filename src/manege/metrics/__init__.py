"""Compute scores: feature spaces, distances between sets of pictures, the scorer of training.

Owns every number that says how good pictures are, each with its interval. Knows no run, model or
process.
"""

from manege.metrics.classifier import (
    Telling,
    classifier_for,
    scored_data,
    space_for,
    training_digest,
)
from manege.metrics.conditions import GROUPS, Preconditions, check_facts, check_groups, why_not
from manege.metrics.estimate import Estimate
from manege.metrics.lite0_weights import FeatureWeights, feature_weights
from manege.metrics.mixture import FrechetMixture, InceptionMixture
from manege.metrics.own import try_score
from manege.metrics.score import Score
from manege.metrics.scorer import ClassScorer
from manege.metrics.spaces import (
    CLASSIFIER,
    CLEAN,
    INCEPTION,
    LITE0,
    MNIST_LOGITS,
    POINTS,
    RANDOM,
    Space,
    inception_space,
    is_stored,
    kind_of,
    lite0_space,
    load_space,
    mnist_logits_space,
    planned_dimensions,
    points_space,
    random_space,
    save_space,
)
from manege.metrics.stability import StabilityGauge, space_without_scores
from manege.metrics.suite import Counting, Results, ScoredSets, measure
from manege.metrics.weights import load_weights

__all__ = [
    "CLASSIFIER",
    "CLEAN",
    "GROUPS",
    "INCEPTION",
    "LITE0",
    "MNIST_LOGITS",
    "POINTS",
    "RANDOM",
    "ClassScorer",
    "Counting",
    "Estimate",
    "FeatureWeights",
    "FrechetMixture",
    "InceptionMixture",
    "Preconditions",
    "Results",
    "Score",
    "ScoredSets",
    "Space",
    "StabilityGauge",
    "Telling",
    "check_facts",
    "check_groups",
    "classifier_for",
    "feature_weights",
    "inception_space",
    "is_stored",
    "kind_of",
    "lite0_space",
    "load_space",
    "load_weights",
    "measure",
    "mnist_logits_space",
    "planned_dimensions",
    "points_space",
    "random_space",
    "save_space",
    "scored_data",
    "space_for",
    "space_without_scores",
    "training_digest",
    "try_score",
    "why_not",
]
