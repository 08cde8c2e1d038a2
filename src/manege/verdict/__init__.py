"""Did it help? Classifiers trained with and without a run's pictures, and one plain sentence.

Owns the arms of that trial, the gate that pictures may have to pass, and the folder `verdict/` of a
run. What a near-copy is, `metrics/copies.py` says. Trains no GAN.
"""

from manege.verdict.balancing import Balanced, balance
from manege.verdict.case import VerdictOptions
from manege.verdict.run import Verdict, judge

__all__ = ["Balanced", "Verdict", "VerdictOptions", "balance", "judge"]
