"""The methods: partition, topology and what a round does.

Nothing in here sees a communicator, a file or a clock.
"""

from manege.methods.method import Method, Step, Timer
from manege.methods.per_class import PerClass

__all__ = ["Method", "PerClass", "Step", "Timer"]
