"""Tell whether a run's pictures help: train classifiers with and without them and compare.

Owns the arms of that trial, the gate that pictures may have to pass, and the folder `verdict/` of a
run. `metrics/copies.py` defines near-copies. Trains no GAN.
"""

from manege.verdict.balancing import Balanced, balance
from manege.verdict.case import VerdictOptions
from manege.verdict.run import Verdict, judge

__all__ = ["Balanced", "Verdict", "VerdictOptions", "balance", "judge"]
