"""The methods: partition, topology, what a round does, and what the model draws with.

Nothing in here sees a communicator, a file or a clock.
"""

from manege.methods.base import BaseMethod
from manege.methods.cellular import Cellular, ChosenMixture
from manege.methods.independent import Independent
from manege.methods.method import (
    Inbox,
    Method,
    ModelPart,
    SavedCell,
    Scorers,
    State,
    Step,
    Timer,
    TrainedGenerator,
)
from manege.methods.registry import METHODS, method_of, partition_of

__all__ = [
    "METHODS",
    "BaseMethod",
    "Cellular",
    "ChosenMixture",
    "Inbox",
    "Independent",
    "Method",
    "ModelPart",
    "SavedCell",
    "Scorers",
    "State",
    "Step",
    "Timer",
    "TrainedGenerator",
    "method_of",
    "partition_of",
]
