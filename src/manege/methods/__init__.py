"""The methods: partition, topology and what a round does.

Nothing in here sees a communicator, a file or a clock.
"""

from manege.methods.cellular import Cellular, Reduction
from manege.methods.independent import Independent
from manege.methods.method import Inbox, Method, State, Step, Timer

__all__ = [
    "Cellular",
    "Inbox",
    "Independent",
    "Method",
    "Reduction",
    "State",
    "Step",
    "Timer",
]
