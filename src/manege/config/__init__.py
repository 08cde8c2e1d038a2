"""The run configuration: what it holds, where it comes from, and every random stream's seed.

Owns validation and its messages. Knows nothing of data, networks, files of a run or processes.
"""

from manege.config.presets import DEFAULT_PRESET, PRESETS
from manege.config.schema import (
    SIZES,
    SMALLEST_CLASS,
    Activation,
    ClipConstraint,
    Constraint,
    DataConfig,
    DcganNetworks,
    Loss,
    Method,
    MlpNetworks,
    Networks,
    NoConstraint,
    Optimiser,
    PenaltyConstraint,
    R1Constraint,
    R1R2Constraint,
    ResnetNetworks,
    RunConfig,
    Score,
    ScoreMetric,
    SpectralConstraint,
    Training,
    parse_duration,
)
from manege.config.seeds import stream
from manege.config.sources import amended, load_yaml, resolve, to_yaml

__all__ = [
    "DEFAULT_PRESET",
    "PRESETS",
    "SIZES",
    "SMALLEST_CLASS",
    "Activation",
    "ClipConstraint",
    "Constraint",
    "DataConfig",
    "DcganNetworks",
    "Loss",
    "Method",
    "MlpNetworks",
    "Networks",
    "NoConstraint",
    "Optimiser",
    "PenaltyConstraint",
    "R1Constraint",
    "R1R2Constraint",
    "ResnetNetworks",
    "RunConfig",
    "Score",
    "ScoreMetric",
    "SpectralConstraint",
    "Training",
    "amended",
    "load_yaml",
    "parse_duration",
    "resolve",
    "stream",
    "to_yaml",
]
