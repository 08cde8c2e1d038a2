"""The methods: partition, topology and what a round does.

Nothing in here sees a communicator, a file or a clock.
"""

from manege.methods.independent import Independent
from manege.methods.method import Method, Step, Timer

__all__ = ["Independent", "Method", "Step", "Timer"]
