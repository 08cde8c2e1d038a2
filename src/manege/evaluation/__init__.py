"""`manege evaluate`: compare any pictures with any others and record how it was done.

Opens what is to be scored (`subject`) and what it is compared with (`reference`), hands two sets of
pictures to `metrics`, and stores the result in the run (`kept`).
"""

from manege.evaluation.kept import Evaluation
from manege.evaluation.options import EvaluationOptions
from manege.evaluation.run import evaluate
from manege.evaluation.subject import Subject

__all__ = ["Evaluation", "EvaluationOptions", "Subject", "evaluate"]
