"""`manege evaluate`: any pictures against any others, the result with its whole protocol.

Opens what is to be judged (`subject`) and what it is held against (`reference`), hands two sets of
pictures to `metrics`, and lets a run keep the answer (`kept`).
"""

from manege.evaluation.kept import Evaluation, as_json
from manege.evaluation.options import EvaluationOptions
from manege.evaluation.run import evaluate
from manege.evaluation.subject import Subject

__all__ = ["Evaluation", "EvaluationOptions", "Subject", "as_json", "evaluate"]
